package natsapi

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai/wire"
	"github.com/millrace/millrace/tracing"
)

type decoder func(body []byte, models []api.Model, arrival time.Time) (*call.Call, error)

// generate serves one of the two generation subjects.
func (s *Service) generate(decode decoder) func(context.Context, *reply, []byte) {
	return func(ctx context.Context, r *reply, body []byte) {
		c, err := decode(body, api.Visible(ctx, s.engine.Models()), time.Now())
		if err != nil {
			r.fail(err)
			return
		}
		resumable, err := s.opts.Resume.Wants(c)
		if err != nil {
			r.fail(err)
			return
		}
		if resumable {
			s.resumable(ctx, r, c, body)
			return
		}
		s.run(ctx, r, c)
	}
}

// run runs a call whose answer is not kept.
func (s *Service) run(ctx context.Context, r *reply, c *call.Call) {
	ctx, subject, forget := s.cancellable(ctx, errGone)
	defer forget()
	r.callID = c.ID
	events, err := c.Run(ctx, s.engine)
	if err != nil {
		r.fail(err)
		return
	}
	s.answer(ctx, r, subject, c, events)
}

// answer sends a call's events, as a stream or as a whole. subject is where a
// message cancels.
func (s *Service) answer(ctx context.Context, r *reply, subject string, c *call.Call, events <-chan api.Event) {
	if c.Stream {
		r.cancel = subject
		s.stream(ctx, r, c, events)
		return
	}
	answer, err := wire.Collect(ctx, c, events, s.opts.Fingerprint)
	switch {
	case ctx.Err() != nil:
		r.fail(context.Cause(ctx))
	case err != nil:
		r.fail(err)
	default:
		r.whole(answer)
	}
}

// stream sends each chunk as a message. The opening goes at once, so that the
// client knows how to cancel while its request still waits.
func (s *Service) stream(ctx context.Context, r *reply, c *call.Call, events <-chan api.Event) {
	chunks := wire.NewChunks(c, s.opts.Fingerprint)
	for _, chunk := range chunks.Open() {
		r.chunk(chunk, "")
	}
	if !r.opened {
		r.ping()
	}
	ping := time.NewTicker(s.opts.PingAfter)
	defer ping.Stop()
	end := ending{}
	span := trace.Span(noop.Span{})
	first := sync.OnceFunc(func() { span = tracing.Stage(s.opts.Tracer, tracing.Of(ctx), "stream") })
	defer func() { span.End() }()
	for r.err == nil {
		select {
		case <-ctx.Done():
			r.fail(context.Cause(ctx))
			return
		case <-ping.C:
			r.ping()
		case ev, ok := <-events:
			ping.Reset(s.opts.PingAfter)
			first()
			if !ok {
				ev = api.Event{Finish: api.FinishError}
			}
			if failed := api.Failure(ev); failed != nil {
				r.fail(failed)
				return
			}
			end.add(ev)
			r.chunks(chunks.Encode(ev), end.word(ev.Done))
			if ev.Done {
				return
			}
		}
	}
}

// ending is the one word for the end of all choices: length if any of them was
// cut, else stop.
type ending struct{ cut bool }

func (e *ending) add(ev api.Event) { e.cut = e.cut || ev.Finish == api.FinishLength }

func (e *ending) word(done bool) string {
	switch {
	case !done:
		return ""
	case e.cut:
		return string(api.FinishLength)
	}
	return string(api.FinishStop)
}
