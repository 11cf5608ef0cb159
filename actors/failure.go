package actors

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sched"
)

// outage is why nothing is accepted: until the device is loaded again, or for
// good.
type outage struct {
	err     error
	forGood bool
}

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
	err = fmt.Errorf("the device failed: %w", err)
	if !l.restarts.allow(time.Since(l.start)) {
		l.giveUp(fmt.Errorf("more than %d times in %s %w", mostRestarts, restartsWithin, err))
		return
	}
	down := l.p.takeDown(err)
	l.abandon(err)
	l.planned(l.sched.Step) // gives back the KV of those that ended: their slabs are the next ones'
	begin := time.Now()
	e := l.runner.Reload()
	l.p.metrics.DeviceReloaded(e)
	if e != nil {
		l.giveUp(fmt.Errorf("%w; and cannot be loaded again: %w", err, e))
		return
	}
	l.p.comeBack(down, time.Since(begin))
}

// giveUp ends every sequence with an error, and the pipeline: everything that
// comes is refused.
func (l *loop) giveUp(err error) {
	if l.failed != nil {
		return
	}
	l.failed = err
	l.abandon(err)
	l.flush()
	l.p.fail(err)
}

// abandon ends every sequence with an error.
func (l *loop) abandon(err error) {
	for id, s := range l.sequences {
		l.lose(s, api.Unavailable(err))
		l.closeRegion(s)
		delete(l.sequences, id)
		l.events = append(l.events, sched.Finished(id, sched.ReasonError))
	}
	l.busy.Store(false)
}

// takeDown stops taking requests and ends those in hand; comeBack ends it.
func (p *Pipeline) takeDown(err error) *outage {
	o := &outage{err: fmt.Errorf("%w; it is being loaded again", err)}
	if p.outage.CompareAndSwap(nil, o) {
		p.log.Error().Err(err).Msg("the device is loaded again")
	}
	p.tellAll(&msg.Abandon{Err: api.Unavailable(err)})
	return o
}

func (p *Pipeline) comeBack(from *outage, took time.Duration) {
	if p.outage.CompareAndSwap(from, nil) {
		p.log.Warn().Dur("took", took).Msg("the device is back")
	}
}

// fail ends the pipeline: requests in hand end with err, none is accepted any
// more. Wait returns err.
func (p *Pipeline) fail(err error) {
	for {
		old := p.outage.Load()
		if old != nil && old.forGood {
			return
		}
		if p.outage.CompareAndSwap(old, &outage{err, true}) {
			break
		}
	}
	p.log.Error().Err(err).Msg("the pipeline failed")
	p.tellAll(&msg.Abandon{Err: api.Unavailable(err)})
	close(p.failed)
}

// Wait blocks until ctx ends, and returns nil, or until the pipeline has failed
// for good, and returns why: the process should end then.
func (p *Pipeline) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.failed:
		return p.outage.Load().err
	}
}

// giveUpOnAStep fails the pipeline when a step does not end: a kernel that hangs cannot
// be ended from here.
func (p *Pipeline) giveUpOnAStep() {
	tick := time.NewTicker(max(p.cfg.GiveUpAfter/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-p.loop.stopped:
			return
		case now := <-tick.C:
			if d := p.loop.stalled(now); d > p.cfg.GiveUpAfter {
				close(p.hung)
				p.fail(fmt.Errorf("the device has made no step for %s", d.Round(time.Millisecond)))
				return
			}
		}
	}
}
