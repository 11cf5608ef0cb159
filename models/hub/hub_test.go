package hub_test

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/models/hub"
)

// fakeHub speaks the hub's protocol. Large files are redirected to another host, as the hub does.
type fakeHub struct {
	*httptest.Server
	storage *httptest.Server

	mu     sync.Mutex
	files  map[string][]byte
	commit string
	token  string         // that requests need; "": none
	cut    map[string]int // bytes after which the next answer with a file breaks off
	wrong  map[string]int // answers with a changed byte that are left
	ranges []string       // of all requests of content
	leaked bool           // the other host got the token
	whole  bool           // answers are whole, whatever range is requested
	fail   int            // answers 500 that are left
}

func newHub(t *testing.T) *fakeHub {
	h := &fakeHub{commit: strings.Repeat("a", 40), cut: map[string]int{}, wrong: map[string]int{}, files: map[string][]byte{
		"config.json": []byte(`{"a":1}`), "tokenizer.json": []byte(`{"b":2}`), "README.md": []byte("x"), ".gitattributes": []byte("y"),
		"model.safetensors": bytes.Repeat([]byte("0123456789abcdef"), 20000), "pytorch_model.bin": []byte("z"),
		"onnx/config.json": []byte("{}"), "consolidated.safetensors": []byte("copy"), "m-Q8_0.gguf": []byte("GGUF8"),
		"m-Q4_K_M.gguf": []byte("GGUF4"),
	}}
	h.storage = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.leaked = h.leaked || r.Header.Get("Authorization") != ""
		h.mu.Unlock()
		h.content(w, r, strings.TrimPrefix(r.URL.Path, "/"))
	}))
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.storage.Close)
	t.Cleanup(h.Close)
	return h
}

func isLarge(name string) bool {
	return strings.HasSuffix(name, "s") || strings.HasSuffix(name, ".gguf")
}

func (h *fakeHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	token, fail := h.token, h.fail
	h.fail = max(0, fail-1)
	h.mu.Unlock()
	switch {
	case fail > 0:
		http.Error(w, "broken", http.StatusInternalServerError)
	case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
		http.Error(w, "no", http.StatusUnauthorized)
	case r.URL.Path == "/api/models/o/m/revision/main" && r.URL.Query().Get("blobs") == "true":
		h.list(w)
	case strings.HasPrefix(r.URL.Path, "/o/m/resolve/"+h.commit+"/"):
		name := strings.TrimPrefix(r.URL.Path, "/o/m/resolve/"+h.commit+"/")
		if isLarge(name) {
			http.Redirect(w, r, strings.Replace(h.storage.URL, "127.0.0.1", "localhost", 1)+"/"+name, http.StatusFound)
			return
		}
		h.content(w, r, name)
	default:
		http.NotFound(w, r)
	}
}

func (h *fakeHub) list(w http.ResponseWriter) {
	var siblings []map[string]any
	for name, content := range h.files {
		f := map[string]any{"rfilename": name, "size": len(content)}
		if isLarge(name) {
			sum := sha256.Sum256(content)
			f["lfs"] = map[string]any{"sha256": hex.EncodeToString(sum[:]), "size": len(content)}
		} else {
			sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content))
			f["blobId"] = hex.EncodeToString(sum[:])
		}
		siblings = append(siblings, f)
	}
	json.NewEncoder(w).Encode(map[string]any{"sha": h.commit, "siblings": siblings}) //nolint:errcheck // the client notices
}

