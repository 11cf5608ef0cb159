package calls

import (
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
			c.logs.Sweep(c.ctx)
		case _, open := <-connected:
			if !open {
				return
			}
			c.reconnected.Store(time.Now().UnixNano())
			c.logs.Ensure(c.ctx) //nolint:errcheck // the next record makes the stream too
			for _, s := range c.all() {
				s.recheck(false)
			}
			c.logs.RestoreAll(c.ctx)
		case q := <-c.restores:
			c.logs.Restore(c.ctx, q.Log, q.Gap)
		case <-c.ctx.Done():
			return
		}
	}
}

// peersReconnected reports whether other gateways had time to reconnect after this one did.
func (c *Calls) peersReconnected() bool {
	return time.Since(time.Unix(0, c.reconnected.Load())) > reconnectGrace
}

// repair starts to write the log of a call again if the call is in memory, and reports whether it is.
// If gap is set, another gateway found records missing.
func (c *Calls) repair(name string, gap bool) bool {
	if s := c.lookup(name); s != nil && s.recheck(gap) {
		return true
	}
	if !c.logs.Ended(name) {
		return false
	}
	select {
	case c.restores <- query{Log: name, Gap: gap}:
	default: // the sender queries again
	}
	return true
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
	if !requested {
		return nil
	}
	return s.log.Verify(s.ctx, gap)
}
