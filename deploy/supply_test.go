package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every requirement of a lock file must have a hash: --require-hashes refuses the others only when it runs.
func TestPythonWheelsArePinnedByHash(t *testing.T) {
	files, err := filepath.Glob("../scripts/build/*.txt")
	require.NoError(t, err)
	require.Len(t, files, 7)
	requirement := regexp.MustCompile(`(?m)^([a-z][a-z0-9_.-]*)==\S+( \\)?$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		found := requirement.FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, found, file)
		for _, r := range found {
			require.NotEmpty(t, r[2], "%s: %s has no hash", file, r[1])
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			known := line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "--hash=sha256:") ||
				requirement.MatchString(line)
			require.True(t, known, "%s: %s", file, line)
		}
	}
	scripts, err := filepath.Glob("../scripts/build/*.sh")
	require.NoError(t, err)
	for _, script := range append(scripts, "../scripts/audit.sh", "../scripts/test-sycl-aot.sh") {
		text, err := os.ReadFile(script)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "/pip\" install") {
				require.Contains(t, line, "--require-hashes", script)
			}
		}
	}
}
