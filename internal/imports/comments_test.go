package imports

import (
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEachPackageSaysWhatItMustNotKnow: a package's comment says what it does, and then what it must
// not know. The examples are for readers of other programs.
func TestEachPackageSaysWhatItMustNotKnow(t *testing.T) {
	cmd := exec.Command("go", "list", "-f", `{{.Dir}} {{join .GoFiles " "}} {{join .CgoFiles " "}}`, "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	var missing []string
	found := 0
	for line := range strings.Lines(string(out)) {
		names := strings.Fields(line)
		folder, err := filepath.Rel(root, names[0])
		require.NoError(t, err)
		if len(names) == 1 || within(folder, "examples") {
			continue // tests alone have no package for others
		}
		found++
		if !saysItsLimit(packageComment(t, names[0], names[1:])) {
			missing = append(missing, folder)
		}
	}
	require.Greater(t, found, 50, "packages")
	require.Empty(t, missing, `packages without a comment that has "must not know"`)
}

// packageComment is the text above the package clause, in one line.
func packageComment(t *testing.T, dir string, files []string) string {
	t.Helper()
	var text []string
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, file), nil, parser.PackageClauseOnly|parser.ParseComments)
		require.NoError(t, err)
		text = append(text, strings.Fields(f.Doc.Text())...)
	}
	return strings.Join(text, " ")
}

// saysItsLimit reports whether a comment begins with what a package does and then names what it must not know.
func saysItsLimit(comment string) bool {
	does, limit, ok := strings.Cut(comment, ". ")
	return ok && (strings.HasPrefix(does, "Package ") || strings.HasPrefix(does, "Command ")) &&
		(strings.Contains(limit, "must not know ") || strings.Contains(limit, "knows no "))
}

func TestACommentWithoutAHalfIsFound(t *testing.T) {
	require.True(t, saysItsLimit("Package a adds. It must not know what it adds."))
	for _, comment := range []string{"", "Package a adds.", "Package a adds. It is fast.", "It must not know what it adds.",
		"Package a must not know b."} {
		require.False(t, saysItsLimit(comment), comment)
	}
}
