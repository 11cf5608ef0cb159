package calls

import (
	"errors"
	"slices"
	"sync"
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

// endedLog is the log of a call that ended here. The last two fields belong to maintainLogs.
type endedLog struct {
	log      string   // name of the log
	quotaKey string   // of its reservation
	initial  state    // before any record: has the tenant and the id
	records  [][]byte // nil if they were dropped to save memory; recent changes records and size
	size     int
	until    time.Time // the log is removed then
	last     uint64    // stream sequence of the newest record that we wrote
	whole    bool      // last is the end of the log
}

// recent has the logs of the calls that ended here within a window of time, with up to maxBytes of
// records. Above that, the tenant with the most bytes loses its oldest records.
type recent struct {
	window   time.Duration
	maxBytes int

	mu       sync.Mutex
	logs     []*endedLog // oldest first
	byLog    map[string]*endedLog
	byTenant map[string]int // bytes
	bytes    int
}

func newRecent(window time.Duration, most int) *recent {
	return &recent{window: window, maxBytes: most, byLog: map[string]*endedLog{}, byTenant: map[string]int{}}
}

func (r *recent) add(l *endedLog) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range l.records {
		l.size += len(record)
	}
	l.until = time.Now().Add(r.window)
	r.logs = append(r.logs, l)
	r.byLog[l.log] = l
	r.byTenant[l.initial.tenant] += l.size
	r.bytes += l.size
	for r.bytes > r.maxBytes {
		r.dropRecords(r.oldest(r.largest()))
	}
}

// largest returns the tenant with the most bytes.
func (r *recent) largest() (tenant string) {
	for t, n := range r.byTenant {
		if n > r.byTenant[tenant] {
			tenant = t
		}
	}
	return tenant
}

// oldest returns the oldest log of a tenant that has records.
func (r *recent) oldest(tenant string) *endedLog {
	return r.logs[slices.IndexFunc(r.logs, func(l *endedLog) bool { return l.size > 0 && l.initial.tenant == tenant })]
}

// dropRecords drops the records of a log.
func (r *recent) dropRecords(l *endedLog) {
	r.bytes -= l.size
	if r.byTenant[l.initial.tenant] -= l.size; r.byTenant[l.initial.tenant] == 0 {
		delete(r.byTenant, l.initial.tenant)
	}
	l.size, l.records = 0, nil
	if r.byLog[l.log] == l {
		delete(r.byLog, l.log)
	}
}

// expired removes and returns the logs whose time is over.
func (r *recent) expired(now time.Time) []*endedLog {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for ; n < len(r.logs) && now.After(r.logs[n].until); n++ {
		r.dropRecords(r.logs[n])
	}
	old := slices.Clone(r.logs[:n])
	r.logs = slices.Delete(r.logs, 0, n)
	return old
}

// records returns the records of a log, or nil if they were dropped.
func (r *recent) records(l *endedLog) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return l.records
}

// get returns a log that has records, or nil.
func (r *recent) get(log string) *endedLog {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.byLog[log]; l != nil && l.size > 0 {
		return l
	}
	return nil
}

// all returns the logs that have records.
func (r *recent) all() []*endedLog {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.logs), func(l *endedLog) bool { return l.size == 0 })
}
