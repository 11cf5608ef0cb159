package httpserver_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/codec"
	"github.com/millrace/millrace/api/http/httpserver"
	"github.com/millrace/millrace/api/openai"
)

// send returns the status and the error code of the answer to a request.
func send(t *testing.T, trust httpserver.Trust, method, host string, header http.Header) (status int, code string) {
	t.Helper()
	h := (&httpserver.Access{Trust: trust}).Handler(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	r := httptest.NewRequest(method, "/v1/completions", nil)
	r.Host, r.Header = host, header
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code == http.StatusNoContent {
		return w.Code, ""
	}
	var e openai.ErrorBody
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &e))
	require.Equal(t, "invalid_request_error", e.Error.Type)
	require.Contains(t, e.Error.Message, "--api-keys")
	return w.Code, *e.Error.Code
}

func TestWithoutAKeyThisMachineIsAskedByItsOwnNameOnly(t *testing.T) {
	for _, host := range []string{"localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8080", "127.8.9.10:1", "[::1]", "[::1]:8080", ""} {
		for _, method := range []string{"GET", "POST"} {
			status, _ := send(t, httpserver.Machine, method, host, http.Header{})
			require.Equal(t, http.StatusNoContent, status, host)
		}
	}
	for _, host := range []string{"example.com", "example.com:8080", "localhost.example.com:8080", "127.0.0.1.example.com",
		"192.0.2.1:8080", "0.0.0.0:8080", "[::]:1", "localhost:1:2", "[", "127.0.0.1@example.com"} {
		for _, method := range []string{"GET", "POST"} {
			status, code := send(t, httpserver.Machine, method, host, http.Header{})
			require.Equal(t, http.StatusForbidden, status, host)
			require.Equal(t, "unknown_host", code)
		}
		status, _ := send(t, httpserver.Everybody, "POST", host, http.Header{})
		require.Equal(t, http.StatusNoContent, status, "its names are not known")
		status, _ = send(t, httpserver.ByKey, "POST", host, http.Header{})
		require.Equal(t, http.StatusNoContent, status)
	}
}

func TestWithoutAKeyPagesOfOtherSitesMakeNothingWork(t *testing.T) {
	const host = "127.0.0.1:8080"
	for name, header := range map[string]http.Header{
		"curl, an SDK":                  {},
		"the chat page":                 {"Sec-Fetch-Site": {"same-origin"}, "Origin": {"http://127.0.0.1:8080"}},
		"the chat page, an old browser": {"Origin": {"http://127.0.0.1:8080"}},
		"typed by the user":             {"Sec-Fetch-Site": {"none"}},
	} {
		for _, trust := range []httpserver.Trust{httpserver.ByKey, httpserver.Everybody, httpserver.Machine} {
			status, _ := send(t, trust, "POST", host, header)
			require.Equal(t, http.StatusNoContent, status, name)
		}
	}
	for name, header := range map[string]http.Header{
		"another site":                 {"Sec-Fetch-Site": {"cross-site"}, "Origin": {"https://example.com"}},
		"another site, an old browser": {"Origin": {"https://example.com"}},
		"another port":                 {"Sec-Fetch-Site": {"same-site"}, "Origin": {"http://127.0.0.1:3000"}},
		"a sandboxed frame":            {"Origin": {"null"}},
	} {
		for _, trust := range []httpserver.Trust{httpserver.Everybody, httpserver.Machine} {
			for _, method := range []string{"POST", "DELETE"} {
				status, code := send(t, trust, method, host, header)
				require.Equal(t, http.StatusForbidden, status, name)
				require.Equal(t, "cross_site_request", code)
			}
			status, _ := send(t, trust, "GET", host, header)
			require.Equal(t, http.StatusNoContent, status, "%s: the browser keeps the answer from it", name)
		}
		status, _ := send(t, httpserver.ByKey, "POST", host, header)
		require.Equal(t, http.StatusNoContent, status, "%s: it knows a key", name)
	}
}

// shared returns the answer of a server with origins to a request for a path.
func shared(t *testing.T, a httpserver.Access, method, path string, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.Host, r.Header = "127.0.0.1:8080", header
	w := httptest.NewRecorder()
	a.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })).ServeHTTP(w, r)
	return w
}

