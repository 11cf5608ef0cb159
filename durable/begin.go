package durable

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// begin makes s the session of a new call, or of the one that has its id already. Nothing is
// written of a call that is refused.
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

// instead follows the log that another gateway has begun meanwhile, or fails.
func (s *session) followExisting(ctx context.Context, err error) {
	switch {
	case errors.Is(err, errFenced):
		st, events, err := s.read(ctx, false)
		for begin := time.Now(); errors.Is(err, errNoLog) && retryWait(ctx, begin, s.c.opts.Timeout); {
			st, events, err = s.read(ctx, false) // from a replica that does not have it yet
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
		s.fail(errLogsFull(s.c.opts.Keep)) // the requests were admitted: they cannot be run again at once
	default:
		s.fail(unavailable(err))
	}
}

// exists follows the log that the call's id has already, or fails; false: there is none. What is left of
// a log whose beginning is lost, and whose gateway, too, is removed.
func (s *session) followIfExists(ctx context.Context) bool {
	st, events, err := s.read(ctx, false)
	switch {
	case err == nil:
		s.adopt(st, events)
		return true
	case errors.Is(err, errNoLog), errors.Is(err, errNotOurs):
		return false
	case errors.Is(err, errGap):
		if err = s.c.journal.purge(ctx, s.log, st.last+1); err == nil {
			return false
		}
	}
	s.fail(s.failure(err))
	return true
}

// create writes the record of the call, whose form is body; errFenced: there is a log. While
// JetStream is away, for an election it may be, a new call waits as those that run do.
func (s *session) create(ctx context.Context, r *record, body []byte) (*state, error) {
	st := &state{tenant: s.tenant, id: s.id, call: r.call, log: r.log, owner: s.c.node, token: s.token, bytes: s.c.journal.cost(len(body))}
	for begin := time.Now(); ; {
		var err error
		st.begin, st.last, err = s.c.journal.write(ctx, s.log, body, 0)
		if errors.Is(err, errFenced) && s.alreadyWritten(ctx, st) {
			err = nil
		}
		if err == nil {
			return st, nil
		}
		if errors.Is(err, errFenced) || errors.Is(err, errFull) {
			return nil, err
		}
		s.c.journal.ensure(ctx) //nolint:errcheck // the next try says what is wrong
		if s.isDraining() {
			return nil, errStopping(s.id)
		}
		if !retryWait(ctx, begin, s.c.opts.Rejoin) {
			return nil, err
		}
	}
}

// landed says whether the log that is there is the one of st, which we have just begun: only the
// acknowledgment was lost.
func (s *session) alreadyWritten(ctx context.Context, st *state) bool {
	is := &state{tenant: s.tenant, id: s.id}
	if _, err := s.c.journal.load(ctx, s.log, is); err != nil || is.log != st.log || is.token != st.token {
		return false
	}
	st.begin, st.last = is.begin, is.last
	return true
}

// find makes s a session of a call that has a log, or of one that another gateway has
// in its memory and whose log was lost: that one writes it again. Right after such a loss
// the gateway may not be there yet.
func (s *session) find() {
	st, events, err := s.read(s.ctx, true)
	if err != nil {
		s.fail(s.failure(err))
		return
	}
	s.adopt(st, events)
}

// failure is what a client is told when there is no log to read.
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

// read loads the call's log. It waits for JetStream, and for the gateway that has the call in its
// memory to write again what is missing: some records, or with lost also the whole log.
func (s *session) read(ctx context.Context, lost bool) (*state, []api.Event, error) {
	for begin := time.Now(); ; {
		st, events, err := s.load(ctx)
		passes := errors.Is(err, errNoJetStream) || errors.Is(err, errGap) && s.c.peers.anyHas(ctx, s.gapQuery(), maxUnanswered) ||
			lost && errors.Is(err, errNoLog) && (s.c.peers.anyHas(ctx, s.query(), 1) || s.c.journal.recentlyCreated(ctx))
		if !passes || s.isDraining() || !retryWait(ctx, begin, s.c.opts.Rejoin) {
			return st, events, err
		}
	}
}

// load reads the log, or the one that a version before has written for the call.
func (s *session) load(ctx context.Context) (*state, []api.Event, error) {
	st := &state{tenant: s.tenant, id: s.id}
	events, err := s.c.journal.load(ctx, s.log, st)
	if !errors.Is(err, errNoLog) || s.log == s.id {
		return st, events, err
	}
	old := &state{tenant: s.tenant, id: s.id}
	events, oldErr := s.c.journal.load(ctx, s.id, old)
	if oldErr != nil && old.call == nil { // none, or we cannot tell whose
		return st, nil, err
	}
	s.mu.Lock()
	s.log = s.id
	s.mu.Unlock()
	return old, events, oldErr
}

// question is about the call, to whoever may have it.
func (s *session) query() query {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := query{ID: s.id, Cancel: s.cancelled}
	if s.log != s.id {
		q.Log = s.log
	}
	return q
}

// gapped asks for the records that are missing.
func (s *session) gapQuery() query {
	q := s.query()
	q.Gap = true
	return q
}

// mended waits until the log lacks nothing any more, and reads it again; false: nobody has
// what is missing.
func (s *session) waitForRepair() bool {
	st, _, err := s.read(s.ctx, false)
	return err == nil && st.log == s.state.log || errors.Is(err, errNoLog)
}

// adopt follows a log from where it was read to.
func (s *session) adopt(st *state, events []api.Event) {
	c, err := s.decode(st.call)
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

// decode returns the call of a record, to be run once.
func (s *session) decode(r *callRecord) (*call.Call, error) {
	switch {
	case r.encoded != nil:
		return decodeCall(r.id, r.encoded)
	case s.c.opts.DecodeOld == nil:
		return nil, expired(s.id)
	}
	return s.c.opts.DecodeOld(r.kind, r.id, r.body, s.c.served(r.model), r.arrival)
}

// runs reports whether the session's call is the one of a form, sent a second time.
func (s *session) isSameCall(form []byte) bool {
	own := s.record.encoded
	if own == nil {
		var err error
		if own, err = encodeCall(s.call); err != nil {
			return false
		}
	}
	return sameCall(own, form)
}

// served returns the model of a name, if this gateway serves it.
func (c *Calls) served(name string) (models []api.Model) {
	for _, m := range c.direct.Engine().Models() {
		if m.ID == name {
			models = append(models, m)
		}
	}
	return models
}

func (s *session) open() { close(s.opened) }

// fail ends a session that never had an answer. Who asks next gets a new one.
func (s *session) fail(err error) {
	s.failed = err
	s.end()
	s.open()
}

// end leaves the session to the readers that it has.
func (s *session) end() {
	s.stop()
	s.c.remove(s)
	s.c.metrics.sessions.Dec()
}

// erase forgets that the call was there, so that it can be sent again.
func (s *session) eraseLog() {
	s.freeReservation()
	if err := s.c.journal.purge(s.c.ctx, s.log, 0); err != nil {
		s.c.opts.Logger.Warn().Err(err).Str("id", s.id).Msg("resume: the log of a refused call stays")
	}
}
