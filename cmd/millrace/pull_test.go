package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/models/hub"
)

// servesDemo is a hub whose model o/tiny is the demo model.
func servesDemo(t *testing.T) { servesModel(t, absolute(t, "../../models/tiny-chat")) }

// servesModel is a hub whose model o/tiny is a folder.
func servesModel(t *testing.T, demo string) {
	entries, err := os.ReadDir(demo)
	require.NoError(t, err)
	files := http.StripPrefix("/o/tiny/resolve/c0/", http.FileServer(http.Dir(demo)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/api/models/o/tiny/revision/") {
			files.ServeHTTP(w, r)
			return
		}
		var siblings []map[string]any
		for _, e := range entries {
			content, err := os.ReadFile(filepath.Join(demo, e.Name()))
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			sum := sha256.Sum256(content)
			siblings = append(siblings, map[string]any{"rfilename": e.Name(),
				"lfs": map[string]any{"sha256": hex.EncodeToString(sum[:]), "size": len(content)}})
		}
		json.NewEncoder(w).Encode(map[string]any{"sha": "c0", "siblings": siblings}) //nolint:errcheck // the client notices
	}))
	t.Cleanup(s.Close)
	t.Setenv("HF_ENDPOINT", s.URL)
	t.Setenv("XDG_DATA_HOME", t.TempDir())
}

func TestAPulledModelIsUsedByItsName(t *testing.T) {
	servesDemo(t)
	code, _, stderr := millrace(t, nil, "generate", "--model", "o/tiny", "--prompt", "Hello")
	require.Equal(t, 1, code)
	require.Contains(t, stderr,
		`found no folder "o/tiny" and no downloaded model of that name, expected one of them: "millrace pull o/tiny" downloads it`)

	code, stdout, stderr := millrace(t, nil, "pull", "o/tiny")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "millrace serve o/tiny serves it.")
	require.Regexp(t,
		`o/tiny: LlamaForCausalLM, 8 layers, up to 2048 tokens. It needs 16.0 MiB of memory \(9.1 MiB with --weights int8\), and 3.9 MiB for the KV cache of 1000 tokens. .* available.`, stderr)

	code, stdout, stderr = millrace(t, nil, "models")
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `(?m)^o/tiny +[0-9.]+ .B +c0 +\d{4}-`, stdout)

	args := []string{"generate", "--prompt", "The capital of", "-n", "5", "--temperature", "0", "--json"}
	_, want, stderr := millrace(t, nil, args...)
	for _, model := range [][]string{{"--model", "o/tiny"}, {"o/tiny"}} {
		code, got, stderr2 := millrace(t, nil, append(args, model...)...)
		require.Equal(t, 0, code, stderr+stderr2)
		require.Equal(t, want, got)
	}

	code, _, stderr = millrace(t, nil, "serve", "o/tiny", "--model", "o/other")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, `found MODEL "o/tiny" and --model "o/other", expected one of them`)

	code, stdout, stderr = millrace(t, nil, "models", "remove", "o/tiny")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, "removed o/tiny\n", stdout)
	code, stdout, stderr = millrace(t, nil, "models", "--json")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, "[]\n", stdout)
	code, _, stderr = millrace(t, nil, "models", "remove", "o/tiny")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "o/tiny: file does not exist")
}

func TestAModelThatIsNotServedIsNamedBeforeItsDownload(t *testing.T) {
	demo := os.DirFS(absolute(t, "../../models/tiny-chat"))
	for architecture, want := range map[string]string{
		"RwkvForCausalLM":    "o/tiny is not served, and is not downloaded: architectures: found RwkvForCausalLM, expected an architecture of docs/models.md",
		"Qwen3VxForCausalLM": "where the nearest are Qwen3ForCausalLM, ",
	} {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, demo))
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		require.NoError(t, err)
		text = bytes.Replace(text, []byte("LlamaForCausalLM"), []byte(architecture), 1)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
		servesModel(t, dir)
		code, stdout, stderr := millrace(t, nil, "pull", "o/tiny")
		require.Equal(t, 1, code)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.NoDirExists(t, filepath.Join(os.Getenv("XDG_DATA_HOME"), "millrace", "models", "o", "tiny.partial"))
	}
}

