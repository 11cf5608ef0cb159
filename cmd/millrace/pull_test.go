package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// servesDemo is a hub whose model o/tiny is the demo model.
func servesDemo(t *testing.T) {
	demo := absolute(t, "../../models/tiny-chat")
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
			siblings = append(siblings, map[string]any{"rfilename": e.Name(), "lfs": map[string]any{"sha256": hex.EncodeToString(sum[:]), "size": len(content)}})
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
	require.Contains(t, stderr, `found no folder "o/tiny" and no downloaded model of that name, expected one of them: "millrace pull o/tiny" downloads it`)

	code, stdout, stderr := millrace(t, nil, "pull", "o/tiny")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "millrace serve o/tiny serves it.")

	code, stdout, stderr = millrace(t, nil, "models")
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `(?m)^o/tiny +[0-9.]+ .B +c0 +\d{4}-`, stdout)

	args := []string{"generate", "--prompt", "The capital of", "-n", "5", "--temperature", "0", "--json"}
	_, want, stderr := millrace(t, nil, args...)
	code, got, stderr2 := millrace(t, nil, append(args, "--model", "o/tiny")...)
	require.Equal(t, 0, code, stderr+stderr2)
	require.Equal(t, want, got)

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
