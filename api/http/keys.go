package httpapi

import (
	"net/http"

	"github.com/millrace/millrace/api"
)

// authenticated passes requests with a valid API key to handle, and refuses others before their body is
// read. Without a file of keys it passes all requests.
func (s *server) authenticated(handle handlerFunc) handlerFunc {
	if s.opts.Keys == nil {
		return handle
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		k, err := s.opts.Keys.Authenticate(credentials(r))
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			return err
		}
		if w, ok := w.(*response); ok {
			w.keyID = k.KeyID()
		}
		return handle(w, r.WithContext(api.WithCaller(r.Context(), k)))
	}
}

// credentials returns the value of Authorization. Anthropic's clients send the key in a header of its own.
func credentials(r *http.Request) string {
	if key := r.Header.Get("X-Api-Key"); key != "" && r.Header.Get("Authorization") == "" {
		return "Bearer " + key
	}
	return r.Header.Get("Authorization")
}

// visible returns the models that a request may use.
func (s *server) visible(r *http.Request) []api.Model {
	return api.Visible(r.Context(), s.engine.Models())
}
