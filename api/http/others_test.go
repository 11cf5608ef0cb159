package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/auth"
)

const (
	aMessage = `{"model":"tiny-chat","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`
	anOllama = `{"model":"tiny-chat","messages":[{"role":"user","content":"hi"}]`
)

func TestAMessagesStreamHasNamedEvents(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("Hel", "lo")), httpapi.Options{})
	resp := post(t, srv, "/v1/messages", aMessage+`,"stream":true}`)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	var names []string
	body := read(t, resp)
	for line := range strings.Lines(body) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "event: "); ok {
			names = append(names, name)
		}
	}
	require.Equal(t, []string{"message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
		"message_delta", "message_stop"}, names)
	require.NotContains(t, body, "[DONE]")
	require.Contains(t, body, `{"type":"text_delta","text":"Hel"}`)
}

func TestAnOllamaStreamIsLines(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("Hel", "lo")), httpapi.Options{})
	for path, body := range map[string]string{"/api/chat": anOllama + "}", "/api/generate": `{"model":"tiny-chat","prompt":"hi"}`} {
		resp := post(t, srv, path, body)
		require.Equal(t, "application/x-ndjson", resp.Header.Get("Content-Type"))
		lines := strings.Split(strings.TrimSpace(read(t, resp)), "\n")
		require.Len(t, lines, 3)
		for i, line := range lines {
			var part map[string]any
			strict(t, line, &part)
			require.Equal(t, i == 2, part["done"])
		}
	}
}

func TestEachAPIHasItsOwnErrors(t *testing.T) {
	keys, key := keyring(t, func(*auth.Entry) {})
	srv := serve(t, apitest.New(apitest.Say("Hello")), httpapi.Options{Keys: keys})
	for _, c := range []struct{ path, body, key, want string }{
		{"/v1/messages", aMessage + "}", "", `{"type":"error","error":{"type":"authentication_error","message":`},
		{"/v1/messages", `{}`, key, `{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: found nothing`},
		{"/v1/messages/count_tokens", `{}`, key, `{"type":"error","error":{"type":"invalid_request_error","message":"messages: found none`},
		{"/api/chat", anOllama + "}", "", `{"error":"`},
		{"/api/chat", `{"messages":[{}]}`, key, `{"error":"messages[0].role: expected`},
		{"/api/generate", `[]`, key, `{"error":"the body is not one JSON object`},
		{"/api/chat", `{"messages":[{"role":"assistant","tool_calls":[null]}]}`, key,
			`{"error":"messages[0].tool_calls[0].function.name: found none`},
		{"/api/generate", `null`, key, `{"error":"the body is not one JSON object: found null`},
		{"/api/show", `{"model":"nobody"}`, key, `{"error":"model \"nobody\" not found"}`},
	} {
		resp := ask(t, http.MethodPost, srv.URL+c.path, c.key, c.body)
		require.GreaterOrEqual(t, resp.StatusCode, 400)
		require.True(t, strings.HasPrefix(read(t, resp), c.want), c.path)
	}
}

func TestAnAnswerNamesWhatWasIgnored(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("Hello")), httpapi.Options{})
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"messages":[{"role":"user","content":"hi"}]`, "/v1/messages": aMessage, "/v1/responses": `{"input":"hi"`,
		"/api/chat": anOllama,
	} {
		for _, stream := range []string{"true", "false"} {
			resp := post(t, srv, path, body+`,"stream":`+stream+`,"tools":[{"type":"web_search","name":"w"}]}`)
			require.Equal(t, http.StatusOK, resp.StatusCode, path)
			require.Equal(t, "tools[0] (web_search)", resp.Header.Get("Millrace-Ignored"), path)
			require.Contains(t, read(t, resp), "Hello", path)
			require.Empty(t, post(t, srv, path, body+`}`).Header.Get("Millrace-Ignored"), path)
		}
	}
}

func TestAnthropicsHeaderHasTheKey(t *testing.T) {
	keys, key := keyring(t, func(*auth.Entry) {})
	srv := serve(t, apitest.New(apitest.Say("Hello")), httpapi.Options{Keys: keys})
	for name, want := range map[string]int{key: http.StatusOK, "mr-wrong": http.StatusUnauthorized} {
		req, err := http.NewRequest(http.MethodPost, srv.URL+"/v1/messages", strings.NewReader(aMessage+"}"))
		require.NoError(t, err)
		req.Header.Set("X-Api-Key", name)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, want, resp.StatusCode)
	}
}
