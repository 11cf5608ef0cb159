package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/millrace/millrace/api"
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
		c, err := s.decode(r, format, body, arrival)
		if err != nil {
			return err
		}
		if w, ok := w.(*response); ok {
			w.callID = c.ID
		}
		if text := c.IgnoredText(); text != "" {
			w.Header().Set(headerIgnored, text)
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

// decode decodes the body of a call, when there is room for it.
func (s *server) decode(r *http.Request, format call.Codec, body []byte, arrival time.Time) (*call.Call, error) {
	leave, err := s.bodies.enter(r.Context(), len(body))
	if err != nil {
		return nil, err
	}
	defer leave()
	return format.Decode(body, s.visible(r), arrival)
}

// answer writes an answer as a stream or as one body.
func (s *server) answer(ctx context.Context, w http.ResponseWriter, a call.Answer) error {
	c := a.Call()
	if c.Stream {
		return s.stream(ctx, s.sse(ctx, w, c), a.Events(ctx))
	}
	if b, ok := a.(call.Bodied); ok {
		return writeJSON(w, b.Body())
	}
	result, err := call.Collect(ctx, c, a.Events(ctx))
	if err != nil {
		return err
	}
	body, err := codec.Of(c.Kind).Encode(c, result, s.opts.Fingerprint)
	if err != nil {
		return err
	}
	for _, pin := range result.Pins {
		setKV(w, pin)
	}
	return writeJSON(w, body)
}

// headerIgnored is the header that names the parts of a request that have no effect.
const headerIgnored = "Millrace-Ignored"

// headerKV is the header that announces answers of workers that lose keys and values of long sequences, see api.Pin.
const headerKV = "Millrace-KV"

func setKV(w http.ResponseWriter, pin api.Pin) {
	if kv := pin.KV(); kv != "" {
		w.Header().Set(headerKV, kv)
	}
}
