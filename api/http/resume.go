package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/millrace/millrace/api"
)

const (
	// headerID is the header with an answer's id. A client resumes the answer by this id.
	headerID = "Millrace-Id"
	// headerPing is the header with the longest silence of a stream, in seconds. Then the server sends a comment.
	headerPing = "Millrace-Ping-Interval"
)

// setResumeHeaders sets the headers that a client needs to resume an answer.
func (s *server) setResumeHeaders(w http.ResponseWriter, id string) {
	w.Header().Set(headerID, id)
	w.Header().Set(headerPing, strconv.FormatFloat(s.opts.PingAfter.Seconds(), 'f', -1, 64))
}

// streams serves the answer to a resumable call after the event that Last-Event-ID names (GET), or ends
// the call (DELETE).
func (s *server) streams(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if w, ok := w.(*response); ok {
		w.callID = api.Cut(id)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if r.Method == http.MethodDelete {
		if err := s.opts.Calls.Cancel(ctx, id); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	after := uint64(0)
	if text := r.Header.Get("Last-Event-ID"); text != "" {
		var err error
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			return api.Invalid("Last-Event-ID", "Last-Event-ID: found %s, expected the number of an event", api.Quote(text))
		}
	}
	answer, err := s.opts.Calls.Attach(ctx, id)
	if err != nil {
		return err
	}
	defer answer.Close()
	s.setResumeHeaders(w, id)
	c := answer.Call()
	if !c.Stream {
		return s.answer(ctx, w, answer)
	}
	out := s.sse(ctx, w, c)
	out.after = after
	out.begin()
	if err := out.rc.Flush(); err != nil {
		return err
	}
	return s.stream(ctx, out, answer.Events(ctx))
}
