package calls

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/api"
)

// batchEvents is the largest number of events in a record. While one record is being written, events
// collect for the next one.
const batchEvents = 256

// lead writes the answer into the log and then into the event buffer, until it has ended. stop cancels
// the requests that still run. With api.ErrTakenOver they keep running.
func (s *session) lead(answer <-chan api.Event, stop context.CancelCauseFunc) error {
	defer stop(nil)
	idle := time.NewTicker(max(s.c.opts.Window/4, time.Millisecond))
	defer idle.Stop()
	refresh := time.NewTicker(s.c.opts.Age)
	defer refresh.Stop()
	var batch []api.Event
	for {
		select {
		case ev, ok := <-answer:
			batch = s.collectBatch(batch[:0], ev, ok, answer)
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
			stop(api.ErrTakenOver)
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

// collectBatch appends ev, and the events that follow it without a wait, to batch. A failure ends the
// call, as it ends the stream of each reader. ok is false if the answer was closed without an end.
func (s *session) collectBatch(batch []api.Event, ev api.Event, ok bool, answer <-chan api.Event) []api.Event {
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

// finish handles the end of a call. A call that was refused before its first output leaves no log, so
// that a client can send it again with the same id.
func (s *session) finish(ev api.Event) error {
	if failed := api.Failure(ev); failed != nil && ev.Seq == 1 && retriable(failed) {
		s.eraseLog()
	} else {
		s.keepLog()
	}
	return nil
}

// keepLog keeps the records of the ended call in memory, to write its log again if it is lost.
func (s *session) keepLog() {
	l := &endedLog{log: s.name, quotaKey: s.state.quotaKey(s.name), initial: state{tenant: s.tenant, id: s.id}, last: s.state.last, whole: true}
	if !s.logClosed {
		s.c.quota.reserve(l.quotaKey, s.tenant, s.state.bytes)
		l.records = s.records()
	}
	s.c.recent.add(l)
}

// records returns the call and all its events as the records of a rewritten log.
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

// append writes events into the log and then into the event buffer. It retries while JetStream is
// unavailable. errFenced means that another gateway owns the call. An answer that exceeds its tenant's
// quota continues without a log.
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

// untilOutage retries while JetStream is unavailable, for up to Options.Outage.
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
		s.c.journal.ensure(s.ctx) //nolint:errcheck // the next try returns the error
		sleep(s.ctx, pause)
		pause = min(2*pause, time.Second)
	}
}

// write appends one record of events. If the log does not end with this gateway's last record, write
// finds out why: the record was written and only its acknowledgment was lost, the log was lost and has
// to be written again, or another gateway owns the call.
func (s *session) write(events []api.Event) error {
	for {
		body := (&record{log: s.state.log, token: s.token, events: events}).encode()
		cost := s.c.journal.cost(len(body))
		if !s.reserve(s.state.bytes + cost) {
			return errFull
		}
		_, last, err := s.c.journal.write(s.ctx, s.name, body, s.state.last)
		if err == nil {
			s.state.last = last
			s.state.bytes += cost
			return nil
		}
		if !errors.Is(err, errFenced) {
			return err
		}
		written, err := s.resync()
		if err != nil {
			return err
		}
		for len(events) > 0 && events[0].Seq <= written {
			events = events[1:]
		}
		if len(events) == 0 {
			return nil
		}
	}
}

// reserve reserves quota for a log of the given size in bytes, rounded up to a step if possible.
func (s *session) reserve(bytes int64) bool {
	if bytes <= s.reserved {
		return true
	}
	for _, n := range []int64{reservedFor(bytes), bytes} {
		if s.c.quota.reserve(s.state.quotaKey(s.name), s.tenant, n) {
			s.reserved = n
			return true
		}
	}
	return false
}

// freeReservation frees the quota of a log that is not this gateway's, or does not exist.
func (s *session) freeReservation() {
	s.c.quota.free(s.state.quotaKey(s.name))
	s.reserved = 0
}

// closeLogIfFull closes the log if err is errFull, else it returns err.
func (s *session) closeLogIfFull(err error) error {
	if errors.Is(err, errFull) {
		return s.closeLog()
	}
	return err
}

// closeLog ends the log of a running call that has no quota left. Readers at this gateway get the whole
// answer, others get errOutgrown.
func (s *session) closeLog() error {
	last := s.state.last
	if last == unknownSeq {
		st := &state{tenant: s.tenant, id: s.id}
		if _, err := s.c.journal.load(s.ctx, s.name, st); err != nil && !errors.Is(err, errGap) {
			return err
		} else if st.writer != s.token {
			return errFenced
		}
		last = st.last
	}
	s.purgeBefore(last) // all but the newest record, on which the next one depends
	err := s.untilOutage(func() (err error) {
		_, s.state.last, err = s.c.journal.publish(s.ctx, s.name, &record{log: s.state.log, token: s.token, closed: true}, last)
		if errors.Is(err, errFenced) {
			st := &state{tenant: s.tenant, id: s.id}
			if _, found := s.c.journal.load(s.ctx, s.name, st); errors.Is(found, errOutgrown) && st.writer == s.token {
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
		Msg("durable: log closed: it exceeded its tenant's quota, and the stream cannot be resumed")
	return nil
}

// purgeBefore removes the records before a stream sequence. If that fails, they expire.
func (s *session) purgeBefore(before uint64) {
	if err := s.c.journal.purge(s.ctx, s.name, before); err != nil {
		s.c.opts.Logger.Debug().Err(err).Str("id", s.id).Msg("durable: unneeded records could not be removed and will expire")
	}
}

// resync reads this gateway's own log again and rewrites it if it is damaged. written is the last
// event in it.
func (s *session) resync() (written uint64, err error) {
	shown := uint64(s.buffer.Len())
	st := &state{tenant: s.tenant, id: s.id}
	_, err = s.c.journal.load(s.ctx, s.name, st)
	var after uint64
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
		after = st.last
	}
	s.c.opts.Logger.Warn().Str("id", s.id).Uint64("events", shown).Msg("durable: log lost, writing it again from memory")
	if err := s.rewrite(after); err != nil {
		return 0, err
	}
	if after > 0 {
		s.purgeBefore(s.state.begin)
	}
	return shown, nil
}

// rewrite writes the call and all its events again, after the stream sequence after. Until it has
// succeeded the log's end is unknown, so no other write can succeed.
func (s *session) rewrite(after uint64) error {
	s.state.last = unknownSeq
	var begin uint64
	var bytes int64
	last := after
	for i, body := range s.records() {
		first, end, err := s.c.journal.write(s.ctx, s.name, body, last)
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

// refresh rewrites the log before its oldest records expire.
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
		return s.c.journal.purge(s.ctx, s.name, s.state.begin)
	})
}

// release gives up the ownership of the call, so that another gateway can take it over.
func (s *session) release() error {
	nobody := ""
	s.token = newToken()
	if _, _, err := s.c.journal.publish(s.ctx, s.name, &record{log: s.state.log, token: s.token, owner: &nobody}, s.state.last); err != nil {
		s.c.opts.Logger.Warn().Err(err).Str("id", s.id).Msg("durable: could not release the call in its log")
	}
	return errDraining
}
