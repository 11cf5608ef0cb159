package calls

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable/callpb"
)

// begin starts a new call, or follows the call that has its id already. A refused call writes
// nothing.
func (s *session) begin(ctx context.Context, rec *callRecord, c *call.Call) {
	if c.Named && s.followIfExists(ctx) {
		return
	}
	first := &record{log: newLogID(), token: s.token, call: rec}
	s.state.log = first.log
	body := first.encode()
	if !s.reserve(s.c.journal.cost(len(body))) {
		s.c.metrics.unlogged.Inc()
		s.fail(errQuotaUsed)
		return
	}
	run, stop := context.WithCancelCause(s.runContext(rec))
	answer, err := s.c.direct.Continue(run, c, c.Progress(nil), 0)
	if err != nil {
		stop(nil)
		s.freeReservation()
		s.fail(err)
		return
	}
	s.setLeading(true)
	st, err := s.create(ctx, first, body)
	if err != nil {
		stop(nil)
		s.setLeading(false)
		s.freeReservation()
		s.followExisting(ctx, err)
		return
	}
	s.state, s.record, s.call = *st, rec, c
	s.open()
	s.c.running.Go(func() { s.run(answer, stop) })
}

// followExisting follows the log that another gateway began in the meantime, or fails the session. err
// is the error of create.
func (s *session) followExisting(ctx context.Context, err error) {
	switch {
	case errors.Is(err, errFenced):
		st, events, err := s.read(ctx, false)
		for begin := time.Now(); errors.Is(err, errNoLog) && retryWait(ctx, begin, s.c.opts.Timeout); {
			st, events, err = s.read(ctx, false) // the replica that was read may not have it yet
		}
		switch {
		case err == nil:
			s.adopt(st, events)
		case errors.Is(err, errNoLog):
			s.fail(unavailable(err))
		default:
			s.fail(s.failure(err))
		}
	case errors.Is(err, errFull):
		s.fail(errLogsFull(s.c.opts.Keep)) // the limits were charged for this run, so do not run it again without a log
	default:
		s.fail(unavailable(err))
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
	case errors.Is(err, errNoLog), errors.Is(err, errNotOurs):
		return false
	case errors.Is(err, errGap):
		if err = s.c.journal.purge(ctx, s.name, st.last+1); err == nil {
			return false
		}
	}
	s.fail(s.failure(err))
	return true
}

// create writes the first record of a log; body is r encoded. errFenced means that a log exists. While
// JetStream is unavailable, for example during an election, create retries for up to Options.Rejoin.
func (s *session) create(ctx context.Context, r *record, body []byte) (*state, error) {
	st := &state{tenant: s.tenant, id: s.id, call: r.call, log: r.log, owner: s.c.node, token: s.token, bytes: s.c.journal.cost(len(body))}
	for begin := time.Now(); ; {
		var err error
		st.begin, st.last, err = s.c.journal.write(ctx, s.name, body, 0)
		if errors.Is(err, errFenced) && s.alreadyWritten(ctx, st) {
			err = nil
		}
		if err == nil {
			return st, nil
		}
		if errors.Is(err, errFenced) || errors.Is(err, errFull) {
			return nil, err
		}
		s.c.journal.ensure(ctx) //nolint:errcheck // the next try returns the error
		if s.isDraining() {
			return nil, errStopping(s.id)
		}
		if !retryWait(ctx, begin, s.c.opts.Rejoin) {
			return nil, err
		}
	}
}

// alreadyWritten reports whether the existing log is the one that create has just begun with st, and
// only the acknowledgment was lost.
func (s *session) alreadyWritten(ctx context.Context, st *state) bool {
	found := &state{tenant: s.tenant, id: s.id}
	if _, err := s.c.journal.load(ctx, s.name, found); err != nil || found.log != st.log || found.token != st.token {
		return false
	}
	st.begin, st.last = found.begin, found.last
	return true
}

// find follows a call that has a log, or whose log was lost and is in another gateway's memory. That
// gateway then writes the log again. Right after such a loss it may not be connected yet.
func (s *session) find() {
	st, events, err := s.read(s.ctx, true)
	if errors.Is(err, errNoLog) && s.c.journal.recentlyLost(s.ctx) && !s.isDraining() {
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
	case errors.Is(err, errNoLog), errors.Is(err, errNotOurs):
		return s.c.notFound(s.id)
	case errors.Is(err, errGap), errors.Is(err, errReplaced):
		return expired(s.id)
	case errors.Is(err, errOutgrown):
		return outgrown(s.id)
	}
	return unavailable(err)
}

// read loads the call's log. It waits for up to Options.Rejoin for JetStream, and for the gateway that
// has the call in memory to write missing records again. If lost is set, a missing log is waited for
// too, in the first Options.Rejoin of a stream: otherwise a client that tries again would wait again.
func (s *session) read(ctx context.Context, lost bool) (*state, []api.Event, error) {
	for begin := time.Now(); ; {
		st, events, err := s.load(ctx)
		temporary := errors.Is(err, errNoJetStream) || errors.Is(err, errGap) && s.c.peers.anyHas(ctx, s.gapQuery(), maxUnanswered) ||
			lost && errors.Is(err, errNoLog) && (s.c.peers.anyHas(ctx, s.query(), 1) || s.c.journal.recentlyCreated(ctx, s.c.opts.Rejoin))
		if !temporary || s.isDraining() || !retryWait(ctx, begin, s.c.opts.Rejoin) {
			return st, events, err
		}
	}
}

func (s *session) load(ctx context.Context) (*state, []api.Event, error) {
	st := &state{tenant: s.tenant, id: s.id}
	events, err := s.c.journal.load(ctx, s.name, st)
	return st, events, err
}

// query returns a query about the call.
func (s *session) query() query {
	s.mu.Lock()
	defer s.mu.Unlock()
	return query{ID: s.id, Log: s.name, Cancel: s.cancelled}
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
	return err == nil && st.log == s.state.log || errors.Is(err, errNoLog)
}

// adopt follows a log from the record up to which it was read.
func (s *session) adopt(st *state, events []api.Event) {
	c, err := callpb.Decode(s.id, st.call.encoded)
	if err != nil {
		s.fail(err)
		return
	}
	s.state, s.record, s.call = *st, st.call, c
	s.buffer.Append(events...)
	s.lastContact = time.Now()
	s.open()
	if st.done {
		s.end()
		return
	}
	s.c.running.Go(func() { s.run(nil, nil) })
}

// isSameCall reports whether an encoded call is the session's call, sent a second time.
func (s *session) isSameCall(encoded []byte) bool { return callpb.Same(s.record.encoded, encoded) }

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

// eraseLog removes the log of a refused call, so that a client can send the call again.
func (s *session) eraseLog() {
	s.freeReservation()
	if err := s.c.journal.purge(s.c.ctx, s.name, 0); err != nil {
		s.c.opts.Logger.Warn().Err(err).Str("id", s.id).Msg("durable: could not remove the log of a refused call")
	}
}
