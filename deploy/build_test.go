package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// A clone that was moved has CMake's cache of the old folder.
func TestABuildTreeOfAnotherFolderIsMadeAgain(t *testing.T) {
	root := t.TempDir()
	tree, sources := filepath.Join(root, "build/kernels"), filepath.Join(root, "kernels")
	require.NoError(t, os.MkdirAll(sources, 0o755))
	for name, c := range map[string]struct {
		tree, sources string
		kept          bool
	}{
		"its own":             {tree, sources, true},
		"moved":               {"/old/build/kernels", "/old/kernels", false},
		"copied, the old one": {"/usr", "/usr", false},
		"other sources":       {tree, "/usr", false},
	} {
		require.NoError(t, os.MkdirAll(tree, 0o755))
		cache := "CMAKE_CACHEFILE_DIR:INTERNAL=" + c.tree + "\nCMAKE_HOME_DIRECTORY:INTERNAL=" + c.sources + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(tree, "CMakeCache.txt"), []byte(cache), 0o644))
		out, err := exec.Command("../scripts/build/own-tree.sh", tree, sources).CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
		_, err = os.Stat(tree)
		require.Equal(t, c.kept, err == nil, "%s: %s", name, out)
	}
	for _, script := range []string{"kernels.sh", "sycl.sh", "cuda.sh"} {
		text, err := os.ReadFile("../scripts/build/" + script)
		require.NoError(t, err)
		require.Contains(t, string(text), "own-tree.sh", script)
	}
}

func TestAllDocumentsAndScriptsNameOneVersionOfNode(t *testing.T) {
	named := regexp.MustCompile(`Node (\d[\d.]*\d|\d+)`)
	for _, file := range []string{"README.md", "CONTRIBUTING.md", "Makefile", "scripts/build/node.sh", "scripts/build/page.sh",
		"scripts/sdks/install.sh"} {
		text, err := os.ReadFile("../" + file)
		require.NoError(t, err)
		for _, found := range named.FindAllStringSubmatch(string(text), -1) {
			require.Equal(t, "20.19", found[1], file)
		}
	}
}
