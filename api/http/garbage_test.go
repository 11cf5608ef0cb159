package httpapi_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/api/http/httpserver"
	"github.com/millrace/millrace/api/openai"
)

func TestGarbageIsAnsweredInOpenAIsShapeAndTheServerLives(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("alive")), httpapi.Options{})
	for _, c := range []struct {
		name, body string
		status     int
	}{
		{"empty", "", 400},
		{"not JSON", "hello", 400},
		{"binary", "\x00\x01\xff\xfe", 400},
		{"two values", hello + `}{}`, 400},
		{"wrong type", hello + `,"max_tokens":"many"}`, 400},
		{"negative", hello + `,"max_tokens":-1}`, 400},
		{"NaN", hello + `,"temperature":NaN}`, 400},
		{"infinity", hello + `,"temperature":1e999}`, 400},
		{"empty messages", `{"messages":[]}`, 400},
		{"invalid UTF-8", `{"messages":[{"role":"user","content":"` + "\xc3\x28" + `"}]}`, 400},
		{"half a surrogate pair", `{"messages":[{"role":"user","content":"\ud83d"}]}`, 400},
		{"deep", strings.Repeat(`{"a":`, 1<<16), 400},
		{"unknown model", `{"model":"nope","messages":[{"role":"user","content":"x"}]}`, 404},
		{"10 MB", hello + `,"user":"` + strings.Repeat("x", 10<<20) + `"}`, 413},
		{"10 MB of spaces", strings.Repeat(" ", 10<<20), 413},
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"} {
			resp := post(t, srv, path, c.body)
			if path == "/v1/chat/completions" {
				require.Equal(t, c.status, resp.StatusCode, c.name)
			} else if resp.StatusCode == 200 { // fields of a chat, which mean nothing to it
				require.Equal(t, "/tokenize", path)
				require.Contains(t, []string{"wrong type", "negative", "infinity"}, c.name)
				continue
			}
			require.GreaterOrEqual(t, resp.StatusCode, 400, "%s %s", path, c.name)
			require.Less(t, resp.StatusCode, 500, "%s %s", path, c.name)
			var e openai.ErrorBody
			strict(t, read(t, resp), &e)
			require.NotEmpty(t, e.Error.Message)
			require.NotEmpty(t, e.Error.Type)
			require.NotEmpty(t, resp.Header.Get("X-Request-Id"))
		}
	}
	var a openai.ChatCompletion
	strict(t, read(t, post(t, srv, "/v1/chat/completions", hello+`}`)), &a)
	require.Equal(t, "alive", *a.Choices[0].Message.Content)
}

func TestABodyThatNeverArrivesIsGivenUp(t *testing.T) {
	srv := serveWithin(t, apitest.New(nil), httpapi.Options{}, httpserver.Limits{Body: 20 * time.Millisecond})
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"mess")
	require.NoError(t, err)
	answer, err := io.ReadAll(conn) // ends: the server closes
	require.NoError(t, err)
	require.Contains(t, string(answer), "HTTP/1.1 408")
	require.Contains(t, string(answer), "body_timeout")
	require.NotContains(t, string(answer), "127.0.0.1")
	require.Contains(t, string(answer), `"type":"invalid_request_error"`)
}

func TestTheDocumentDescribesEveryServedPath(t *testing.T) {
	srv := serve(t, apitest.New(nil), httpapi.Options{Version: "1.2.3", Metrics: http.NotFoundHandler()})
	_, _, body := get(t, srv.URL+"/openapi.json")
	var doc struct {
		OpenAPI string
		Info    struct{ Version string }
		Paths   map[string]map[string]struct{ OperationID string }
	}
	require.NoError(t, json.Unmarshal([]byte(body), &doc))
	require.Equal(t, "3.1.0", doc.OpenAPI)
	require.Equal(t, "1.2.3", doc.Info.Version)
	for path, method := range map[string]string{
		"/v1/chat/completions": "post", "/v1/completions": "post", "/tokenize": "post", "/detokenize": "post",
		"/v1/models": "get", "/v1/models/{id}": "get", "/health/live": "get", "/health/ready": "get", "/metrics": "get",
		"/v1/messages": "post", "/v1/responses": "post", "/v1/messages/count_tokens": "post", "/api/chat": "post", "/api/generate": "post",
		"/api/show": "post", "/api/tags": "get", "/api/ps": "get", "/api/version": "get", "/v1/responses/{id}": "delete",
		"/v1/responses/{id}/input_items": "get", "/v1/responses/{id}/cancel": "post", "/v1/files": "post", "/v1/files/{id}": "delete",
		"/v1/files/{id}/content": "get", "/v1/batches": "post", "/v1/batches/{id}": "get", "/v1/batches/{id}/cancel": "post",
		"/v1/classify": "post", "/v1/decisions": "post", "/v1/embeddings": "post", "/v1/rerank": "post", "/v1/score": "post",
		"/v1/chat/completions/render": "post", "/api/embed": "post", "/api/embeddings": "post", "/api/v0/chat/completions": "post",
		"/api/v0/completions": "post", "/api/v0/embeddings": "post", "/api/v0/models": "get", "/api/v0/models/{id}": "get",
		"/api/v1/models": "get",
	} {
		require.Contains(t, doc.Paths[path], method, path)
	}
	require.Len(t, doc.Paths, 46)
}
