package httpapi_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
)

func TestHealthAnswersWhereOtherServersHaveIt(t *testing.T) {
	e := apitest.New(nil)
	srv := serve(t, e, httpapi.Options{Version: "1.2.3"})
	for _, path := range []string{"/health", "/v1/health", "/ping", "/health/"} {
		e.NotReady = nil
		code, _, body := get(t, srv.URL+path)
		require.Equal(t, 200, code, path)
		require.JSONEq(t, `{"status":"ok"}`, body)
		head, err := http.Head(srv.URL + path)
		require.NoError(t, err)
		head.Body.Close()
		require.Equal(t, 200, head.StatusCode)
		e.NotReady = errors.New("no step for 31 s")
		code, h, body := get(t, srv.URL+path)
		require.Equal(t, 503, code, path)
		require.Equal(t, "1", h.Get("Retry-After"))
		require.Contains(t, body, "no step for 31 s")
	}
	e.NotReady = nil
	_, _, body := get(t, srv.URL+"/version")
	require.JSONEq(t, `{"version":"1.2.3"}`, body)
}

func TestSlashesOfJoinedURLsChangeNoPath(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("Hi")), httpapi.Options{})
	_, _, list := get(t, srv.URL+"/v1/models")
	for _, path := range []string{"/v1/models/", "//v1/models", "/v1//models//", "/v1/models/?limit=1"} {
		code, _, body := get(t, srv.URL+path)
		require.Equal(t, 200, code, path)
		require.JSONEq(t, list, body, path)
	}
	for _, path := range []string{"/v1/models/tiny-chat/", "//v1/models/tiny-chat"} {
		_, _, body := get(t, srv.URL+path)
		require.Contains(t, body, `"id":"tiny-chat","object":"model"`, path)
	}
	code, _, body := get(t, srv.URL+"/v1/models/org%2Fother/")
	require.Equal(t, 404, code)
	require.Contains(t, body, "org/other")
	for _, path := range []string{"/v1/chat/completions/", "//v1/chat/completions", "/api/chat/"} {
		require.Equal(t, 200, post(t, srv, path, hello+`,"stream":false}`).StatusCode, path)
	}
}

func TestAnUnknownPathHasTheErrorOfItsAPI(t *testing.T) {
	srv := serve(t, apitest.New(nil), httpapi.Options{})
	for path, want := range map[string]string{
		"/api/pull": `{"error":"unknown path: POST /api/pull"}`, "/api/delete/": `{"error":"unknown path: POST /api/delete"}`,
		"/api":                 `{"error":"unknown path`,
		"/api/blobs/sha256:0":  `{"error":"unknown path`,
		"/v1/messages/batches": `{"type":"error","error":{"type":"not_found_error","message":"unknown path`,
		"/v1/messagesx":        `{"error":{"message":"unknown path`, "/api/v0/x": `{"error":{"message":"unknown path`,
		"/api/v1/chat": `{"error":{"message":"unknown path`, "/apis": `{"error":{"message":"unknown path`,
		"/v1/assistants": `{"error":{"message":"unknown path`,
	} {
		resp := post(t, srv, path, "{}")
		require.Equal(t, 404, resp.StatusCode, path)
		require.True(t, strings.HasPrefix(read(t, resp), want), path)
	}
	resp := post(t, srv, "/api/tags", "{}")
	require.Equal(t, 405, resp.StatusCode)
	require.JSONEq(t, `{"error":"found method POST at /api/tags, expected GET"}`, read(t, resp))
}

// TestABodyOfAnotherTypeIsNamedInWordsOfJSON: no error shows a type of Go's or a value of the client's.
func TestABodyOfAnotherTypeIsNamedInWordsOfJSON(t *testing.T) {
	srv := serve(t, apitest.New(nil), httpapi.Options{})
	paths := []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
		"/v1/embeddings", "/v1/rerank", "/v1/score",
		"/tokenize", "/detokenize", "/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show", "/api/v0/chat/completions",
		"/api/v0/completions", "/api/v0/embeddings"}
	for _, path := range paths {
		for _, c := range []struct{ body, want string }{
			{`[]`, "a list"}, {`[{"model":"tiny-chat"}]`, "a list"}, {` "my secret"`, "a string"}, {`12`, "number 12"}, {`null`, "null"},
			{`true`, "true or false"},
			{`{`, "unexpected end"}, {`{"model":}`, "invalid character"}, {``, "unexpected end"}, {"\x1f\x8b", "not UTF-8"},
			{`{"model":5,"input":"hi"}`, "model: "}, {`{"model":{"a":1},"input":"hi"}`, "model: "},
		} {
			resp := post(t, srv, path, c.body)
			got := read(t, resp)
			require.Equal(t, 400, resp.StatusCode, "%s %s", path, c.body)
			require.Contains(t, got, c.want, "%s %s", path, c.body)
			require.NotContains(t, got, "Go ", path)
			require.NotContains(t, got, "struct", path)
			require.NotContains(t, got, "secret", path)
		}
	}
}

