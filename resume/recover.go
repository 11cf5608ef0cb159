package resume

import (
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// A restart of the NATS server loses the logs, which are in its memory. Whoever has a
// call in its own memory, running or just ended, writes its log again: as soon as its
// connection is back, or when another gateway asks for the call.

// grace is how long after our own connection came back another gateway's may be missing
// without being dead.
const grace = 2 * time.Second

// restoreLost writes lost logs again, until the process ends.
func (c *Calls) restoreLost() {
	back := c.nc.StatusChanged(nats.CONNECTED)
	defer c.nc.RemoveStatusListener(back)
	for {
		select {
		case _, open := <-back:
			if !open {
				return
			}
			c.back.Store(time.Now().UnixNano())
			for _, s := range c.all() {
				s.doubt()
			}
			for _, l := range c.recent.all() {
				c.restore(l)
			}
		case id := <-c.asked:
			if l := c.recent.get(id); l != nil {
				c.restore(l)
			}
		case <-c.ctx.Done():
			return
		}
	}
}

// settled says whether the other gateways had time to come back, where we had to.
func (c *Calls) settled() bool { return time.Since(time.Unix(0, c.back.Load())) > grace }

// mend has the log of a call looked after, if the call is in our memory.
func (c *Calls) mend(id string) bool {
	if s := c.lookup(id); s != nil && s.doubt() {
		return true
	}
	if c.recent.get(id) == nil {
		return false
	}
	select {
	case c.asked <- id:
	default: // who asked asks again
	}
	return true
}

// restore writes the log of a call that has ended again where it is lost.
func (c *Calls) restore(l *endedLog) {
	const pause = 100 * time.Millisecond
	for time.Now().Before(l.until) {
		err := c.rewriteEnded(l)
		if err == nil || errors.Is(err, errFenced) { // fenced: another gateway has written it
			return
		}
		c.journal.ensure(c.ctx) //nolint:errcheck // the next try says what is wrong
		if !sleep(c.ctx, pause) {
			return
		}
	}
	c.opts.Logger.Warn().Str("id", l.id).Msg("resume: the log of an ended call could not be written again")
}

func (c *Calls) rewriteEnded(l *endedLog) error {
	newest, err := c.journal.newest(c.ctx, l.id)
	if err != nil {
		return err
	}
	if newest != 0 && (l.whole || newest != l.last) {
		return nil
	}
	l.whole = false
	for last, i := newest, 0; i < len(l.records); i++ {
		if _, last, err = c.journal.write(c.ctx, l.id, l.records[i], last); err != nil {
			return err
		}
		l.last = last
	}
	l.whole = true
	c.metrics.rewritten.Inc()
	return nil
}

// doubt makes the one who leads the call look whether its log is still there; false
// where that is not us.
func (s *session) doubt() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leading {
		s.doubted = true
		s.changed()
	}
	return s.leading
}

// verify writes the log of a call that we lead again where it is lost.
func (s *session) verify() error {
	s.mu.Lock()
	doubted := s.doubted
	s.doubted = false
	s.mu.Unlock()
	if !doubted {
		return nil
	}
	return s.untilOutage(func() error {
		newest, err := s.c.journal.newest(s.ctx, s.id)
		if err != nil || newest == s.state.last {
			return err
		}
		_, err = s.resync()
		return err
	})
}

// endedLog is the log of a call that ended here. The last two fields are its restorer's.
type endedLog struct {
	id      string
	records [][]byte
	size    int
	until   time.Time // it is kept
	last    uint64    // stream sequence of the newest record that we wrote
	whole   bool      // that is the end of it
}

// recent are the logs of the calls that ended here within a window, the newest up to a
// number of bytes.
type recent struct {
	window time.Duration
	most   int

	mu    sync.Mutex
	logs  []*endedLog // the oldest first
	byID  map[string]*endedLog
	bytes int
}

func newRecent(window time.Duration, most int) *recent {
	return &recent{window: window, most: most, byID: map[string]*endedLog{}}
}

func (r *recent) add(l *endedLog) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range l.records {
		l.size += len(record)
	}
	l.until = time.Now().Add(r.window)
	r.logs = append(r.logs, l)
	r.byID[l.id] = l
	r.bytes += l.size
	r.trim()
}

// trim drops what is too old or too much.
func (r *recent) trim() {
	for len(r.logs) > 0 && (r.bytes > r.most || time.Now().After(r.logs[0].until)) {
		l := r.logs[0]
		r.logs[0] = nil
		r.logs, r.bytes = r.logs[1:], r.bytes-l.size
		if r.byID[l.id] == l {
			delete(r.byID, l.id)
		}
	}
}

func (r *recent) get(id string) *endedLog {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trim()
	return r.byID[id]
}

func (r *recent) all() []*endedLog {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trim()
	return append([]*endedLog(nil), r.logs...)
}