// TestAGGUFFileIsReadFromItsBegin as far as it is there.
func TestAGGUFFileIsReadFromItsBegin(t *testing.T) {
	n := hub.Name{Owner: "o", Repo: "m", Variant: "Q8_0"}
	whole, err := os.ReadFile("../../testdata/quantized/gguf/qwen2.gguf")
	require.NoError(t, err)
	for size, want := range map[int]string{len(whole): "o/m:Q8_0: Qwen2ForCausalLM, ", len(whole) / 2: "o/m:Q8_0: Qwen2ForCausalLM, ",
		800: "the begin of the file does not show"} {
		path := filepath.Join(t.TempDir(), "m.gguf.partial")
		require.NoError(t, os.WriteFile(path, whole[:size], 0o600))
		about, err := admit(n, path)
		require.NoError(t, err)
		require.Contains(t, about, want)
	}
	path := filepath.Join(t.TempDir(), "m.gguf.partial")
	require.NoError(t, os.WriteFile(path, bytes.Replace(whole, []byte("qwen2"), []byte("rwkv6"), 1), 0o600))
	_, err = admit(n, path)
	require.ErrorContains(t, err,
		`o/m:Q8_0 is not served, and is not downloaded: general.architecture: found "rwkv6", expected a GGUF architecture of docs/models.md, where the nearest are `)
}

func TestWithoutANetworkDownloadedModelsAreUsed(t *testing.T) {
	servesDemo(t)
	t.Setenv("HF_HUB_OFFLINE", "1")
	code, _, stderr := millrace(t, nil, "pull", "o/tiny")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "o/tiny: found no downloaded model of that name, expected one, since HF_HUB_OFFLINE is set")
	t.Setenv("HF_HUB_OFFLINE", "no")
	code, _, stderr = millrace(t, nil, "pull", "o/tiny")
	require.Equal(t, 0, code, stderr)
	t.Setenv("HF_HUB_OFFLINE", "true")
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	code, stdout, stderr := millrace(t, nil, "pull", "o/tiny")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "millrace serve o/tiny serves it.")
}

// TestAModelIsNamedAsItWasPulled in the API, and a file by its name.
func TestAModelIsNamedAsItWasPulled(t *testing.T) {
	here := absolute(t, ".")
	servesDemo(t)
	code, _, stderr := millrace(t, nil, "pull", "o/tiny")
	require.Equal(t, 0, code, stderr)
	t.Chdir(here)
	for text, want := range map[string]string{
		"": "tiny-chat", "o/tiny": "o/tiny", "../../models/tiny-chat": "tiny-chat", ".": "millrace",
		"../../testdata/quantized/gguf/qwen2.gguf": "qwen2",
	} {
		var s config.Serve
		s.Register(pflag.NewFlagSet("", pflag.ContinueOnError))
		s.Model = text
		require.NoError(t, nameModel(&s))
		require.Equal(t, want, s.ServedModelName)
		s.Model, s.ServedModelName = text, "mine"
		require.NoError(t, nameModel(&s))
		require.Equal(t, "mine", s.ServedModelName)
	}
}

func TestAPathThatIsNoModelIsNamed(t *testing.T) {
	servesDemo(t)
	for text, want := range map[string]string{
		"/nonexistent":  `found no folder or file "/nonexistent", expected one, or OWNER/NAME of a downloaded model: "millrace pull OWNER/NAME" downloads one`,
		"qwen":          `found no folder or file "qwen", expected one, or OWNER/NAME`,
		"./x.gguf":      `found no folder or file "./x.gguf"`,
		"/etc/passwd":   `found "/etc/passwd", which is no folder and whose name does not end in .gguf, expected a model's folder or a GGUF file`,
		"/etc/passwd/x": `--model: stat /etc/passwd/x: not a directory`,
		"models/tiny":   `found no folder "models/tiny" and no downloaded model of that name, expected one of them: "millrace pull models/tiny" downloads it`,
		absolute(t, "../../models/tiny-chat/model.safetensors"): `a file of weights, expected its folder, with config.json: "` +
			absolute(t, "../../models/tiny-chat") + `"`,
	} {
		code, _, stderr := millrace(t, nil, "generate", "--chat", "Hi", "--model", text)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, want)
	}
	code, _, stderr := millrace(t, nil, "pull", "o/tiny")
	require.Equal(t, 0, code, stderr)
	_, _, stderr = millrace(t, nil, "generate", "--chat", "Hi", "--model", "tiny")
	require.Contains(t, stderr, "OWNER/NAME of a downloaded model: downloaded are o/tiny")
}

func TestTheNameOfAModelIsChecked(t *testing.T) {
	for _, args := range [][]string{{"pull", "tiny"}, {"models", "remove", "../x"}} {
		code, _, stderr := millrace(t, nil, args...)
		require.Equal(t, 2, code)
		require.Contains(t, stderr, "expected OWNER/NAME, or OWNER/NAME:VARIANT")
	}
}

func TestSizesAreReadable(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 2_069_209_088: "2.1 GB", 5e15: "5000.0 TB"} {
		require.Equal(t, want, byteCount(n))
	}
}
