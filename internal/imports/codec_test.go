package imports

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFormatsOnlyEncodeAndDecode keeps what runs a call out of the folders of the APIs' formats.
func TestFormatsOnlyEncodeAndDecode(t *testing.T) {
	for _, format := range []string{"anthropic", "llamacpp", "lmstudio", "ollama", "openai", "responses"} {
		files, err := filepath.Glob("../../api/" + format + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files, format)
		for _, name := range files {
			if !strings.HasSuffix(name, "_test.go") {
				require.Empty(t, running(t, name, nil), name)
			}
		}
	}
	bad := `package openai
		import ("context"; "github.com/millrace/millrace/api"; "github.com/millrace/millrace/api/call")
		func f(ctx context.Context, e api.Engine, r call.Runner, c chan int) { go f(ctx, e, r, c) }`
	require.Equal(t, []string{`"context"`, "api.Engine", "call.Runner", "chan", "go"}, running(t, "bad.go", bad))
}

// running returns what a codec does not have: contexts, locks, networks, channels, goroutines, and
// the types that run calls. source is as for parser.ParseFile.
func running(t *testing.T, name string, source any) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
	require.NoError(t, err)
	for _, i := range file.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		require.NoError(t, err)
		if slices.Contains([]string{"context", "sync", "sync/atomic", "net", "os"}, path) || strings.HasPrefix(path, "net/") {
			found = append(found, i.Path.Value)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ChanType:
			found = append(found, "chan")
		case *ast.GoStmt:
			found = append(found, "go")
		case *ast.SelectorExpr:
			if of := fmt.Sprintf("%s.%s", n.X, n.Sel); slices.Contains([]string{"api.Engine", "api.Stream", "call.Runner", "call.Answer",
				"call.Direct"}, of) {
				found = append(found, of)
			}
		}
		return true
	})
	return found
}
