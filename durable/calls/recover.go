package calls

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// A restart of the NATS server loses the logs, which are in its memory. A gateway that has a call in its
// own memory, running or just ended, writes its log again: when its connection is back, or when
// another gateway queries for the call.

// reconnectGrace is the time after this gateway's reconnection in which a gateway without a
// connection is not considered dead.
const reconnectGrace = 2 * time.Second

// maintainLogs writes lost logs again and removes the logs of ended calls after Options.Keep, until the
// process ends.
func (c *Calls) maintainLogs() {
	connected := c.nc.StatusChanged(nats.CONNECTED)
	defer c.nc.RemoveStatusListener(connected)
	const sweeps = 8 // within the time that a log is kept
	sweep := time.NewTicker(max(c.opts.Keep/sweeps, time.Millisecond))
	defer sweep.Stop()
	for {
		select {
		case <-sweep.C:
			c.removeOld()
		case _, open := <-connected:
			if !open {
				return
			}
			c.reconnected.Store(time.Now().UnixNano())
			c.journal.ensure(c.ctx) //nolint:errcheck // the next record makes the stream too
			for _, s := range c.all() {
				s.recheck(false)
			}
			for _, l := range c.recent.all() {
				c.restore(l, false)
			}
		case q := <-c.restores:
			if l := c.recent.get(q.Log); l != nil {
				c.restore(l, q.Gap)
			}
		case <-c.ctx.Done():
			return
		}
	}
}

// removeOld removes the logs of calls that ended here more than Options.Keep ago. A log that cannot be
// removed now, or whose gateway dies, expires.
func (c *Calls) removeOld() {
	for _, l := range c.recent.expired(time.Now()) {
		c.quota.free(l.quotaKey)
		if err := c.journal.purge(c.ctx, l.log, l.last+1); err != nil {
			c.opts.Logger.Debug().Err(err).Str("id", l.initial.id).Msg("durable: could not remove the log of an ended call; it will expire")
		}
	}
}

// peersReconnected reports whether other gateways had time to reconnect after this one did.
func (c *Calls) peersReconnected() bool {
	return time.Since(time.Unix(0, c.reconnected.Load())) > reconnectGrace
}

// repair starts to write the log of a call again if the call is in memory, and reports whether it is.
// If gap is set, another gateway found records missing.
func (c *Calls) repair(log string, gap bool) bool {
	if s := c.lookup(log); s != nil && s.recheck(gap) {
		return true
	}
	if c.recent.get(log) == nil {
		return false
	}
	select {
	case c.restores <- query{Log: log, Gap: gap}:
	default: // the sender queries again
	}
	return true
}

// restore writes the log of an ended call again if it is lost.
func (c *Calls) restore(l *endedLog, gap bool) {
	const pause = 100 * time.Millisecond
	for time.Now().Before(l.until) {
		err := c.rewriteEnded(l, gap)
		if err == nil || errors.Is(err, errFenced) { // fenced: another gateway has written it
			return
		}
		c.journal.ensure(c.ctx) //nolint:errcheck // the next try returns the error
		if !sleep(c.ctx, pause) {
			return
		}
	}
	c.opts.Logger.Warn().Str("id", l.initial.id).Msg("durable: could not write the log of an ended call again")
}

func (c *Calls) rewriteEnded(l *endedLog, gap bool) error {
	newest, err := c.journal.newest(c.ctx, l.log)
	if err != nil {
		return err
	}
	if gap && newest != 0 && newest == l.last {
		st := l.initial
		if _, err := c.journal.load(c.ctx, l.log, &st); !errors.Is(err, errGap) {
			return err
		}
	} else if newest != 0 && (l.whole || newest != l.last) {
		return nil
	}
	l.whole = false
	last := newest
	for _, record := range c.recent.records(l) {
		if _, last, err = c.journal.write(c.ctx, l.log, record, last); err != nil {
			return err
		}
		l.last = last
	}
	l.whole = true
	c.metrics.rewritten.Inc()
	return nil
}

// recheck makes a leading session check that its log exists and, if gap is set, that it is whole. It
// returns false if the session does not lead.
func (s *session) recheck(gap bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leading {
		s.recheckLog, s.recheckGap = true, s.recheckGap || gap
		s.notify()
	}
	return s.leading
}

// verify writes the log of a led call again if recheck was called and the log is lost.
func (s *session) verify() error {
	s.mu.Lock()
	requested, gap := s.recheckLog, s.recheckGap
	s.recheckLog, s.recheckGap = false, false
	s.mu.Unlock()
	if !requested || s.logClosed {
		return nil
	}
	return s.untilOutage(func() error {
		newest, err := s.c.journal.newest(s.ctx, s.name)
		if err != nil || newest == s.state.last && !gap {
			return err
		}
		_, err = s.resync()
		return err
	})
}
