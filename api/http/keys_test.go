package httpapi_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/api/http/httpserver"
	"github.com/millrace/millrace/auth"
)

// keyring is one with a single key, whose entry the test may change.
func keyring(t *testing.T, change func(*auth.Entry)) (r *auth.Keyring, key string) {
	t.Helper()
	key, e := auth.NewKey("acme")
	change(&e)
	line, err := e.Line()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(path, []byte(line), 0o600))
	r, err = auth.Open(path)
	require.NoError(t, err)
	return r, key
}

func newServer(t *testing.T, h http.Handler, e *apitest.Engine) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.Close()
		e.WaitIdle()
	})
	return srv
}

func ask(t *testing.T, method, url, key, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	require.NoError(t, err)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func TestAKeyIsNeededWhereSomethingIsComputedOrShown(t *testing.T) {
	keys, key := keyring(t, func(*auth.Entry) {})
	e := apitest.New(apitest.Say("a"))
	guarded := []string{"POST /v1/chat/completions", "POST /v1/completions", "POST /tokenize", "POST /detokenize",
		"GET /v1/models", "GET /v1/models/tiny-chat", "GET /debug/kv"}
	h, err := httpapi.New(auth.Guard(e), httpapi.Options{Keys: keys,
		Mounts: map[string]http.Handler{"/debug/kv": http.NotFoundHandler()}})
	require.NoError(t, err)
	srv := newServer(t, h, e)
	var first string
	for _, path := range guarded {
		for _, wrong := range []string{"", "nonsense", key[:len(key)-1] + "="} {
			method, url, _ := strings.Cut(path, " ")
			resp := ask(t, method, srv.URL+url, wrong, "{")
			require.Equal(t, 401, resp.StatusCode, path)
			require.Equal(t, "Bearer", resp.Header.Get("WWW-Authenticate"))
			body := read(t, resp)
			require.Contains(t, body, `"type":"authentication_error"`)
			require.Contains(t, body, `"code":"invalid_api_key"`)
			if first == "" {
				first = body
			}
			require.Equal(t, first, body, "a refusal says nothing about the key")
		}
	}
	for _, open := range []string{"/health/live", "/health/ready", "/openapi.json"} {
		require.Equal(t, 200, ask(t, "GET", srv.URL+open, "", "").StatusCode, open)
	}
	resp := ask(t, "POST", srv.URL+"/v1/chat/completions", key, hello+`}`)
	require.Equal(t, 200, resp.StatusCode, read(t, resp))
	require.Equal(t, "acme", e.Requests()[0].Tenant)
	require.Equal(t, 200, ask(t, "GET", srv.URL+"/v1/models", key, "").StatusCode)
}

func TestAKeyOverItsLimitIsToldWhenToComeAgain(t *testing.T) {
	keys, key := keyring(t, func(e *auth.Entry) { e.RequestsPerMinute = 1 })
	e := apitest.New(apitest.Say("a"))
	h, err := httpapi.New(auth.Guard(e), httpapi.Options{Keys: keys})
	require.NoError(t, err)
	srv := newServer(t, h, e)
	require.Equal(t, 200, ask(t, "POST", srv.URL+"/v1/chat/completions", key, hello+`}`).StatusCode)
	resp := ask(t, "POST", srv.URL+"/v1/chat/completions", key, hello+`,"stream":true}`)
	require.Equal(t, 429, resp.StatusCode)
	require.Equal(t, "60", resp.Header.Get("Retry-After"))
	body := read(t, resp)
	require.Contains(t, body, `"type":"rate_limit_error"`)
	require.Contains(t, body, `"code":"requests_per_minute_exceeded"`)
}

func TestAKeySeesItsModelsOnly(t *testing.T) {
	keys, key := keyring(t, func(e *auth.Entry) { e.Models = []string{"other"} })
	e := apitest.New(apitest.Say("a"))
	h, err := httpapi.New(auth.Guard(e), httpapi.Options{Keys: keys})
	require.NoError(t, err)
	srv := newServer(t, h, e)
	require.NotContains(t, read(t, ask(t, "GET", srv.URL+"/v1/models", key, "")), "tiny-chat")
	require.Equal(t, 404, ask(t, "GET", srv.URL+"/v1/models/tiny-chat", key, "").StatusCode)
	require.NotEqual(t, 200, ask(t, "POST", srv.URL+"/v1/chat/completions", key, hello+`}`).StatusCode)
	require.Empty(t, e.Requests())
}

func TestLogsNameTheKeyAndDoNotHoldIt(t *testing.T) {
	keys, key := keyring(t, func(*auth.Entry) {})
	var log apitest.Log
	e := apitest.New(apitest.Say("an answer of the model"))
	h, err := httpapi.New(auth.Guard(e), httpapi.Options{Keys: keys, Logger: zerolog.New(&log).Level(zerolog.TraceLevel)})
	require.NoError(t, err)
	srv := newServer(t, h, e)
	ask(t, "POST", srv.URL+"/v1/chat/completions", key, hello+`}`)
	ask(t, "POST", srv.URL+"/v1/chat/completions", key+"x", hello+`}`)
	srv.Close()
	text := log.String()
	secret := key[strings.LastIndex(key, "-")+1:]
	require.Contains(t, text, `"key":"`+strings.Split(key, "-")[1]+`"`)
	require.NotContains(t, text, secret)
}

// Nothing of a body comes, and the refusal does not wait for it.
func TestARequestWithoutAKeyIsRefusedBeforeItsBodyIsRead(t *testing.T) {
	keys, _ := keyring(t, func(*auth.Entry) {})
	srv := serveWithin(t, apitest.New(nil), httpapi.Options{Keys: keys}, httpserver.Limits{Body: time.Hour, Drain: 20 * time.Millisecond})
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
	require.NoError(t, err)
	answer, err := io.ReadAll(conn) // ends: the server closes
	require.NoError(t, err)
	require.Contains(t, string(answer), "HTTP/1.1 401")
	require.Contains(t, string(answer), "invalid_api_key")
}
