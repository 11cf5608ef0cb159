package calls

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable/callpb"
	"github.com/millrace/millrace/durable/log"
)

// begin starts a new call, or follows the call that has its id already. A refused call writes
// nothing.
func (s *session) begin(ctx context.Context, rec *log.CallRecord, c *call.Call) {
	if c.Named && s.followIfExists(ctx) {
		return
	}
	if !s.log.Prepare(rec) {
		s.c.metrics.unlogged.Inc()
		s.fail(errQuotaUsed)
		return
	}
	run, stop := context.WithCancelCause(s.runContext(rec))
	answer, err := s.c.direct.Continue(run, c, c.Progress(nil), 0)
	if err != nil {
		stop(nil)
		s.log.Free()
		s.fail(err)
		return
	}
	s.setLeading(true)
	err = s.log.Create(ctx, s.c.opts.Rejoin, func() error {
		if s.isDraining() {
			return errStopping(s.id)
		}
		return nil
	})
	if err != nil {
		stop(nil)
		s.setLeading(false)
		s.log.Free()
		s.followExisting(ctx, err)
		return
	}
	s.call = c
	s.open()
	s.c.running.Go(func() { s.run(answer, stop) })
}

// followExisting follows the log that another gateway began in the meantime, or fails the session. err
// is the error of create.
func (s *session) followExisting(ctx context.Context, err error) {
	switch {
	case errors.Is(err, log.ErrFenced):
		st, events, err := s.read(ctx, false)
		for begin := time.Now(); errors.Is(err, log.ErrNoLog) && log.RetryWait(ctx, begin, s.c.opts.Timeout); {
			st, events, err = s.read(ctx, false) // the replica that was read may not have it yet
		}
		switch {
		case err == nil:
			s.adopt(st, events)
		case errors.Is(err, log.ErrNoLog):
			s.fail(log.Unavailable(err))
		default:
			s.fail(s.failure(err))
		}
	case errors.Is(err, log.ErrFull):
		s.fail(errLogsFull(s.c.opts.Keep)) // the limits were charged for this run, so do not run it again without a log
	default:
		s.fail(log.Unavailable(err))
	}
}

// followIfExists follows the log that the call's id has already, or fails the session. It returns false
// if there is none. It removes the rest of a log whose beginning and whose gateway are both gone.
func (s *session) followIfExists(ctx context.Context) bool {
	st, events, err := s.read(ctx, false)
	switch {
	case err == nil:
		s.adopt(st, events)
		return true
	case errors.Is(err, log.ErrNoLog), errors.Is(err, log.ErrNotOurs):
		return false
	case errors.Is(err, log.ErrGap):
		if err = s.log.Purge(ctx, st.Last+1); err == nil {
			return false
		}
	}
	s.fail(s.failure(err))
	return true
}

// find follows a call that has a log, or whose log was lost and is in another gateway's memory. That
// gateway then writes the log again. Right after such a loss it may not be connected yet.
func (s *session) find() {
	st, events, err := s.read(s.ctx, true)
	if errors.Is(err, log.ErrNoLog) && s.c.logs.RecentlyLost(s.ctx) && !s.isDraining() {
		s.fail(lost(s.id))
		return
	}
	if err != nil {
		s.fail(s.failure(err))
		return
	}
	s.adopt(st, events)
}

// failure returns the client's error for an error of read.
func (s *session) failure(err error) error {
	switch {
	case s.isDraining():
		return errStopping(s.id)
	case errors.Is(err, log.ErrNoLog), errors.Is(err, log.ErrNotOurs):
		return s.c.notFound(s.id)
	case errors.Is(err, log.ErrGap), errors.Is(err, log.ErrReplaced):
		return expired(s.id)
	case errors.Is(err, log.ErrOutgrown):
		return outgrown(s.id)
	}
	return log.Unavailable(err)
}

// read loads the call's log. It waits for up to Options.Rejoin for JetStream, and for the gateway that
// has the call in memory to write missing records again. If lost is set, a missing log is waited for
// too, in the first Options.Rejoin of a stream: otherwise a client that tries again would wait again.
func (s *session) read(ctx context.Context, lost bool) (*log.State, []api.Event, error) {
	for begin := time.Now(); ; {
		st, events, err := s.log.Load(ctx)
		temporary := errors.Is(err, log.ErrNoJetStream) || errors.Is(err, log.ErrGap) &&
			s.c.peers.anyHas(ctx, s.gapQuery(), maxUnanswered) ||
			lost && errors.Is(err, log.ErrNoLog) && (s.c.peers.anyHas(ctx, s.query(), 1) || s.c.logs.RecentlyCreated(ctx, s.c.opts.Rejoin))
		if !temporary || s.isDraining() || !log.RetryWait(ctx, begin, s.c.opts.Rejoin) {
			return st, events, err
		}
	}
}

// query returns a query about the call.
func (s *session) query() query {
	s.mu.Lock()
	defer s.mu.Unlock()
	return query{ID: s.id, Log: s.log.Name(), Cancel: s.cancelled}
}

// gapQuery returns a query for missing records.
func (s *session) gapQuery() query {
	q := s.query()
	q.Gap = true
	return q
}

// waitForRepair waits until another gateway has written the missing records. It returns false if no
// gateway has them.
func (s *session) waitForRepair() bool {
	st, _, err := s.read(s.ctx, false)
	return err == nil && st.Log == s.log.Log || errors.Is(err, log.ErrNoLog)
}

// adopt follows a log from the record up to which it was read.
func (s *session) adopt(st *log.State, events []api.Event) {
	c, err := callpb.Decode(s.id, st.Call.Encoded)
	if err != nil {
		s.fail(err)
		return
	}
	s.log.Adopt(st)
	s.call = c
	s.buffer.Append(events...)
	s.lastContact = time.Now()
	s.open()
	if st.Done {
		s.end()
		return
	}
	s.c.running.Go(func() { s.run(nil, nil) })
}

// isSameCall reports whether an encoded call is the session's call, sent a second time.
func (s *session) isSameCall(encoded []byte) bool { return callpb.Same(s.log.Call().Encoded, encoded) }

// served returns the models of this gateway that have the name: one or none.
func (c *Calls) served(name string) (models []api.Model) {
	for _, m := range c.direct.Engine().Models() {
		if m.ID == name {
			models = append(models, m)
		}
	}
	return models
}

// open makes the session's call and error visible to its readers.
func (s *session) open() { close(s.opened) }

// fail ends a session that never had an answer. The next request for the call gets a new session.
func (s *session) fail(err error) {
	s.failed = err
	s.end()
	s.open()
}

// end removes the session from the table. Its readers keep the event buffer.
func (s *session) end() {
	s.stop()
	s.c.remove(s)
	s.c.metrics.sessions.Dec()
}
