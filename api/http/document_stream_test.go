package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
)

// TestTheDocumentDescribesEachEventAndLineOfAStream: also the last ones, and errors.
func TestTheDocumentDescribesEachEventAndLineOfAStream(t *testing.T) {
	broken := false
	srv := serve(t, apitest.New(func(r *api.Request, s *apitest.Stream) {
		if s.Send(api.Event{Text: "Hel", Tokens: []int32{1}}); broken {
			s.Send(api.Event{Finish: api.FinishError, Err: api.Invalid("", "broken"), Done: true})
			return
		}
		apitest.Say("lo")(r, s)
	}), httpapi.Options{})
	resp, err := http.Get(srv.URL + "/openapi.json")
	require.NoError(t, err)
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(read(t, resp)))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("openapi.json", document))
	const chat = `{"stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`
	for _, broken = range []bool{false, true} {
		for path, body := range map[string]string{
			"/v1/chat/completions": chat, "/v1/messages": chat, "/api/chat": chat,
			"/v1/completions": `{"prompt":"hi","stream":true}`, "/v1/responses": `{"input":"hi","stream":true}`,
			"/api/generate": `{"prompt":"hi"}`,
		} {
			resp := post(t, srv, path, body)
			kind, text := resp.Header.Get("Content-Type"), strings.TrimSpace(read(t, resp))
			escape := strings.NewReplacer("/", "~1").Replace
			schema,
				err := compiler.Compile("openapi.json#/paths/" + escape(path) + "/post/responses/200/content/" + escape(kind) + "/schema")
			require.NoError(t, err)
			parts := linesOf
			if kind == "text/event-stream" {
				parts = eventsOf
			}
			values := parts(t, text)
			require.Greater(t, len(values), 1, text)
			for _, value := range values {
				require.NoError(t, schema.Validate(value), "%s: %v", path, value)
			}
		}
	}
}

// linesOf returns the values of lines of JSON.
func linesOf(t *testing.T, text string) (values []any) {
	t.Helper()
	for line := range strings.Lines(text) {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		require.NoError(t, err, line)
		values = append(values, value)
	}
	return values
}

// eventsOf returns the fields of server-sent events.
func eventsOf(_ *testing.T, text string) (values []any) {
	for part := range strings.SplitSeq(text, "\n\n") {
		event := map[string]any{}
		for line := range strings.Lines(part) {
			name, field, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			event[name] = field
		}
		values = append(values, event)
	}
	return values
}
