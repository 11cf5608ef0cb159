// Package web is the chat page: plain files inside the program, which load
// nothing from anywhere else.
package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var files embed.FS

// policy lets the page load its own files and talk to its own server, and
// nothing else: no inline script, no outside address, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// file is one file as it is sent.
type file struct {
	body, kind, etag string
}

// Handler serves the page at / and its files below /web/.
func Handler() (http.Handler, error) {
	served := map[string]file{}
	err := fs.WalkDir(files, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		kind := mime.TypeByExtension(path.Ext(name))
		if kind == "" {
			return fmt.Errorf("no type for %q", path.Ext(name))
		}
		sum := sha256.Sum256(body)
		at := "/web/" + strings.TrimPrefix(name, "static/")
		if at == "/web/index.html" {
			at = "/"
		}
		served[at] = file{string(body), kind, `"` + hex.EncodeToString(sum[:8]) + `"`}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("web: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := served[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", f.kind)
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache") // ask each time; the answer is mostly 304
		h.Set("ETag", f.etag)
		if r.Header.Get("If-None-Match") == f.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		if _, err := strings.NewReader(f.body).WriteTo(w); err != nil {
			return // the client is gone
		}
	}), nil
}
