package worker

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sched"
)

// restarts bounds how often a device is loaded again: one that fails more often
// than that will not come back by itself.
type restarts struct{ at []time.Duration }

const (
	mostRestarts   = 3
	restartsWithin = time.Minute
)

// allow notes a restart at a time; false when it is one too many.
func (r *restarts) allow(now time.Duration) bool {
	r.at = slices.DeleteFunc(r.at, func(t time.Duration) bool { return now-t >= restartsWithin })
	if len(r.at) == mostRestarts {
		return false
	}
	r.at = append(r.at, now)
	return true
}

// deviceFailed ends every sequence with an error and loads the device again.
func (l *loop) deviceFailed(err error) {
	if l.failed != nil {
		return
	}
	l.flight = nil
	err = fmt.Errorf("the device failed: %w", err)
	if !l.restarts.allow(time.Since(l.start)) {
		l.giveUp(fmt.Errorf("more than %d times in %s %w", mostRestarts, restartsWithin, err))
		return
	}
	up := l.Faults.Down(err)
	l.abandon(err)
	l.commits, l.forget = l.commits[:0], true
	l.planned() // gives back the KV of those that ended: their slabs are the next ones'
	begin := time.Now()
	e := l.Runner.Reload()
	l.Metrics.DeviceReloaded(e)
	if e != nil {
		l.giveUp(fmt.Errorf("%w; and cannot be loaded again: %w", err, e))
		return
	}
	l.forget = true // what another worker sent meanwhile
	up(time.Since(begin))
}

// giveUp ends every sequence with an error, and the pipeline: everything that
// comes is refused.
func (l *loop) giveUp(err error) {
	if l.failed != nil {
		return
	}
	l.failed, l.flight = err, nil
	l.abandon(err)
	l.flush()
	l.Faults.Fail(err)
}

// panicked gives up for what recover has returned; false if that is nothing.
func (l *loop) panicked(v any) bool {
	if v != nil {
		l.giveUp(fmt.Errorf("compute: %v", v))
	}
	return v != nil
}

// abandon ends every sequence with an error.
func (l *loop) abandon(err error) {
	for id, s := range l.sequences {
		l.lose(s, api.Unavailable(err))
		l.closeRegion(s)
		if s.released { // the scheduler has forgotten it
			l.forgotten(s)
			continue
		}
		delete(l.sequences, id)
		l.events = append(l.events, sched.Finished(id, sched.ReasonError))
	}
	l.mapping.opening, l.mapping.closing, l.mapping.spills = nil, nil, nil
	l.busy.Store(false)
}

// giveUpOnAStep fails the worker when a step does not end: a kernel that hangs cannot
// be ended from here.
func (w *Worker) giveUpOnAStep() {
	tick := time.NewTicker(max(w.loop.GiveUpAfter/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-w.loop.stopped:
			return
		case now := <-tick.C:
			if d := w.loop.stalled(now); d > w.loop.GiveUpAfter {
				close(w.hung)
				w.loop.Faults.Fail(fmt.Errorf("the device has made no step for %s", d.Round(time.Millisecond)))
				return
			}
		}
	}
}
