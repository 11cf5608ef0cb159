package imports

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const cpu = "../../kernels/cpu/"

// TestCPUKernelsIncludeWhatTheirReadmeSays compares the #include lines of each folder of kernels/cpu
// with the table of its README.
func TestCPUKernelsIncludeWhatTheirReadmeSays(t *testing.T) {
	readme, err := os.ReadFile(cpu + "README.md")
	require.NoError(t, err)
	allowed := folderTable(string(readme))
	require.Nil(t, allowed.circle())
	files, err := filepath.Glob(cpu + "*/*pp")
	require.NoError(t, err)
	used := graph{}
	for _, file := range files {
		from, err := filepath.Rel(cpu, filepath.Dir(file))
		require.NoError(t, err)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		used[from] = append(used[from], includes(from, string(text))...)
	}
	require.Len(t, used, len(allowed), "folders")
	for folder, list := range used {
		slices.Sort(list)
		require.ElementsMatch(t, allowed[folder], slices.Compact(list), "folders that %s includes", folder)
	}
}

var (
	folderRow  = regexp.MustCompile("(?m)^\\| `(\\w+)/` \\|.*\\|(.*)\\|$")
	folderName = regexp.MustCompile("`(\\w+)/`")
	cpuInclude = regexp.MustCompile(`(?m)^#include "cpu/([^/"]+)[/"]`)
)

// folderTable reads a table whose rows begin with a folder and end with the folders that it uses.
func folderTable(text string) graph {
	g := graph{}
	for _, row := range folderRow.FindAllStringSubmatch(text, -1) {
		g[row[1]] = nil
		for _, name := range folderName.FindAllStringSubmatch(row[2], -1) {
			g[row[1]] = append(g[row[1]], name[1])
		}
	}
	return g
}

// includes lists the other folders, and files, of kernels/cpu that a file of a folder includes.
func includes(folder, text string) (list []string) {
	for _, m := range cpuInclude.FindAllStringSubmatch(text, -1) {
		if m[1] != folder {
			list = append(list, m[1])
		}
	}
	return list
}

func TestIncludesAreFound(t *testing.T) {
	table := folderTable(strings.Join([]string{"| folder | what | uses |", "|---|---|---|", "| `a/` | `c/` | |",
		"| `b/` | x | `a/`, `c/` |"}, "\n"))
	require.Equal(t, graph{"a": nil, "b": {"a", "c"}}, table)
	require.Equal(t, []string{"b", "program.hpp"}, includes("a",
		"#include \"cpu/a/x.hpp\"\n#include \"cpu/b/y.hpp\"\n#include \"cpu/program.hpp\"\n#include \"exec/kv.hpp\"\n"))
}
