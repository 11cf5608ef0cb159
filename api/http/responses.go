package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/responses"
)

// Responses are the stored responses of the Responses API. Those of another tenant do not exist for a caller. Errors are *api.Error.
type Responses interface {
	// Get returns the body of a response.
	Get(ctx context.Context, id string) ([]byte, error)
	// Items returns the input items of a response.
	Items(ctx context.Context, id string) ([]json.RawMessage, error)
	// Delete removes a response.
	Delete(ctx context.Context, id string) error
	// CancelResponse ends a response in the background and returns its body.
	CancelResponse(ctx context.Context, id string) ([]byte, error)
	// Follow returns the answer of a response in the background from its first event.
	Follow(ctx context.Context, id string) (call.Answer, error)
}

func (s *server) responseRoutes() []route {
	routes := []route{
		{"/v1/responses/{id}", "GET, DELETE", s.oneResponse},
		{"/v1/responses/{id}/input_items", "GET", s.inputItems},
		{"/v1/responses/{id}/cancel", "POST", s.cancelResponse},
	}
	for i := range routes {
		if s.opts.Responses == nil {
			routes[i].handle = func(http.ResponseWriter, *http.Request) error {
				return &api.Error{Code: api.CodeInvalid, Reason: "not_stored",
					Message: "this server stores no responses (--response-store 0, or no JetStream)"}
			}
		}
		routes[i].handle = s.authenticated(routes[i].handle)
	}
	return routes
}

// oneResponse retrieves a response, as a body or as the stream of one in the background, or deletes it.
func (s *server) oneResponse(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if r.Method == http.MethodDelete {
		if err := s.opts.Responses.Delete(r.Context(), id); err != nil {
			return err
		}
		body, err := responses.EncodeDeleted(id)
		if err != nil {
			return err
		}
		return writeJSON(w, body)
	}
	if r.URL.Query().Get("stream") == "true" {
		return s.followResponse(w, r, id)
	}
	body, err := s.opts.Responses.Get(r.Context(), id)
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

// followResponse streams the events of a response in the background after the one with the number starting_after.
func (s *server) followResponse(w http.ResponseWriter, r *http.Request, id string) error {
	from := 0
	if text := r.URL.Query().Get("starting_after"); text != "" {
		after, err := strconv.Atoi(text)
		if err != nil || after < 0 {
			return api.Invalid("starting_after", "starting_after: found %.20q, expected the number of an event", text)
		}
		from = after + 1
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	a, err := s.opts.Responses.Follow(ctx, id)
	if err != nil {
		return err
	}
	defer a.Close()
	out := s.sse(ctx, w, a.Call())
	out.from = from
	return s.stream(ctx, out, a.Events(ctx))
}

func (s *server) cancelResponse(w http.ResponseWriter, r *http.Request) error {
	body, err := s.opts.Responses.CancelResponse(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

// inputItems lists the items of a response's input.
func (s *server) inputItems(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	page, err := responses.DecodePage(q.Get("limit"), q.Get("order"), q.Get("after"))
	if err != nil {
		return err
	}
	items, err := s.opts.Responses.Items(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	body, err := page.Encode(items)
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}