func TestPagesOfChosenOriginsUseTheServer(t *testing.T) {
	ask := func(origin string) http.Header {
		return http.Header{"Origin": {origin}, "Sec-Fetch-Site": {"cross-site"}, "Access-Control-Request-Method": {"POST"},
			"Access-Control-Request-Headers":         {"authorization,content-type,x-stainless-lang"},
			"Access-Control-Request-Private-Network": {"true"}}
	}
	for _, trust := range []httpserver.Trust{httpserver.ByKey, httpserver.Everybody, httpserver.Machine} {
		for _, c := range []struct{ allowed, origin string }{
			{"https://chat.example.com", "https://chat.example.com"}, {"https://*.example.com", "https://a.example.com"},
			{"http://localhost:*", "http://localhost:3000"}, {"vscode-webview://*", "vscode-webview://1qk2l"}, {"null", "null"},
			{"*", "https://anywhere.example"},
		} {
			a := httpserver.Access{Trust: trust, Origins: []string{"https://first.example", c.allowed}}
			for _, method := range []string{"GET", "POST", "DELETE"} {
				w := shared(t, a, method, "/v1/completions", ask(c.origin))
				require.Equal(t, http.StatusTeapot, w.Code, c.origin)
				require.Contains(t, []string{"*", c.origin}, w.Header().Get("Access-Control-Allow-Origin"))
				require.Equal(t, "*", w.Header().Get("Access-Control-Expose-Headers"))
			}
			w := shared(t, a, "OPTIONS", "/api/chat", ask(c.origin))
			require.Equal(t, http.StatusNoContent, w.Code)
			require.Equal(t, "authorization,content-type,x-stainless-lang", w.Header().Get("Access-Control-Allow-Headers"))
			require.Equal(t, "POST", w.Header().Get("Access-Control-Allow-Methods"))
			require.Equal(t, "true", w.Header().Get("Access-Control-Allow-Private-Network"))
			require.Contains(t, []string{"*", c.origin}, w.Header().Get("Access-Control-Allow-Origin"))
		}
	}
}

func TestPagesOfOtherOriginsStayOutside(t *testing.T) {
	for _, origin := range []string{"https://example.com", "https://chat.example.com.evil.net", "http://chat.example.com",
		"https://chat.example.com:8443", "null", "https://"} {
		for _, trust := range []httpserver.Trust{httpserver.Everybody, httpserver.Machine} {
			for _, origins := range [][]string{nil, {"https://chat.example.com", "https://*.example.org"}} {
				a := httpserver.Access{Trust: trust, Origins: origins}
				w := shared(t, a, "POST", "/v1/completions", http.Header{"Origin": {origin}, "Sec-Fetch-Site": {"cross-site"}})
				require.Equal(t, http.StatusForbidden, w.Code, origin)
				require.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
				w = shared(t, a, "OPTIONS", "/v1/completions", http.Header{"Origin": {origin}, "Access-Control-Request-Method": {"POST"}})
				require.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
			}
		}
	}
	a := httpserver.Access{Trust: httpserver.Machine, Origins: []string{"*"}}
	r := httptest.NewRequest("POST", "/v1/completions", nil)
	r.Host = "rebound.example.com"
	w := httptest.NewRecorder()
	a.Handler(http.NotFoundHandler()).ServeHTTP(w, r)
	require.Equal(t, http.StatusForbidden, w.Code, "another name may resolve to this machine")
}

func TestARefusedPageGetsTheErrorOfItsAPI(t *testing.T) {
	a := httpserver.Access{Trust: httpserver.Machine, Error: codec.ErrorOf}
	for path, want := range map[string]string{"/api/chat": `{"error":"found a request`, "/v1/messages": `{"type":"error","error":{"type":`,
		"/v1/chat/completions": `{"error":{"message":"found a request`} {
		w := shared(t, a, "POST", path, http.Header{"Origin": {"https://example.com"}})
		require.Equal(t, http.StatusForbidden, w.Code)
		require.True(t, strings.HasPrefix(w.Body.String(), want), "%s", w.Body)
	}
}
