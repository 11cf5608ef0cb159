package compute_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
)

// TestAStepOnWeightsThatWereCutShortNamesTheFile runs itself as another process: the kernels
// read the page that is gone, in a thread that is not Go's.
func TestAStepOnWeightsThatWereCutShortNamesTheFile(t *testing.T) {
	if dir := os.Getenv("MILLRACE_TEST_CUT"); dir != "" {
		m := open(t, compute.Options{Dir: dir})
		require.NoError(t, os.Truncate(filepath.Join(dir, "model.safetensors"), 100))
		logits(t, m)
		return
	}
	dir := copied(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "MILLRACE_TEST_CUT="+dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	require.Equal(t, 1, exit.ExitCode(), "%s", out)
	require.Contains(t, string(out), "millrace: "+filepath.Join(dir, "model.safetensors")+": found a page that is gone")
	require.NotContains(t, string(out), "goroutine")
}
