package calls

import (
	"context"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable/callpb"
	"github.com/millrace/millrace/durable/log"
	"github.com/millrace/millrace/tracing"
)

// takeOver makes this gateway the owner of the call. Then it continues the call after the events in the
// buffer.
func (s *session) takeOver() (call.EventStream, context.CancelCauseFunc, error) {
	if err := s.log.TakeOver(s.ctx); err != nil {
		return nil, nil, err
	}
	s.setLeading(true)
	s.c.metrics.takeovers.Inc()
	s.c.opts.Logger.Info().Str("id", s.id).Uint64("events", s.log.Known).Msg("durable: call taken over")
	return s.resubmit()
}

// runContext returns the context of the call's requests. It has the call's trace and the API key that
// started the call. If that key is gone, it has the key of the session's first reader, which belongs
// to the same tenant.
func (s *session) runContext(rec *log.CallRecord) context.Context {
	ctx := tracing.With(s.ctx, rec.Trace)
	caller := s.caller
	if s.c.opts.Keys != nil {
		if c := s.c.opts.Keys.Caller(rec.Key); c != nil && c.TenantName() == rec.Tenant {
			caller = c
		}
	}
	if caller == nil {
		return ctx
	}
	return api.WithCaller(ctx, caller)
}

// resubmit continues the call where it stopped. It retries a refusal (a full queue, a model that is
// loading) for up to Options.Outage and does not show it to the client.
func (s *session) resubmit() (call.EventStream, context.CancelCauseFunc, error) {
	begin := time.Now()
	for {
		run, stop := context.WithCancelCause(s.runContext(s.log.Call()))
		answer, err := s.rerun(run)
		if err == nil {
			return answer, stop, nil
		}
		stop(nil)
		if retriable(err) && s.endReason() == nil && log.RetryWait(s.ctx, begin, s.c.opts.Outage) {
			continue
		}
		return s.failedAnswer(err)
	}
}

// rerun submits the part of the call that the buffer does not have. Each run needs its own call, because running a call changes it.
func (s *session) rerun(ctx context.Context) (call.EventStream, error) {
	c, err := callpb.Decode(s.id, s.log.Call().Encoded)
	if err != nil {
		return nil, err
	}
	if len(s.c.served(c.Model)) == 0 { // it may be loading
		return nil, &api.Error{Code: api.CodeUnavailable, Message: "no model is loaded yet", RetryAfter: time.Second}
	}
	return s.c.direct.Continue(ctx, c, c.Progress(s.buffer.Events()), s.log.Takeovers)
}

// failedAnswer returns an answer that ends with an error.
func (s *session) failedAnswer(err error) (call.EventStream, context.CancelCauseFunc, error) {
	end := api.Event{Seq: s.log.Known + 1, Finish: api.FinishError, Err: api.AsError(err), Done: true}
	return call.EventsOf(end), func(error) {}, nil
}

// retriable reports whether a refusal may pass with time.
func retriable(err error) bool {
	e := api.AsError(err)
	return e.Code == api.CodeOverloaded || e.Code == api.CodeUnavailable
}
