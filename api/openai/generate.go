package openai

import (
	"context"
	"net/http"
	"time"

	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/codec"
)

// generate serves the path of one kind of call. When it returns, its context ends and cancels
// what still runs for the call.
func (s *server) generate(format call.Codec) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		arrival := time.Now()
		body, err := s.body(w, r)
		if err != nil {
			return err
		}
		c, err := format.Decode(body, s.visible(r), arrival)
		if err != nil {
			return err
		}
		if w, ok := w.(*response); ok {
			w.callID = c.ID
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		answer, err := s.opts.Calls.Run(ctx, c)
		if err != nil {
			return err
		}
		defer answer.Close()
		if answer.Resumable() {
			s.setResumeHeaders(w, c.ID)
		}
		return s.answer(ctx, w, answer)
	}
}

// answer writes an answer as a stream or as one body.
func (s *server) answer(ctx context.Context, w http.ResponseWriter, a call.Answer) error {
	c, events := a.Call(), a.Events(ctx)
	if c.Stream {
		return s.stream(ctx, s.sse(ctx, w, c), events)
	}
	result, err := call.Collect(ctx, c, events)
	if err != nil {
		return err
	}
	body, err := codec.Of(c.Kind).Encode(c, result, s.opts.Fingerprint)
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}
