package natsapi

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/codec"
	"github.com/millrace/millrace/tracing"
)

// generate serves the subject of one kind of call.
func (s *Service) generate(format call.Codec) func(context.Context, *reply, []byte) {
	return func(ctx context.Context, r *reply, body []byte) {
		r.encodeError = format.Error
		c, err := format.Decode(body, api.Visible(ctx, s.engine.Models()), time.Now())
		if err != nil {
			r.fail(err)
			return
		}
		r.callID, r.ignored = c.ID, c.IgnoredText()
		answer, err := s.opts.Calls.Run(ctx, c)
		if err != nil {
			r.fail(err)
			return
		}
		s.send(ctx, r, answer)
	}
}

// send sends an answer as a stream or as one message. A call ends when its client disconnects, unless
// it is resumable: it then runs for a while without a reader. A cancellation ends both.
func (s *Service) send(ctx context.Context, r *reply, a call.Answer) {
	defer a.Close()
	noReader := errNoReader
	if a.Resumable() {
		noReader = errReaderAway
		r.resumable, r.interval = true, s.opts.PingAfter
	}
	ctx, subject, forget := s.cancellable(ctx, noReader)
	defer forget()
	c := a.Call()
	r.callID, r.encodeError = c.ID, codec.Of(c.Kind).Error
	if b, ok := a.(call.Bodied); ok && !c.Stream {
		r.single(b.Body())
	} else if c.Stream {
		r.cancel = subject
		s.stream(ctx, r, c, a.Events(ctx))
	} else {
		s.collect(ctx, r, c, a.Events(ctx))
	}
	if errors.Is(context.Cause(ctx), errCancelled) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
		defer cancel()
		a.Cancel(ctx) //nolint:errcheck // without a reader it ends later
	}
}

// collect sends an answer as one message.
func (s *Service) collect(ctx context.Context, r *reply, c *call.Call, events call.EventStream) {
	result, err := call.Collect(ctx, c, events)
	switch {
	case ctx.Err() != nil:
		r.fail(context.Cause(ctx))
		return
	case err != nil:
		r.fail(err)
		return
	}
	body, err := codec.Of(c.Kind).Encode(c, result, s.opts.Fingerprint)
	if err != nil {
		r.fail(err)
		return
	}
	for _, pin := range result.Pins {
		r.kv = cmp.Or(pin.KV(), r.kv)
	}
	r.single(body)
}

// stream sends each chunk as a message. It sends one at once, so the client has the cancel subject while its request waits: a ping for
// chunks of OpenAI's form, which all have the fingerprint of the worker.
func (s *Service) stream(ctx context.Context, r *reply, c *call.Call, events call.EventStream) {
	format := codec.Of(c.Kind)
	r.encodeError = format.ErrorInStream
	chunks := format.Stream(c, s.opts.Fingerprint)
	open := sync.OnceFunc(func() {
		for _, chunk := range chunks.Open() {
			r.chunk(chunk, "")
		}
	})
	if format.Frames != call.Events {
		open()
	}
	if !r.opened {
		r.ping()
	}
	fail := func(err error) {
		list := format.ErrorChunks(chunks, api.AsError(err))
		for _, chunk := range list[:len(list)-1] {
			r.chunk(chunk, "")
		}
		r.encodeError = func(*api.Error) []byte { return list[len(list)-1] }
		r.fail(err)
	}
	ping := time.NewTicker(s.opts.PingAfter)
	defer ping.Stop()
	end := ending{}
	span := trace.Span(noop.Span{})
	first := sync.OnceFunc(func() { span = tracing.Stage(s.opts.Tracer, tracing.Of(ctx), "stream") })
	defer func() { span.End() }()
	for r.err == nil {
		ev, ok, err := events.Poll()
		if ctx.Err() != nil { // the events end with it
			fail(context.Cause(ctx))
			return
		}
		if !ok && err == nil {
			select {
			case <-ctx.Done():
			case <-ping.C:
				r.ping()
			case <-events.Wake():
			}
			continue
		}
		ping.Reset(s.opts.PingAfter)
		first()
		if !ok {
			ev = api.Event{Finish: api.FinishError}
		}
		if failed := api.Failure(ev); failed != nil {
			fail(failed)
			return
		}
		end.add(ev)
		if ev.Pin != nil {
			r.kv = cmp.Or(ev.Pin.KV(), r.kv)
		}
		chunks.Observe(ev)
		open()
		r.chunks(chunks.Encode(ev), end.reason(ev.Done))
		if ev.Done {
			return
		}
	}
}

// ending is the finish reason of all choices together: length if any of them has it, else stop.
type ending struct{ cut bool }

func (e *ending) add(ev api.Event) { e.cut = e.cut || ev.Finish == api.FinishLength }

func (e *ending) reason(done bool) string {
	switch {
	case !done:
		return ""
	case e.cut:
		return string(api.FinishLength)
	}
	return string(api.FinishStop)
}
