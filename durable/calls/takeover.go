package calls

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/durable/callpb"
	"github.com/millrace/millrace/tracing"
)

// resetState prepares the session to read the log from its beginning. Events in the buffer stay known.
func (s *session) resetState() {
	s.state = state{tenant: s.tenant, id: s.id, call: s.record, log: s.state.log, owner: s.state.owner, token: s.state.token, takeovers: s.state.takeovers,
		known: uint64(s.buffer.Len())}
}

func newToken() uint64 { return rand.Uint64() }

// takeOver makes this gateway the owner of the call. Then it continues the call after the events in the
// buffer.
func (s *session) takeOver() (<-chan api.Event, context.CancelCauseFunc, error) {
	s.token = newToken()
	if err := s.own(); err != nil {
		return nil, nil, err
	}
	s.reserved = reservedFor(s.state.bytes)
	s.c.quota.takeOver(s.state.quotaKey(s.name), s.tenant, s.reserved, s.state.owner)
	s.state.owner, s.state.token = s.c.node, s.token
	s.state.takeovers++
	s.setLeading(true)
	s.c.metrics.takeovers.Inc()
	s.c.opts.Logger.Info().Str("id", s.id).Uint64("events", s.state.known).Msg("durable: call taken over")
	return s.resubmit()
}

// own writes this gateway's ownership into the log that was read, or the whole log if it is lost.
func (s *session) own() error {
	created, err := s.c.journal.creation(s.ctx)
	if err == nil && created.Equal(s.state.created) {
		node := s.c.node
		_, last, err := s.c.journal.publish(s.ctx, s.name, &record{log: s.state.log, token: s.token, owner: &node}, s.state.last)
		if err == nil {
			s.state.last = last
		}
		if !errors.Is(err, errFenced) {
			return err
		}
	}
	newest, err := s.c.journal.newest(s.ctx, s.name)
	switch {
	case err != nil:
		return err
	case newest == 0:
		return s.rewrite(0)
	}
	return errRestart
}

// runContext returns the context of the call's requests. It has the call's trace and the API key that
// started the call. If that key is gone, it has the key of the session's first reader, which belongs
// to the same tenant.
func (s *session) runContext(rec *callRecord) context.Context {
	ctx := tracing.With(s.ctx, rec.trace)
	caller := s.caller
	if s.c.opts.Keys != nil {
		if c := s.c.opts.Keys.Caller(rec.key); c != nil && c.TenantName() == rec.tenant {
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
func (s *session) resubmit() (<-chan api.Event, context.CancelCauseFunc, error) {
	begin := time.Now()
	for {
		run, stop := context.WithCancelCause(s.runContext(s.record))
		answer, err := s.rerun(run)
		if err == nil {
			return answer, stop, nil
		}
		stop(nil)
		if retriable(err) && s.endReason() == nil && retryWait(s.ctx, begin, s.c.opts.Outage) {
			continue
		}
		return s.failedAnswer(err)
	}
}

// rerun submits the part of the call that the buffer does not have. Each run needs its own call, because running a call changes it.
func (s *session) rerun(ctx context.Context) (<-chan api.Event, error) {
	c, err := callpb.Decode(s.id, s.record.encoded)
	if err != nil {
		return nil, err
	}
	if len(s.c.served(c.Model)) == 0 { // it may be loading
		return nil, &api.Error{Code: api.CodeUnavailable, Message: "no model is loaded yet", RetryAfter: time.Second}
	}
	return s.c.direct.Continue(ctx, c, c.Progress(s.buffer.Events()), s.state.takeovers)
}

// failedAnswer returns an answer that ends with an error.
func (s *session) failedAnswer(err error) (<-chan api.Event, context.CancelCauseFunc, error) {
	answer := make(chan api.Event, 1)
	answer <- api.Event{Seq: s.state.known + 1, Finish: api.FinishError, Err: api.AsError(err), Done: true}
	return answer, func(error) {}, nil
}

// retriable reports whether a refusal may pass with time.
func retriable(err error) bool {
	e := api.AsError(err)
	return e.Code == api.CodeOverloaded || e.Code == api.CodeUnavailable
}

// retryWait pauses before another try. It returns false if the tries since begin have taken limit, or
// ctx ended.
func retryWait(ctx context.Context, begin time.Time, limit time.Duration) bool {
	const pause = 100 * time.Millisecond
	return time.Since(begin) < limit && sleep(ctx, pause)
}

// sleep pauses for d. It returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
