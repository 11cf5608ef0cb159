// Package web holds the chat page and the pages of the pipeline and of the KV cache. They are built from page/ by Vite,
// committed in dist/, and load nothing from anywhere else. It must not know the API, which the pages call.
package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"sync"
)

//go:embed dist
var dist embed.FS

// policy allows a page to load its own files and to call its own server. It forbids inline scripts and styles, other
// addresses, frames around the page, and with trusted types all ways to make elements or scripts of text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// file is a file of a page with its headers.
type file struct {
	body       []byte
	kind, etag string
}

// kinds are the types of the files by the end of their names.
func kinds() map[string]string {
	return map[string]string{
		".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
		".svg": "image/svg+xml; charset=utf-8", ".woff2": "font/woff2", ".md": "text/plain; charset=utf-8",
	}
}

// files are those of all pages by path. A page has paths of its own, and its files are under /web/.
var files = sync.OnceValue(func() map[string]file {
	pages := map[string][]string{"index.html": {"/"}, "debug.html": {"/debug/kv", "/debug/pipeline"}}
	all := map[string]file{}
	entries, err := dist.ReadDir("dist")
	if err != nil {
		panic(fmt.Sprintf("web: %v", err)) // the program has no such directory
	}
	for _, e := range entries {
		body, err := fs.ReadFile(dist, path.Join("dist", e.Name()))
		if err != nil {
			panic(fmt.Sprintf("web: %v", err))
		}
		sum := sha256.Sum256(body)
		f := file{body, kinds()[path.Ext(e.Name())], `"` + hex.EncodeToString(sum[:8]) + `"`}
		paths, isPage := pages[e.Name()]
		if !isPage {
			paths = []string{"/web/" + e.Name()}
		}
		for _, p := range paths {
			all[p] = f
		}
	}
	return all
})

// Handler serves the chat page at /, those of the KV cache and the pipeline at /debug/kv and /debug/pipeline, and their
// files under /web/.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := files()[r.URL.Path]
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
		if r.Method != http.MethodHead {
			w.Write(f.body) //nolint:errcheck // the client has disconnected
		}
	})
}