func (h *fakeHub) content(w http.ResponseWriter, r *http.Request, name string) {
	h.mu.Lock()
	content := bytes.Clone(h.files[name])
	h.ranges = append(h.ranges, name+" "+r.Header.Get("Range"))
	if h.wrong[name] > 0 {
		h.wrong[name]--
		content[len(content)/2] ^= 1
	}
	cut := h.cut[name]
	delete(h.cut, name)
	if h.whole {
		r.Header.Del("Range")
	}
	h.mu.Unlock()
	if cut > 0 {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		w.Write(content[:cut]) //nolint:errcheck // it breaks off anyway
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// takes is the check of a program that serves everything.
func takes(string) error { return nil }

func pull(t *testing.T, h *fakeHub, s hub.Store, name string) (*hub.Model, error) {
	t.Helper()
	n, err := hub.ParseName(name)
	require.NoError(t, err)
	last := hub.Progress{}
	m, err := s.Pull(t.Context(), &hub.Hub{Endpoint: h.URL + "/", Token: h.token}, n, "", takes, func(p hub.Progress) {
		require.LessOrEqual(t, p.Done, p.Total)
		last = p
	})
	if err == nil {
		require.Equal(t, last.Total, last.Done)
	}
	return m, err
}

func requireWhole(t *testing.T, h *fakeHub, m *hub.Model) {
	t.Helper()
	for _, f := range m.Files {
		got, err := os.ReadFile(filepath.Join(m.Path(), f.Name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(h.files[f.Name], got), f.Name)
	}
}

func TestAModelComesWithWhatItNeedsAndNothingElse(t *testing.T) {
	h, s := newHub(t), hub.Store{Dir: t.TempDir()}
	h.token = "hf_secret"
	m, err := pull(t, h, s, "o/m")
	require.NoError(t, err)
	requireWhole(t, h, m)
	entries, err := os.ReadDir(m.Path())
	require.NoError(t, err)
	var found []string
	for _, e := range entries {
		found = append(found, e.Name())
	}
	require.Equal(t, []string{".millrace.json", "config.json", "model.safetensors", "tokenizer.json"}, found)
	require.False(t, h.leaked, "the token is for the hub only")

	list, err := s.List()
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "o/m", list[0].Name)
	require.Equal(t, h.commit, list[0].Commit)
	requests := len(h.ranges)
	_, err = s.Pull(t.Context(), &hub.Hub{Endpoint: h.URL, Token: h.token}, hub.Name{Owner: "o", Repo: "m"}, "", takes,
		func(hub.Progress) {})
	require.NoError(t, err)
	require.Len(t, h.ranges, requests, "it is here")

	require.NoError(t, s.Remove(hub.Name{Owner: "o", Repo: "m"}))
	require.ErrorIs(t, s.Remove(hub.Name{Owner: "o", Repo: "m"}), fs.ErrNotExist)
	_, err = s.Find(hub.Name{Owner: "o", Repo: "m"})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestAVariantIsAGGUFFile(t *testing.T) {
	h, s := newHub(t), hub.Store{Dir: t.TempDir()}
	m, err := pull(t, h, s, "o/m:q8_0")
	require.NoError(t, err)
	got, err := os.ReadFile(m.Path())
	require.NoError(t, err)
	require.Equal(t, "GGUF8", string(got))
	_, err = pull(t, h, s, "o/m:Q9")
	require.ErrorContains(t, err, `found no GGUF file of variant "Q9", expected one of m-Q`)
}

func TestADownloadContinuesWhereItBroke(t *testing.T) {
	h, s := newHub(t), hub.Store{Dir: t.TempDir()}
	h.cut["model.safetensors"], h.fail = 100_000, 0
	m, err := pull(t, h, s, "o/m")
	require.NoError(t, err)
	requireWhole(t, h, m)
	require.Contains(t, h.ranges, "model.safetensors bytes=100000-")
}

func TestALaterCommandContinuesADownload(t *testing.T) {
	h, s := newHub(t), hub.Store{Dir: t.TempDir()}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Pull(ctx, &hub.Hub{Endpoint: h.URL}, hub.Name{Owner: "o", Repo: "m"}, "", takes, func(p hub.Progress) {
		if p.File == "model.safetensors" && p.Done > 60_000 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	list, err := s.List()
	require.NoError(t, err)
	require.Empty(t, list, "it is not whole")
	m, err := pull(t, h, s, "o/m")
	require.NoError(t, err)
	requireWhole(t, h, m)
	last := h.ranges[len(h.ranges)-1]
	require.True(t, strings.HasPrefix(last, "model.safetensors bytes=") && last != "model.safetensors bytes=0-", last)
}

func TestAServerWithoutRangesSendsTheWholeFileAgain(t *testing.T) {
	h, s := newHub(t), hub.Store{Dir: t.TempDir()}
	h.cut["model.safetensors"], h.whole = 100_000, true
	m, err := pull(t, h, s, "o/m")
	require.NoError(t, err)
	requireWhole(t, h, m)
}

func TestAChangedByteIsNoticed(t *testing.T) {
	for _, name := range []string{"model.safetensors", "config.json"} {
		h, s := newHub(t), hub.Store{Dir: t.TempDir()}
		h.wrong[name] = 1
		m, err := pull(t, h, s, "o/m")
		require.NoError(t, err, "the second try brings the right one")
		requireWhole(t, h, m)
		require.Zero(t, h.wrong[name])
	}
}

func TestAHubThatIsBusyIsTriedAgain(t *testing.T) {
	h, s := newHub(t), hub.Store{Dir: t.TempDir()}
	n := hub.Name{Owner: "o", Repo: "m"}
	_, err := s.Pull(t.Context(), &hub.Hub{Endpoint: h.URL}, n, "", takes, func(p hub.Progress) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if p.File != "model.safetensors" && h.fail == 0 && len(h.ranges) == 1 {
			h.fail = 1
		}
	})
	require.NoError(t, err)
}

func TestARefusalSaysWhatToDo(t *testing.T) {
	h, s := newHub(t), hub.Store{Dir: t.TempDir()}
	h.mu.Lock()
	h.token = "hf_secret"
	h.mu.Unlock()
	_, err := s.Pull(t.Context(), &hub.Hub{Endpoint: h.URL}, hub.Name{Owner: "o", Repo: "m"}, "", takes, func(hub.Progress) {})
	require.ErrorContains(t, err, "HF_TOKEN")
	require.NotContains(t, err.Error(), "hf_secret")
	h.token = ""
	_, err = pull(t, h, s, "o/other")
	require.ErrorContains(t, err, "found no such model")
	_, err = os.Stat(filepath.Join(s.Dir, "o"))
	require.ErrorIs(t, err, fs.ErrNotExist, "nothing is left of it")
}

func TestFilesOutsideTheFolderAreRefused(t *testing.T) {
	h, s := newHub(t), hub.Store{Dir: t.TempDir()}
	h.files[`x\evil.json`] = []byte("{}")
	_, err := pull(t, h, s, "o/m")
	require.ErrorContains(t, err, "expected one in the model's folder")
	for _, name := range []string{"m", "../m", "o/../m", "o/m/x", "o/.m", "/m", "o/", "o/m:", "o/m:../x", "https://x/o/m", ""} {
		_, err := hub.ParseName(name)
		require.Error(t, err, name)
	}
}

// TestAModelThatIsNotServedIsNotDownloaded: its configuration decides, or the begin of its GGUF file.
func TestAModelThatIsNotServedIsNotDownloaded(t *testing.T) {
	refusal := errors.New("not served")
	h, s := newHub(t), hub.Store{Dir: t.TempDir()}
	h.files["m-F16.gguf"] = append([]byte("begin"), make([]byte, 40<<20)...)
	for name, first := range map[string]string{"o/m": "config.json ", "o/m:F16": "m-F16.gguf ", "o/m:Q8_0": "m-Q8_0.gguf "} {
		n, err := hub.ParseName(name)
		require.NoError(t, err)
		h.ranges = nil
		done := int64(0)
		_, err = s.Pull(t.Context(), &hub.Hub{Endpoint: h.URL}, n, "", func(path string) error {
			if n.Variant == "" {
				path = filepath.Join(path, "config.json")
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.True(t, bytes.HasPrefix(h.files[strings.TrimSpace(first)], text))
			require.NotEmpty(t, text)
			return refusal
		}, func(p hub.Progress) { done = p.Done })
		require.ErrorIs(t, err, refusal)
		require.Equal(t, []string{first}, h.ranges)
		require.LessOrEqual(t, done, int64(32<<20))
		require.NoDirExists(t, filepath.Join(s.Dir, "o", "m.partial"))
	}
	m, err := pull(t, h, s, "o/m:F16")
	require.NoError(t, err)
	got, err := os.ReadFile(m.Path())
	require.NoError(t, err)
	require.True(t, bytes.Equal(h.files["m-F16.gguf"], got), "the rest follows the begin")
	require.Contains(t, h.ranges, "m-F16.gguf bytes=33554432-")
}

func TestFilesInFoldersThatAModelNeedsAreDownloaded(t *testing.T) {
	h, s := newHub(t), hub.Store{Dir: t.TempDir()}
	for _, name := range []string{"modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors",
		"3_Dense/pytorch_model.bin", "additional_chat_templates/tool_use.jinja"} {
		h.files[name] = []byte(`{"in": "` + name + `"}`)
	}
	h.files["1_Pooling/notes.json"], h.files["original/config.json"], h.files["2_Dense/pytorch_model.bin"] = []byte("{}"), []byte("{}"),
		[]byte("{}")
	m, err := pull(t, h, s, "o/m")
	require.NoError(t, err)
	requireWhole(t, h, m)
	require.FileExists(t, filepath.Join(m.Path(), "1_Pooling", "config.json"))
	require.NoFileExists(t, filepath.Join(m.Path(), "1_Pooling", "notes.json"))
	require.NoFileExists(t, filepath.Join(m.Path(), "2_Dense", "pytorch_model.bin"), "its safetensors are there")
	require.NoDirExists(t, filepath.Join(m.Path(), "original"))
}

func TestAHubThatCannotBeReachedIsNamedWithTheWaysOut(t *testing.T) {
	h := newHub(t)
	h.Close()
	_, err := pull(t, h, hub.Store{Dir: t.TempDir()}, "o/m")
	require.ErrorContains(t, err, "found no answer of "+h.URL+" (dial tcp")
	require.ErrorContains(t, err, "HF_ENDPOINT names another one, HF_HUB_OFFLINE=1 uses downloaded models only")
	require.NotContains(t, err.Error(), "/api/models")
}

func TestFilesOfAModelAreChosen(t *testing.T) {
	file := func(names ...string) (list []hub.File) {
		for _, n := range names {
			list = append(list, hub.File{Name: n})
		}
		return list
	}
	for _, c := range []struct {
		files []hub.File
		want  []string
		err   string
	}{
		{file("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
			"consolidated.safetensors"),
			[]string{"config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
			""},
		{file("config.json", "weights.safetensors", "chat_template.jinja", "merges.txt", "tokenizer.model"),
			[]string{"config.json", "chat_template.jinja", "merges.txt", "tokenizer.model", "weights.safetensors"}, ""},
		{file("pytorch_model.bin"), nil, "found no config.json with weights as .safetensors or pytorch_model.bin, expected both"},
		{file("config.json", "training_args.bin", "optimizer.bin"), nil, "found no config.json with weights"},
		{file("pytorch_model.bin", "training_args.bin", "merges.txt", "vocab.json", "config.json", "flax_model.msgpack"),
			[]string{"config.json", "merges.txt", "vocab.json", "pytorch_model.bin"}, ""},
		{file("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json", "tokenizer.model",
			"config.json"),
			[]string{"config.json", "pytorch_model.bin.index.json", "tokenizer.model", "pytorch_model-00001-of-00002.bin",
				"pytorch_model-00002-of-00002.bin"}, ""},
		{file("a-Q8_0.gguf", "a-Q4_0.gguf"), nil, "such as :Q8_0 (a-Q8_0.gguf, a-Q4_0.gguf)"},
	} {
		got, err := hub.Wanted(c.files, "")
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		var names []string
		for _, f := range got {
			names = append(names, f.Name)
		}
		require.Equal(t, c.want, names)
	}
	_, err := hub.Wanted(file("a-Q8_0.gguf", "b-Q8_0.gguf"), "Q8_0")
	require.ErrorContains(t, err, "found 2 GGUF files")

	parts := []string{"Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf"}
	all := append(file("config.json", "m-UD-Q4_K_M.gguf", "m.Q8_0.gguf", "mmproj-Q8_0.gguf", "m-Q6_K-00001-of-00002.gguf"),
		file(parts[1], parts[0])...)
	for variant, want := range map[string][]string{
		"q4_k_m": parts, "m-Q4_K_M": parts, "UD-Q4_K_M": {"m-UD-Q4_K_M.gguf"}, "Q8_0": {"m.Q8_0.gguf"}, "m-UD-Q4_K_M": {"m-UD-Q4_K_M.gguf"},
	} {
		got, err := hub.Wanted(all, variant)
		require.NoError(t, err, variant)
		require.Equal(t, file(want...), got, variant)
	}
	_, err = hub.Wanted(all, "Q6_K")
	require.ErrorContains(t, err, `found 1 GGUF files of variant "Q6_K" (m-Q6_K-00001-of-00002.gguf), expected 2`)
	_, err = hub.Wanted(all, "Q5_K")
	require.ErrorContains(t, err, `found no GGUF file of variant "Q5_K"`)
}