func TestIntegersMayBeWrittenAsFloats(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("Hi")), httpapi.Options{})
	message, chat := `{"model":"tiny-chat","max_tokens":9.0,"messages":[{"role":"user","content":"hi"}]`,
		`{"model":"tiny-chat","stream":false,"messages":[{"role":"user","content":"hi"}]`
	for _, c := range []struct{ path, body, wrong string }{
		{"/v1/chat/completions", chat + `,"max_tokens":4%s,"top_k":5.0,"logprobs":true,"top_logprobs":2.0,"seed":1e3}`,
			"max_tokens: expected an integer from 1 to 16777216, found 4.5"},
		{"/v1/messages", message + `,"thinking":{"type":"enabled","budget_tokens":1024%s}}`,
			"thinking.budget_tokens: found number 1024.5, expected an integer"},
		{"/api/chat", chat + `,"options":{"num_predict":4%s,"top_k":3.0,"seed":2.0}}`,
			"options.num_predict: found number 4.5, expected an integer"},
		{"/api/chat", chat + `,"logprobs":true,"top_logprobs":2%s}`, "top_logprobs: found number 2.5, expected an integer"},
		{"/api/generate", `{"model":"tiny-chat","prompt":"hi","stream":false,"options":{"num_predict":1e0,"seed":7%s}}`,
			"options.seed: expected an integer"},
		{"/v1/responses", `{"model":"tiny-chat","input":"hi","store":false,"max_output_tokens":16%s}`,
			"max_output_tokens: expected an integer"},
		{"/detokenize", `{"model":"tiny-chat","tokens":[65%s]}`, "tokens[0]: expected a token id"},
	} {
		resp := post(t, srv, c.path, strings.Replace(c.body, "%s", ".0", 1))
		require.Equal(t, 200, resp.StatusCode, "%s %s", c.body, read(t, resp))
		resp = post(t, srv, c.path, strings.Replace(c.body, "%s", ".5", 1))
		require.Equal(t, 400, resp.StatusCode, c.path)
		require.Contains(t, read(t, resp), c.wrong)
	}
	resp := post(t, srv, "/api/chat", chat+`,"options":{"num_predict":"9"}}`)
	require.Contains(t, read(t, resp), "options.num_predict: found a string, expected an integer")
}

func TestPropsAndSlotsAreThoseOfAFreeServer(t *testing.T) {
	e := apitest.New(nil)
	srv := serve(t, e, httpapi.Options{Version: "1.2.3"})
	_, _, body := get(t, srv.URL+"/props")
	require.JSONEq(t, `{"default_generation_settings":{"n_ctx":512,"params":{"temperature":1,"top_k":0,"top_p":1,"min_p":0,"typ_p":1,"repeat_penalty":1,"presence_penalty":0,"frequency_penalty":0,
		"n_predict":-1}},"total_slots":1,"model_alias":"tiny-chat","model_path":"tiny-chat","chat_template":"","modalities":{"vision":false,"audio":false},"build_info":"millrace-1.2.3"}`, body)
	_, _, named := get(t, srv.URL+"/props?model=tiny-chat")
	require.JSONEq(t, body, named)
	code, _, body := get(t, srv.URL+"/props?model=nobody")
	require.Equal(t, 404, code)
	require.Contains(t, body, "model_not_found")
	_, _, body = get(t, srv.URL+"/slots")
	require.JSONEq(t, `[{"id":0,"n_ctx":512,"is_processing":false,"model":"tiny-chat"}]`, body)
	e.NotReady = errors.New("no step")
	for _, path := range []string{"/props", "/slots"} {
		code, _, _ := get(t, srv.URL+path)
		require.Equal(t, 503, code)
	}
}
