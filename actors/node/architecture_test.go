package node

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/millrace/millrace/api"
)

// section returns the text of the part of docs/architecture.md that follows a request.
func section(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\n## One request\n")
	require.True(t, found)
	part, _, _ := strings.Cut(after, "\n## ")
	return part
}

// TestTheFunctionsOfARequestsPathExist resolves every function that docs/architecture.md names on
// the path of a request.
func TestTheFunctionsOfARequestsPathExist(t *testing.T) {
	names := regexp.MustCompile("`([A-Za-z.]+)`").FindAllString(section(t), -1)
	references := regexp.MustCompile("\\[`([A-Za-z.]+)`\\]\\(\\.\\./([^)]+\\.go)\\)").FindAllStringSubmatch(section(t), -1)
	require.Greater(t, len(references), 25, "of %d names", len(names))
	files := map[string]map[string]bool{}
	for _, r := range references {
		name, path := r[1], filepath.Join("../..", r[2])
		if files[path] == nil {
			files[path] = functions(t, path)
		}
		if !files[path][name] {
			t.Errorf("docs/architecture.md names %s, which is not in %s", name, r[2])
		}
	}
}

// functions are those of a Go file, methods with the name of their type before them.
func functions(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	found := map[string]bool{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			of := f.Recv.List[0].Type
			if p, ok := of.(*ast.StarExpr); ok {
				of = p.X
			}
			if of, ok := of.(*ast.Ident); ok {
				name = of.Name + "." + name
			}
		}
		found[name] = true
	}
	return found
}

// TestTheSpansOfARequestHaveTheOrderOfItsPath compares the spans that docs/architecture.md names with
// those of a traced chat request, in the order in which they end.
func TestTheSpansOfARequestHaveTheOrderOfItsPath(t *testing.T) {
	var named []string
	for _, m := range regexp.MustCompile("span `([a-z]+)`").FindAllStringSubmatch(section(t), -1) {
		named = append(named, m[1])
	}
	recorder := tracetest.NewSpanRecorder()
	cfg := testConfig(t, newTestDevice(64))
	cfg.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	p := start(t, cfg)
	r := tokensRequest("chat", nil, 8)
	r.Messages = []api.Message{{Role: "user", Content: "Once"}}
	s, err := p.Submit(t.Context(), r)
	require.NoError(t, err)
	_, last, err := read(s)
	require.NoError(t, err)
	require.Equal(t, api.FinishLength, last.Finish)
	require.Eventually(t, func() bool { return len(recorder.Ended()) == 1+len(named) }, patience, time.Millisecond, "the request and %q",
		named)
	spans := recorder.Ended()
	slices.SortFunc(spans, func(a, b sdktrace.ReadOnlySpan) int {
		return cmp.Compare(a.EndTime().UnixNano(), b.EndTime().UnixNano())
	})
	var ended []string
	for _, s := range spans {
		if s.Parent().IsValid() {
			ended = append(ended, s.Name())
		}
	}
	require.Equal(t, named, ended)
}
