package openai

import (
	"context"
	"net/http"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/openai/wire"
)

type decoder func(body []byte, models []api.Model, arrival time.Time) (*wire.Call, error)

// generate serves one of the two generation paths. When it returns, for whatever
// reason, its context ends and with it everything that still runs for the call.
func (s *server) generate(decode decoder) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		arrival := time.Now()
		body, err := s.body(w, r)
		if err != nil {
			return err
		}
		call, err := decode(body, s.visible(r), arrival)
		if err != nil {
			return err
		}
		if w, ok := w.(*response); ok {
			w.callID = call.ID
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		resumable, err := s.opts.Resume.Wants(call)
		if err != nil {
			return err
		}
		if resumable {
			return s.resumable(ctx, w, call, body)
		}
		return s.run(ctx, w, call)
	}
}

// run runs a call whose answer is not kept.
func (s *server) run(ctx context.Context, w http.ResponseWriter, call *wire.Call) error {
	events, err := call.Run(ctx, s.engine)
	if err != nil {
		return err
	}
	return s.answer(ctx, w, call, events)
}

// answer writes a call's events, as a stream or as a whole.
func (s *server) answer(ctx context.Context, w http.ResponseWriter, call *wire.Call, events <-chan api.Event) error {
	if call.Stream {
		return s.stream(ctx, s.sse(ctx, w, call), events)
	}
	answer, err := call.Collect(ctx, events, s.opts.Fingerprint)
	if err != nil {
		return err
	}
	return writeJSON(w, answer)
}
