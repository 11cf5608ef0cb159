package openai

import (
	"net/http"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai/wire"
)

func (s *server) models(w http.ResponseWriter, r *http.Request) error {
	body, err := wire.EncodeModels(s.visible(r))
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

func (s *server) oneModel(w http.ResponseWriter, r *http.Request) error {
	body, err := wire.EncodeModel(r.PathValue("id"), s.visible(r))
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

// unary serves a path with one answer and no stream.
func (s *server) unary(run call.Unary) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		body, err := s.body(w, r)
		if err != nil {
			return err
		}
		answer, err := run(r.Context(), s.engine, body)
		if err != nil {
			return err
		}
		return writeJSON(w, answer)
	}
}

func (s *server) live(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, []byte(`{"status":"live"}`))
}

// ready answers 503 with the reason while the engine loads, drains or makes no progress.
func (s *server) ready(w http.ResponseWriter, _ *http.Request) error {
	if err := s.engine.Ready(); err != nil {
		return &api.Error{Code: api.CodeUnavailable, Reason: "not_ready",
			Message: "not ready: " + err.Error(), RetryAfter: time.Second}
	}
	return writeJSON(w, []byte(`{"status":"ready"}`))
}
