package lab_test

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module = "github.com/millrace/millrace/"
	lab    = module + "lab"
)

// pkg is what go list prints of a package.
type pkg struct {
	ImportPath                         string
	Deps                               []string
	Imports, TestImports, XTestImports []string
}

// list runs go list in the module's root.
func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Deps,Imports,TestImports,XTestImports"},
		args...)...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	require.NoError(t, err)
	var all []pkg
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

func isLab(path string) bool { return path == lab || strings.HasPrefix(path, lab+"/") }

// TestServingDoesNotImportResearch: only research itself, the command, benchmarks and e2e tests
// may import a package of lab, tests included.
func TestServingDoesNotImportResearch(t *testing.T) {
	packages := list(t, "./...")
	require.True(t, slices.ContainsFunc(packages, func(p pkg) bool { return isLab(p.ImportPath) }), "go list found no research")
	for _, p := range packages {
		folder, _, _ := strings.Cut(strings.TrimPrefix(p.ImportPath, module), "/")
		if slices.Contains([]string{"lab", "benchmarks", "e2e"}, folder) || p.ImportPath == module+"cmd/millrace" {
			continue
		}
		for _, path := range slices.Concat(p.Deps, p.TestImports, p.XTestImports) {
			require.False(t, isLab(path), "%s imports %s", p.ImportPath, path)
		}
	}
}

// TestOnlyCommandsOfResearchImportIt: in cmd/millrace, the files of the commands bench, eval,
// explain, plan and simulate.
func TestOnlyCommandsOfResearchImportIt(t *testing.T) {
	files, err := filepath.Glob("../cmd/millrace/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		command, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".go"), "_")
		if slices.Contains([]string{"bench", "eval", "explain", "plan", "simulate"}, command) {
			continue
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, i := range syntax.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			require.NoError(t, err)
			require.False(t, isLab(path), "%s imports %s", file, path)
		}
	}
}
