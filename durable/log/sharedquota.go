package log

import (
	"encoding/json"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/durable"
)

// UsedSubject is the subject on which gateways publish how many bytes their logs use.
const UsedSubject = "millrace.resume.used"

// reportEvery is the time between two reports with all tenants. A change is reported at once.
const reportEvery = time.Second

// silentAfter is the time without a report after which a gateway may be dead.
const silentAfter = 4 * reportEvery

// report is the message on UsedSubject. It names tenants by their tokens.
type report struct {
	Gateway   string           `json:"gateway"`
	Bytes     map[string]int64 `json:"bytes,omitempty"`
	Whole     bool             `json:"whole,omitempty"` // Bytes has all tenants of the gateway
	Transfers []transfer       `json:"took,omitempty"`
	Silent    []silentReport   `json:"silent,omitempty"`
}

// silentReport is the last report of a gateway that may be dead. Its logs still use memory.
type silentReport struct {
	Gateway string           `json:"gateway"`
	Bytes   map[string]int64 `json:"bytes"`
	Age     time.Duration    `json:"age"`
}

// transfer is a log that the reporting gateway took over from another one.
type transfer struct {
	From   string `json:"from"`
	Tenant string `json:"tenant"`
	Bytes  int64  `json:"bytes"`
}

// sharedQuota is the quota of this gateway. It exchanges reports with the other gateways.
type sharedQuota struct {
	nc        *nats.Conn
	node      string
	tenants   func() int
	retention time.Duration // of a silent gateway's usage: as long as the records of its logs live
	pending   chan struct{} // has a value if there is a change to report

	mu        sync.Mutex
	quota     *quota
	dirty     map[string]bool // tenants whose usage has changed since the last report
	transfers []transfer      // since the last report
	reported  bool            // the last report with all tenants was not empty
}

func newSharedQuota(nc *nats.Conn, node string, limit int64, tenants func() int, retention time.Duration) *sharedQuota {
	return &sharedQuota{nc: nc, node: node, tenants: tenants, retention: retention, pending: make(chan struct{}, 1),
		quota: newQuota(limit), dirty: map[string]bool{}}
}

// reserve sets the reservation of a log in bytes. It returns false if the tenant's quota is used up.
func (s *sharedQuota) reserve(log, tenant string, bytes int64) bool {
	return s.change(tenant, func(token string) bool { return s.quota.reserve(log, token, bytes) })
}

// reserveLog does the work of quota.reserveLog.
func (s *sharedQuota) reserveLog(log, tenant string, size int64) (bytes int64, ok bool) {
	ok = s.change(tenant, func(token string) bool {
		bytes, ok = s.quota.reserveLog(log, token, size)
		return ok
	})
	return bytes, ok
}

// takeOver does the work of quota.takeOver, and reports the transfer to the other gateways.
func (s *sharedQuota) takeOver(log, tenant string, size int64, from string) (bytes int64) {
	s.change(tenant, func(token string) bool {
		bytes = s.quota.takeOver(log, token, size, from)
		s.transfers = append(s.transfers, transfer{from, token, bytes})
		return true
	})
	return bytes
}

// change changes the usage of a tenant, and schedules a report if it did.
func (s *sharedQuota) change(tenant string, do func(token string) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	token := durable.TenantToken(tenant)
	s.quota.tenants = s.tenants()
	ok := do(token)
	if ok {
		s.changed(token)
	}
	return ok
}

func (s *sharedQuota) free(log string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.quota.reservations[log]; ok {
		s.quota.free(log)
		s.changed(r.tenant)
	}
}

// changed schedules a report on a tenant.
func (s *sharedQuota) changed(token string) {
	s.dirty[token] = true
	select {
	case s.pending <- struct{}{}:
	default:
	}
}

// run reports to the other gateways until done is closed.
func (s *sharedQuota) run(done <-chan struct{}) {
	every := time.NewTicker(reportEvery)
	defer every.Stop()
	for {
		select {
		case <-s.pending:
			s.publish(s.changes())
		case now := <-every.C:
			s.publish(s.full(now))
		case <-done:
			return
		}
	}
}

// changes returns a report on the tenants whose usage has changed.
func (s *sharedQuota) changes() *report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &report{Gateway: s.node, Bytes: map[string]int64{}, Transfers: s.transfers}
	for tenant := range s.dirty {
		r.Bytes[tenant] = s.quota.own[tenant]
	}
	s.transfers = nil
	clear(s.dirty)
	return r
}

// full returns a report on all tenants, or nil if both this report and the last one are empty.
func (s *sharedQuota) full(now time.Time) *report {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quota.expire(now.Add(-s.retention))
	r := &report{Gateway: s.node, Bytes: maps.Clone(s.quota.own), Whole: true}
	for gateway, g := range s.quota.silent(now.Add(-silentAfter)) {
		if len(g.bytes) > 0 {
			r.Silent = append(r.Silent, silentReport{gateway, maps.Clone(g.bytes), now.Sub(g.reported)})
		}
	}
	reported := s.reported
	if s.reported = len(r.Bytes)+len(r.Silent) > 0; !s.reported && !reported {
		return nil
	}
	return r
}

func (s *sharedQuota) publish(r *report) {
	if r == nil {
		return
	}
	if body, err := json.Marshal(r); err == nil {
		s.nc.Publish(UsedSubject, body) //nolint:errcheck // the next full report repeats it
	}
}

// receive applies the report of another gateway.
func (s *sharedQuota) receive(m *nats.Msg) {
	var r report
	if json.Unmarshal(m.Data, &r) != nil || r.Gateway == s.node {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.quota.receive(now, r.Gateway, r.Bytes, r.Whole)
	for _, g := range r.Silent {
		if g.Gateway != s.node && g.Age >= 0 && g.Age < s.retention {
			s.quota.inherit(now.Add(-g.Age), g.Gateway, g.Bytes)
		}
	}
	for _, t := range r.Transfers {
		s.quota.transferred(t.Tenant, t.Bytes, t.From)
	}
}
