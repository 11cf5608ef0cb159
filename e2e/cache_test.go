package e2e_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheSecondStartCompilesNothing checks in the trace of the SYCL runtime that neither the front
// end nor the device's compiler runs.
func TestTheSecondStartCompilesNothing(t *testing.T) {
	path := sycl.program(t)
	env := []string{"XDG_CACHE_HOME=" + t.TempDir(), "SYCL_CACHE_TRACE=5"} // 1: of device code, 4: of the front end
	start := func() string {
		out, err := runProgram(path, env, "generate", "--backend", "sycl", "--device", "cpu", "--model", demoModel, "--prompt", "Once",
			"-n", "1")
		require.NoError(t, err, out)
		return out
	}
	const kept, found = "has been cached", "using cached device binary"
	require.Contains(t, start(), kept)
	second := start()
	require.NotContains(t, second, kept)
	require.Equal(t, 3, strings.Count(second, found), "images of two bundles:\n%s", second)
}
