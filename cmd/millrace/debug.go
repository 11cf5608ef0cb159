package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/web"
)

// kvPath is the path of the KV cache's state, and of the page that shows it.
const kvPath = "/debug/kv"

// kvPage serves the page of the KV cache to browsers at kvPath, and next to all other requests. The page needs no API key
// and has no state of the server: it requests the state, with the key that its user enters.
func kvPage(next http.Handler) http.Handler {
	page := web.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == kvPath {
			w.Header().Set("Vary", "Accept")
			if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") {
				page.ServeHTTP(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// kvState serves the state of the KV cache as JSON, with ?brief=1 a brief one.
func kvState(late *lateEngine) http.Handler {
	others := newPseudonyms()
	return loaded(late, func(e *engine, w http.ResponseWriter, r *http.Request) {
		brief := r.URL.Query().Get("brief") == "1"
		state, err := e.KVState(r.Context(), brief)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		if c := api.CallerFrom(r.Context()); c != nil {
			others.hide(state, c.TenantName())
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		enc := json.NewEncoder(w)
		if !brief {
			enc.SetIndent("", "  ")
		}
		_ = enc.Encode(state) // the client went away
	})
}

// pseudonyms are names that a process gives to tenants: a tenant must not learn the names of others.
type pseudonyms struct{ secret []byte }

func newPseudonyms() pseudonyms {
	secret := make([]byte, sha256.Size)
	rand.Read(secret) //nolint:errcheck // never fails
	return pseudonyms{secret}
}

// of returns the name of a tenant, the same one each time.
func (p pseudonyms) of(tenant string) string {
	mac := hmac.New(sha256.New, p.secret)
	mac.Write([]byte(tenant))
	return "other-" + hex.EncodeToString(mac.Sum(nil)[:4])
}

// hide replaces the names of all tenants but the caller's own.
func (p pseudonyms) hide(s *node.KVState, own string) {
	for i := range s.Tenants {
		if t := &s.Tenants[i].Tenant; *t != own {
			*t = p.of(*t)
		}
	}
	for i := range s.Regions {
		if t := &s.Regions[i].Tenant; *t != own && *t != "" {
			*t = p.of(*t)
		}
	}
}
