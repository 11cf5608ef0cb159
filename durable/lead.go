package durable

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/api"
)

// batchEvents is how many events a record holds at most. While one is on its way
// further events gather for the next.
const batchEvents = 256

// lead writes the answer into the log and then shows it to the readers, until it
// has ended. stop cancels what still runs; with ErrMoved it is left to run on.
func (s *session) lead(answer <-chan api.Event, stop context.CancelCauseFunc) error {
	defer stop(nil)
	idle := time.NewTicker(max(s.c.opts.Window/4, time.Millisecond))
	defer idle.Stop()
	refresh := time.NewTicker(s.c.opts.Age)
	defer refresh.Stop()
	for {
		select {
		case ev, ok := <-answer:
			batch := s.collectBatch(ev, ok, answer)
			if s.ctx.Err() != nil {
				return s.ctx.Err()
			}
			if err := s.append(batch); err != nil {
				return err
			}
			if s.state.done {
				return s.finish(batch[len(batch)-1])
			}
			continue
		case <-s.wake:
		case <-idle.C:
		case <-refresh.C:
			if err := s.closeLogIfFull(s.refresh()); err != nil {
				return err
			}
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		if err := s.closeLogIfFull(s.verify()); err != nil {
			return err
		}
		if s.isDraining() && !s.logClosed {
			stop(api.ErrMoved)
			return s.release()
		}
		if reason := s.endReason(); reason != nil {
			if reason != errCancelled {
				s.c.metrics.abandoned.Inc()
			}
			err := s.append([]api.Event{{Seq: s.state.known + 1, Finish: api.FinishCancelled, Err: reason, Done: true}})
			if err == nil {
				s.keepLog()
			}
			return err
		}
	}
}

// gather takes an event and those that wait behind it. A failure ends the call,
// as it ends the stream of whoever reads it.
func (s *session) collectBatch(ev api.Event, ok bool, answer <-chan api.Event) []api.Event {
	var batch []api.Event
	for {
		if !ok {
			ev = api.Event{Seq: s.state.known + uint64(len(batch)) + 1, Finish: api.FinishError, Err: api.AsError(nil)}
		}
		ev.Done = ev.Done || api.Failure(ev) != nil
		batch = append(batch, ev)
		if ev.Done || len(batch) == batchEvents {
			return batch
		}
		select {
		case ev, ok = <-answer:
		default:
			return batch
		}
	}
}

// last: a call that was refused before it said anything leaves no log, so that it
// can be sent again under the same id.
func (s *session) finish(ev api.Event) error {
	if failed := api.Failure(ev); failed != nil && ev.Seq == 1 && retriable(failed) {
		s.eraseLog()
	} else {
		s.keepLog()
	}
	return nil
}

// keep has the log of the call, which has ended, written again should it be lost soon.
func (s *session) keepLog() {
	l := &endedLog{log: s.log, quotaKey: s.state.quotaKey(s.log), initial: state{tenant: s.tenant, id: s.id}, last: s.state.last, whole: true}
	if !s.logClosed {
		s.c.quota.reserve(l.quotaKey, s.tenant, s.state.bytes)
		l.records = s.records()
	}
	s.c.recent.add(l)
}

// records are the call and all its events, as its log begins anew with them.
func (s *session) records() [][]byte {
	call := *s.record
	call.owner = s.c.node
	all := [][]byte{(&record{log: s.state.log, token: s.token, call: &call}).encode()}
	for events := s.buffer.Events(); len(events) > 0; {
		n := min(len(events), batchEvents)
		all = append(all, (&record{log: s.state.log, token: s.token, events: events[:n]}).encode())
		events = events[n:]
	}
	return all
}

// append writes events and shows them to the readers. While JetStream is away it
// waits; errFenced says that the call is another gateway's now. An answer that outgrows its
// tenant's share continues without a log.
func (s *session) append(events []api.Event) error {
	start := time.Now()
	var err error
	if !s.logClosed {
		err = s.untilOutage(func() error { return s.write(events) })
	}
	if err := s.closeLogIfFull(err); err != nil {
		return err
	}
	last := events[len(events)-1]
	s.state.known, s.state.done = last.Seq, last.Done
	s.c.metrics.events.Add(float64(len(events)))
	s.c.metrics.publish.Observe(time.Since(start).Seconds())
	s.buffer.Append(events...)
	return nil
}

// untilOutage tries something again while JetStream is away.
func (s *session) untilOutage(try func() error) error {
	start, pause := time.Now(), 20*time.Millisecond
	for {
		err := try()
		if err == nil || errors.Is(err, errFenced) || errors.Is(err, errFull) {
			return err
		}
		if s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		if time.Since(start) > s.c.opts.Outage {
			return unavailable(err)
		}
		s.c.journal.ensure(s.ctx) //nolint:errcheck // the next try says what is wrong
		sleep(s.ctx, pause)
		pause = min(2*pause, time.Second)
	}
}

// write appends one record of events. When the log is not as we left it, it finds
// out why: our own record is there although its acknowledgment was lost, the log
// was lost and is written again, or the call is another gateway's.
func (s *session) write(events []api.Event) error {
	for {
		body := (&record{log: s.state.log, token: s.token, events: events}).encode()
		cost := s.c.journal.cost(len(body))
		if !s.reserve(s.state.bytes + cost) {
			return errFull
		}
		_, last, err := s.c.journal.write(s.ctx, s.log, body, s.state.last)
		if err == nil {
			s.state.last = last
			s.state.bytes += cost
			return nil
		}
		if !errors.Is(err, errFenced) {
			return err
		}
		landed, err := s.resync()
		if err != nil {
			return err
		}
		for len(events) > 0 && events[0].Seq <= landed {
			events = events[1:]
		}
		if len(events) == 0 {
			return nil
		}
	}
}

// grow makes room for a log of the given bytes, and for a part more where there is some.
func (s *session) reserve(bytes int64) bool {
	if bytes <= s.reserved {
		return true
	}
	for _, room := range []int64{reservedFor(bytes), bytes} {
		if s.c.quota.reserve(s.state.quotaKey(s.log), s.tenant, room) {
			s.reserved = room
			return true
		}
	}
	return false
}

// shrink gives back the room of a log that is not ours, or not there.
func (s *session) freeReservation() {
	s.c.quota.free(s.state.quotaKey(s.log))
	s.reserved = 0
}

// orClose closes a log that has no room.
func (s *session) closeLogIfFull(err error) error {
	if errors.Is(err, errFull) {
		return s.closeLog()
	}
	return err
}

// closeLog ends the log of a call that runs: there is no room for it. The readers here get
// the whole answer, others get errOutgrown.
func (s *session) closeLog() error {
	last := s.state.last
	if last == unknownSeq {
		st := &state{tenant: s.tenant, id: s.id}
		if _, err := s.c.journal.load(s.ctx, s.log, st); err != nil && !errors.Is(err, errGap) {
			return err
		} else if st.writer != s.token {
			return errFenced
		}
		last = st.last
	}
	s.purgeBefore(last) // all but the newest record, on which the next one depends
	err := s.untilOutage(func() (err error) {
		_, s.state.last, err = s.c.journal.publish(s.ctx, s.log, &record{log: s.state.log, token: s.token, closed: true}, last)
		if errors.Is(err, errFenced) {
			st := &state{tenant: s.tenant, id: s.id}
			if _, found := s.c.journal.load(s.ctx, s.log, st); errors.Is(found, errOutgrown) && st.writer == s.token {
				s.state.last, err = st.last, nil // only the acknowledgment was lost
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	s.purgeBefore(s.state.last)
	s.logClosed = true
	close(s.detached)
	s.freeReservation()
	s.c.metrics.closed.Inc()
	s.c.opts.Logger.Warn().Str("id", s.id).Int64("bytes", s.state.bytes).
		Msg("resume: the stream cannot be resumed any more: its log has outgrown its tenant's share")
	return nil
}

// remove removes the records before a stream sequence. Those that cannot be removed expire.
func (s *session) purgeBefore(before uint64) {
	if err := s.c.journal.purge(s.ctx, s.log, before); err != nil {
		s.c.opts.Logger.Debug().Err(err).Str("id", s.id).Msg("resume: records that are not needed stay until they expire")
	}
}

// resync reads our own log again and mends it; landed is the last event in it.
func (s *session) resync() (landed uint64, err error) {
	shown := uint64(len(s.buffer.Events()))
	st := &state{tenant: s.tenant, id: s.id}
	_, err = s.c.journal.load(s.ctx, s.log, st)
	var behind uint64
	switch {
	case errors.Is(err, errNoLog):
	case errors.Is(err, errNotOurs), errors.Is(err, errReplaced):
		return 0, errFenced
	case err != nil && !errors.Is(err, errGap):
		return 0, err
	case st.writer != s.token || st.call != nil && st.log != s.state.log:
		return 0, errFenced
	case err == nil && st.known >= shown && st.copied == st.known:
		s.state.last, s.state.begin, s.state.bytes = st.last, st.begin, st.bytes
		return st.known, nil
	default:
		behind = st.last
	}
	s.c.opts.Logger.Warn().Str("id", s.id).Uint64("events", shown).Msg("resume: the log was lost; it is written again from memory")
	if err := s.rewrite(behind); err != nil {
		return 0, err
	}
	if behind > 0 {
		s.purgeBefore(s.state.begin)
	}
	return shown, nil
}

// rewrite writes the call and all its events again, behind stream sequence behind.
// Until it is whole, nothing else fits behind it.
func (s *session) rewrite(behind uint64) error {
	s.state.last = unknownSeq
	var begin uint64
	var bytes int64
	last := behind
	for i, body := range s.records() {
		first, end, err := s.c.journal.write(s.ctx, s.log, body, last)
		if err != nil {
			return err
		}
		bytes += s.c.journal.cost(len(body))
		if last = end; i == 0 {
			begin = first
		}
	}
	s.state.last, s.state.begin, s.state.bytes = last, begin, bytes
	s.c.metrics.rewritten.Inc()
	return nil
}

// refresh writes the log again before its beginning expires.
func (s *session) refresh() error {
	if s.logClosed {
		return nil
	}
	return s.untilOutage(func() error {
		if err := s.rewrite(s.state.last); err != nil {
			if !errors.Is(err, errFenced) {
				return err
			}
			if _, err := s.resync(); err != nil {
				return err
			}
		}
		return s.c.journal.purge(s.ctx, s.log, s.state.begin)
	})
}

// release gives the call up, for another gateway to take.
func (s *session) release() error {
	nobody := ""
	s.token = newToken()
	if _, _, err := s.c.journal.publish(s.ctx, s.log, &record{log: s.state.log, token: s.token, owner: &nobody}, s.state.last); err != nil {
		s.c.opts.Logger.Warn().Err(err).Str("id", s.id).Msg("resume: the call could not be given up in its log")
	}
	return errDraining
}
