package openai

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable"
)

const (
	// headerID has the id under which a client can come back to an answer.
	headerID = "Millrace-Id"
	// headerPing has the seconds of silence after which there is a comment.
	headerPing = "Millrace-Ping-Interval"
)

// comeBack tells a client how to come back, and when.
func (s *server) comeBack(w http.ResponseWriter, id string) {
	w.Header().Set(headerID, id)
	w.Header().Set(headerPing, strconv.FormatFloat(s.opts.PingAfter.Seconds(), 'f', -1, 64))
}

// resumable runs a call whose client may lose its connection and come back.
func (s *server) resumable(ctx context.Context, w http.ResponseWriter, c *call.Call, body []byte) error {
	r, err := s.opts.Resume.Start(ctx, c, body)
	if errors.Is(err, durable.ErrNoRoom) {
		return s.run(ctx, w, c)
	}
	if err != nil {
		return err
	}
	defer r.Close()
	s.comeBack(w, c.ID)
	return s.answer(ctx, w, r.Call(), r.Events(ctx))
}

// streams serves a resumable call's answer again (GET, behind the event that
// Last-Event-ID names) or ends the call (DELETE).
func (s *server) streams(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if w, ok := w.(*response); ok {
		w.callID = id
	}
	if s.opts.Resume == nil {
		return &api.Error{Code: api.CodeNotFound, Reason: "stream_not_found",
			Message: "streams cannot be resumed on this server (--stream-resume, JetStream)"}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if r.Method == http.MethodDelete {
		if err := s.opts.Resume.Cancel(ctx, id); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	after := uint64(0)
	if text := r.Header.Get("Last-Event-ID"); text != "" {
		var err error
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			return api.Invalid("Last-Event-ID", "Last-Event-ID: expected the number of an event, found %q", text)
		}
	}
	reader, err := s.opts.Resume.Attach(ctx, id)
	if err != nil {
		return err
	}
	defer reader.Close()
	s.comeBack(w, id)
	c := reader.Call()
	if !c.Stream {
		return s.answer(ctx, w, c, reader.Events(ctx))
	}
	out := s.sse(ctx, w, c)
	out.after = after
	out.open()
	if err := out.flush(); err != nil {
		return err
	}
	return s.stream(ctx, out, reader.Events(ctx))
}
