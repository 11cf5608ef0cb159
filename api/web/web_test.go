package web_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
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
	local := regexp.MustCompile(`(?:src|href)="([^"]*)"`)
	for path, script := range map[string]string{"/": "/web/chat.js", "/debug/kv": "/web/debug.js", "/debug/pipeline": "/web/debug.js"} {
		page := fetch(t, h, path, "")
		require.Equal(t, 200, page.Code)
		require.Contains(t, page.Header().Get("Content-Type"), "text/html")
		require.NotRegexp(t, `(?i)<style|\son\w+=|\sstyle=|<script[^>]*>[^<]`, page.Body.String(), "which the policy forbids")
		var loads []string
		for _, m := range local.FindAllStringSubmatch(page.Body.String(), -1) {
			loads = append(loads, m[1])
			require.Regexp(t, "^/web/", m[1], path)
			require.Equal(t, 200, fetch(t, h, m[1], "").Code, m[1])
		}
		require.Contains(t, loads, script)
	}
	require.Equal(t, 404, fetch(t, h, "/web/", "").Code)
	require.Equal(t, 404, fetch(t, h, "/web/../web.go", "").Code)
}

func TestThePolicyLeavesTextNoWayToBecomeMarkup(t *testing.T) {
	policy := fetch(t, web.Handler(), "/", "").Header().Get("Content-Security-Policy")
	for _, rule := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "form-action 'none'",
		"frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"} {
		require.Contains(t, policy, rule)
	}
	require.NotContains(t, policy, "unsafe")
	require.NotContains(t, policy, "http")
	require.NotContains(t, policy, "data:")
}

func TestEveryFileHasItsTypeAndAllAreBelowAMegabyte(t *testing.T) {
	h := web.Handler()
	entries, err := os.ReadDir("dist")
	require.NoError(t, err)
	bytes := 0
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".html") {
			continue
		}
		w := fetch(t, h, "/web/"+e.Name(), "")
		require.Equal(t, 200, w.Code, e.Name())
		require.NotEmpty(t, w.Header().Get("Content-Type"), e.Name())
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
		bytes += w.Body.Len()
	}
	require.Less(t, bytes, 1<<20)
	require.Greater(t, bytes, 1<<18, "the pages are not built")
}

func TestAnUnchangedFileIsNotSentAgain(t *testing.T) {
	h := web.Handler()
	w := fetch(t, h, "/web/chat.js", "")
	require.Contains(t, w.Header().Get("Content-Type"), "javascript")
	w = fetch(t, h, "/web/chat.js", w.Header().Get("ETag"))
	require.Equal(t, 304, w.Code)
	require.Zero(t, w.Body.Len())
}
