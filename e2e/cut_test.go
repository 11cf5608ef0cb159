package e2e_test

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAServerWhoseWeightsAreCutShortNamesTheFileAndExitsWithOne truncates the checkpoint, whose pages
// every step reads.
func TestAServerWhoseWeightsAreCutShortNamesTheFileAndExitsWithOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(dir, os.DirFS(demoModel)))
	s := startServer(t, "--model", dir)
	path := filepath.Join(dir, "model.safetensors")
	require.NoError(t, os.Truncate(path, 100))
	r, err := http.Post("http://"+s.http+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"Hello","max_tokens":8}`))
	if err == nil { // an answer that ends early
		require.NoError(t, r.Body.Close())
	}
	select {
	case err := <-s.ended:
		exit, ok := errors.AsType[*exec.ExitError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, 1, exit.ExitCode())
	case <-time.After(patience):
		require.Fail(t, "the server is still there")
	}
	log := s.log.String()
	require.Contains(t, log, "millrace: "+path+": found a page that is gone or cannot be read")
	require.NotContains(t, log, "goroutine")
	require.NotContains(t, log, "SIGBUS")
}
