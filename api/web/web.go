// Package web holds the chat page and the page of the KV cache: plain files inside the program, which load
// nothing from anywhere else. It must not know the API, which the pages call.
package web

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"io"
	"net/http"
)

var (
	//go:embed static/index.html
	indexHTML string
	//go:embed static/style.css
	styleCSS string
	//go:embed static/app.js
	appJS string
	//go:embed static/key.js
	keyJS string
	//go:embed static/sse.js
	sseJS string
	//go:embed static/view.js
	viewJS string
	//go:embed static/kv.html
	kvHTML string
	//go:embed static/kv.css
	kvCSS string
	//go:embed static/kv.js
	kvJS string
	//go:embed static/pool.js
	poolJS string
	//go:embed static/icon.svg
	iconSVG string
)

// policy allows a page to load its own files and to call its own server. It forbids inline scripts,
// other addresses and frames around the page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// file is a file of a page with its headers.
type file struct{ body, kind, etag string }

func newFile(body, kind string) file {
	sum := sha256.Sum256([]byte(body))
	return file{body, kind + "; charset=utf-8", `"` + hex.EncodeToString(sum[:8]) + `"`}
}

// Handler serves the chat page at /, that of the KV cache at /debug/kv, and their files under /web/.
func Handler() http.Handler {
	files := map[string]file{
		"/":              newFile(indexHTML, "text/html"),
		"/web/style.css": newFile(styleCSS, "text/css"),
		"/web/app.js":    newFile(appJS, "text/javascript"),
		"/web/key.js":    newFile(keyJS, "text/javascript"),
		"/web/sse.js":    newFile(sseJS, "text/javascript"),
		"/web/view.js":   newFile(viewJS, "text/javascript"),
		"/debug/kv":      newFile(kvHTML, "text/html"),
		"/web/kv.css":    newFile(kvCSS, "text/css"),
		"/web/kv.js":     newFile(kvJS, "text/javascript"),
		"/web/pool.js":   newFile(poolJS, "text/javascript"),
		"/web/icon.svg":  newFile(iconSVG, "image/svg+xml"),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", f.kind)
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache") // revalidate each time, mostly with 304
		h.Set("ETag", f.etag)
		if r.Header.Get("If-None-Match") == f.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		io.WriteString(w, f.body) //nolint:errcheck // the client has disconnected
	})
}
