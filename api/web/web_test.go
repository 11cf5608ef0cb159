package web_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/web"
)

func fetch(t *testing.T, h http.Handler, path, etag string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest("GET", path, nil)
	r.Header.Set("If-None-Match", etag)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestThePageLoadsOnlyItsOwnFiles(t *testing.T) {
	h := web.Handler()
	requireOwnFiles(t, h, "/", 7)
	requireOwnFiles(t, h, "/debug/kv", 7)
	require.Equal(t, 404, fetch(t, h, "/web/", "").Code)
	require.Equal(t, 404, fetch(t, h, "/web/../web.go", "").Code)
}

// requireOwnFiles requires that a page loads a number of files, with itself, and none from another server.
func requireOwnFiles(t *testing.T, h http.Handler, path string, files int) {
	t.Helper()
	page := fetch(t, h, path, "")
	require.Equal(t, 200, page.Code)
	require.Contains(t, page.Header().Get("Content-Type"), "text/html")
	require.Contains(t, page.Header().Get("Content-Security-Policy"), "default-src 'none'")

	seen := map[string]bool{}
	queue := []string{path}
	local := regexp.MustCompile(`(?:src|href|from)\s*=?\s*"([^"]*)"`)
	outside := regexp.MustCompile(`(?i)https?://|url\(|@import|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(`)
	for len(queue) > 0 {
		path := queue[0]
		queue = queue[1:]
		if seen[path] {
			continue
		}
		seen[path] = true
		w := fetch(t, h, path, "")
		require.Equal(t, 200, w.Code, path)
		if path != "/web/icon.svg" { // whose namespace is an address, which nothing loads
			require.Empty(t, outside.FindString(w.Body.String()), path)
		}
		for _, m := range local.FindAllStringSubmatch(w.Body.String(), -1) {
			require.Regexp(t, "^/web/", m[1], path)
			queue = append(queue, m[1])
		}
	}
	require.Len(t, seen, files)
}

func TestAnUnchangedFileIsNotSentAgain(t *testing.T) {
	h := web.Handler()
	w := fetch(t, h, "/web/app.js", "")
	require.Contains(t, w.Header().Get("Content-Type"), "javascript")
	w = fetch(t, h, "/web/app.js", w.Header().Get("ETag"))
	require.Equal(t, 304, w.Code)
	require.Zero(t, w.Body.Len())
}
