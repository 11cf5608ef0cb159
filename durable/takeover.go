package durable

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tracing"
)

// restart reads the log from its beginning again; what is known stays known.
func (s *session) resetState() {
	s.state = state{tenant: s.tenant, id: s.id, call: s.record, log: s.state.log, owner: s.state.owner, token: s.state.token, takeovers: s.state.takeovers,
		known: uint64(len(s.buffer.Events()))}
}

func newToken() uint64 { return rand.Uint64() }

// takeOver writes our ownership into the log, or the whole log if that is lost,
// and goes on with the call behind what its readers have.
func (s *session) takeOver() (<-chan api.Event, context.CancelCauseFunc, error) {
	s.token = newToken()
	newest, made, err := s.c.journal.newestOf(s.ctx, s.log)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case newest == 0:
		err = s.rewrite(0)
	case !made.Equal(s.state.created):
		err = errRestart
	default:
		node := s.c.node
		_, s.state.last, err = s.c.journal.publish(s.ctx, s.log, &record{log: s.state.log, token: s.token, owner: &node}, s.state.last)
	}
	if err != nil {
		return nil, nil, err
	}
	s.reserved = reservedFor(s.state.bytes)
	s.c.quota.takeOver(s.state.quotaKey(s.log), s.tenant, s.reserved, s.state.owner)
	s.state.owner, s.state.token = s.c.node, s.token
	s.state.takeovers++
	s.setLeading(true)
	s.c.metrics.takeovers.Inc()
	s.c.opts.Logger.Info().Str("id", s.id).Uint64("events", s.state.known).Msg("resume: call taken over")
	return s.resubmit()
}

// runContext is for the call's requests: they are part of its trace, and within the limits of
// the key that started the call. Where that key is gone, they are within the limits of the key that
// found the call here, which belongs to the same tenant.
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

// resubmit runs the call from where it stopped. A refusal (no room, a model that
// loads) is not the client's: it is tried again for a while.
func (s *session) resubmit() (<-chan api.Event, context.CancelCauseFunc, error) {
	if s.unpinned() {
		return s.failedAnswer(errUnpinned(s.id))
	}
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

// rerun submits what the call's readers do not have yet.
func (s *session) rerun(ctx context.Context) (<-chan api.Event, error) {
	c, err := s.decode(s.record)
	if err != nil {
		return nil, err
	}
	if len(s.c.served(c.Model)) == 0 { // this gateway's model of that name may be loading
		return nil, &api.Error{Code: api.CodeUnavailable, Message: "no model is loaded yet", RetryAfter: time.Second}
	}
	return s.c.direct.Continue(ctx, c, c.Progress(s.buffer.Events()), s.state.takeovers)
}

// over is an answer that ends with an error.
func (s *session) failedAnswer(err error) (<-chan api.Event, context.CancelCauseFunc, error) {
	answer := make(chan api.Event, 1)
	answer <- api.Event{Seq: s.state.known + 1, Finish: api.FinishError, Err: api.AsError(err), Done: true}
	return answer, func(error) {}, nil
}

// unbound says whether a version before has begun the answer: its log does not name what computed
// the tokens, so that no worker is known to continue with the same bits.
func (s *session) unpinned() bool {
	return s.state.log == logID{} && slices.ContainsFunc(s.buffer.Events(), func(ev api.Event) bool { return len(ev.Tokens) > 0 || ev.Text != "" })
}

func errUnpinned(id string) *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Reason: "no_equal_worker", RetryAfter: time.Second, Message: fmt.Sprintf(
		"stream %q was begun by an earlier version, whose log does not name the kind of worker: the text might not be the same: send the request again", id)}
}

// again says whether a refusal passes by waiting.
func retriable(err error) bool {
	e := api.AsError(err)
	return e.Code == api.CodeOverloaded || e.Code == api.CodeUnavailable
}

// waits a little before another try; false when the tries since begin have taken so long, or ctx ended.
func retryWait(ctx context.Context, begin time.Time, most time.Duration) bool {
	const pause = 100 * time.Millisecond
	return time.Since(begin) < most && sleep(ctx, pause)
}

// sleep waits; false when ctx ended first.
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
