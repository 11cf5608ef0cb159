package calls

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable/log"
)

// lead writes the answer into the log and then into the event buffer, until it has ended. stop cancels
// the requests that still run. With api.ErrTakenOver they keep running.
func (s *session) lead(answer call.EventStream, stop context.CancelCauseFunc) error {
	defer stop(nil)
	idle := time.NewTicker(max(s.c.opts.Window/4, time.Millisecond))
	defer idle.Stop()
	refresh := time.NewTicker(s.c.opts.Age)
	defer refresh.Stop()
	more := make(chan struct{}) // there may be events already
	close(more)
	var batch []api.Event
	for {
		next := answer.Wake()
		if batch = s.collectBatch(batch[:0], answer); len(batch) > 0 {
			if s.ctx.Err() != nil {
				return s.ctx.Err()
			}
			if err := s.append(batch); err != nil {
				return err
			}
			if s.log.Done {
				return s.finish(batch[len(batch)-1])
			}
			next = more
		}
		select {
		case <-next:
			continue
		case <-s.wake:
		case <-idle.C:
		case <-refresh.C:
			if err := s.closeLogIfFull(s.log.Refresh(s.ctx)); err != nil {
				return err
			}
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		if err := s.closeLogIfFull(s.verify()); err != nil {
			return err
		}
		if s.isDraining() && !s.log.Closed() {
			stop(api.ErrTakenOver)
			s.log.Release(s.ctx)
			return errDraining
		}
		if reason := s.endReason(); reason != nil {
			if reason != errCancelled {
				s.c.metrics.abandoned.Inc()
			}
			err := s.append([]api.Event{{Seq: s.log.Known + 1, Finish: api.FinishCancelled, Err: reason, Done: true}})
			if err == nil {
				s.log.Keep()
			}
			return err
		}
	}
}

// collectBatch appends the events that there are to batch. A failure ends the call, as it ends the
// stream of each reader, and so does an answer without an end.
func (s *session) collectBatch(batch []api.Event, answer call.EventStream) []api.Event {
	for {
		ev, ok, err := answer.Poll()
		if !ok && err == nil {
			return batch
		}
		if !ok {
			ev = api.Event{Seq: s.log.Known + uint64(len(batch)) + 1, Finish: api.FinishError, Err: api.AsError(nil)}
		}
		ev.Done = ev.Done || api.Failure(ev) != nil
		batch = append(batch, ev)
		if ev.Done || len(batch) == log.BatchEvents {
			return batch
		}
	}
}

// finish handles the end of a call. A call that was refused before its first output leaves no log, so
// that a client can send it again with the same id.
func (s *session) finish(ev api.Event) error {
	if failed := api.Failure(ev); failed != nil && ev.Seq == 1 && retriable(failed) {
		s.log.Erase(s.c.ctx)
	} else {
		s.log.Keep()
	}
	return nil
}

// append writes events into the log and then into the event buffer. It retries while JetStream is
// unavailable. ErrFenced means that another gateway owns the call. An answer that exceeds its tenant's
// quota continues without a log.
func (s *session) append(events []api.Event) error {
	start := time.Now()
	var err error
	if !s.log.Closed() {
		err = s.log.Append(s.ctx, events)
	}
	if err := s.closeLogIfFull(err); err != nil {
		return err
	}
	last := events[len(events)-1]
	s.log.Known, s.log.Done = last.Seq, last.Done
	s.c.metrics.events.Add(float64(len(events)))
	s.c.metrics.publish.Observe(time.Since(start).Seconds())
	s.buffer.Append(events...)
	return nil
}

// closeLogIfFull closes the log if err is ErrFull, else it returns err.
func (s *session) closeLogIfFull(err error) error {
	if !errors.Is(err, log.ErrFull) {
		return err
	}
	if err := s.log.Close(s.ctx); err != nil {
		return err
	}
	close(s.detached)
	return nil
}
