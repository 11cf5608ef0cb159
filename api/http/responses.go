package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
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
				return &api.Error{Code: api.CodeInvalid, Reason: "not_stored", Message: "this server stores no responses (--response-store 0, or no JetStream)"}
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
		body, err := json.Marshal(deletedResponse{ID: id, Object: "response", Deleted: true})
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

// deletedResponse is the answer of a deletion.
type deletedResponse struct {
	ID      string `json:"id"`
	Object  string `json:"object" doc:"Always \"response\""`
	Deleted bool   `json:"deleted"`
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

// itemList is a page of input items.
type itemList struct {
	Object  string            `json:"object" doc:"Always \"list\""`
	Data    []json.RawMessage `json:"data"`
	FirstID *string           `json:"first_id"`
	LastID  *string           `json:"last_id"`
	HasMore bool              `json:"has_more"`
}

// inputItems lists the items of a response's input, the last one first unless order is asc.
func (s *server) inputItems(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	limit := 20
	if text := q.Get("limit"); text != "" {
		const most = 100
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > most {
			return api.Invalid("limit", "limit: found %.20q, expected a number from 1 to %d", text, most)
		}
	}
	items, err := s.opts.Responses.Items(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	switch order := q.Get("order"); order {
	case "", "desc":
		slices.Reverse(items)
	case "asc":
	default:
		return api.Invalid("order", "order: found %.20q, expected asc or desc", order)
	}
	if after := q.Get("after"); after != "" {
		i := slices.IndexFunc(items, func(it json.RawMessage) bool { return idOf(it) == after })
		if i < 0 {
			return api.Invalid("after", "after: found %s, expected the id of an item", api.Quote(after))
		}
		items = items[i+1:]
	}
	list := itemList{Object: "list", Data: append([]json.RawMessage{}, items[:min(len(items), limit)]...), HasMore: len(items) > limit}
	if n := len(list.Data); n > 0 {
		first, last := idOf(list.Data[0]), idOf(list.Data[n-1])
		list.FirstID, list.LastID = &first, &last
	}
	body, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

func idOf(item json.RawMessage) string {
	var it struct {
		ID string `json:"id"`
	}
	json.Unmarshal(item, &it) //nolint:errcheck // the server has encoded it
	return it.ID
}
