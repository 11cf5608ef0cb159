package httpserver_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/httpserver"
	"github.com/millrace/millrace/api/openai/wire"
)

// send returns the status and the error code of the answer to a request.
func send(t *testing.T, trust httpserver.Trust, method, host string, header http.Header) (status int, code string) {
	t.Helper()
	h := trust.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	r := httptest.NewRequest(method, "/v1/completions", nil)
	r.Host, r.Header = host, header
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code == http.StatusNoContent {
		return w.Code, ""
	}
	var e wire.ErrorBody
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
	for _, host := range []string{"example.com", "example.com:8080", "localhost.example.com:8080", "127.0.0.1.example.com", "192.0.2.1:8080", "0.0.0.0:8080", "[::]:1", "localhost:1:2", "[", "127.0.0.1@example.com"} {
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
