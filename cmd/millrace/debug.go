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

// Paths of the state of the KV cache and of the pipeline, and of the pages that show them.
const (
	kvPath       = "/debug/kv"
	pipelinePath = "/debug/pipeline"
)

// debugPages serves the pages of the KV cache and of the pipeline to browsers at their paths, and next to all other requests.
// A page needs no API key and has no state of the server: it requests the state, with the key that its user enters.
func debugPages(next http.Handler) http.Handler {
	page := web.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == kvPath || r.URL.Path == pipelinePath {
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
		writeState(w, state, brief)
	})
}

// pipelineState serves what the pipeline did last as JSON, with ?brief=1 on one line.
func pipelineState(late *lateEngine) http.Handler {
	others := newPseudonyms()
	return loaded(late, func(e *engine, w http.ResponseWriter, r *http.Request) {
		state := e.PipelineState()
		if c := api.CallerFrom(r.Context()); c != nil {
			others.hideRequests(state.Requests, c.TenantName())
		}
		writeState(w, state, r.URL.Query().Get("brief") == "1")
	})
}

func writeState(w http.ResponseWriter, state any, brief bool) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	enc := json.NewEncoder(w)
	if !brief {
		enc.SetIndent("", "  ")
	}
	_ = enc.Encode(state) // the client went away
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

// hideRequests replaces the ids of the requests of all tenants but the caller's own, and the names of these tenants.
func (p pseudonyms) hideRequests(list []node.Timeline, own string) {
	for i := range list {
		if r := &list[i]; r.Tenant != own {
			r.ID, r.Tenant = p.of("request "+r.ID), p.of(r.Tenant)
		}
	}
}
