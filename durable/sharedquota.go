package durable

import (
	"encoding/json"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// usedSubject has what the logs of each gateway take. Gateways publish it to each other.
const usedSubject = "millrace.resume.used"

// tellEvery is how often a gateway reports on all its tenants. A change is reported at once.
const reportEvery = time.Second

// quiet is how long a gateway with logs reports nothing before it may be dead.
const silentAfter = 4 * reportEvery

// report is what a gateway publishes on usedSubject. Tenants are named by their tokens.
type report struct {
	Gateway   string           `json:"gateway"`
	Bytes     map[string]int64 `json:"bytes,omitempty"`
	Whole     bool             `json:"whole,omitempty"` // Bytes has all tenants
	Transfers []transfer       `json:"took,omitempty"`
	Silent    []silentReport   `json:"silent,omitempty"`
}

// silent is the last report of a gateway that may be dead: its logs are still there.
type silentReport struct {
	Gateway string           `json:"gateway"`
	Bytes   map[string]int64 `json:"bytes"`
	Age     time.Duration    `json:"age"`
}

// taken is a log that the reporting gateway answers for now, and another one did before.
type transfer struct {
	From   string `json:"from"`
	Tenant string `json:"tenant"`
	Bytes  int64  `json:"bytes"`
}

// account is the ledger of this gateway, kept up to date with those of the others.
type sharedQuota struct {
	nc        *nats.Conn
	node      string
	tenants   func() int
	retention time.Duration // of a report: as long as the records of a gateway that died
	pending   chan struct{} // holds a value when there is something to report at once

	mu        sync.Mutex
	quota     *quota
	dirty     map[string]bool // tenants
	transfers []transfer
	reported  bool // the last report on all was not empty
}

func newSharedQuota(nc *nats.Conn, node string, room int64, tenants func() int, lasting time.Duration) *sharedQuota {
	return &sharedQuota{nc: nc, node: node, tenants: tenants, retention: lasting, pending: make(chan struct{}, 1),
		quota: newQuota(room), dirty: map[string]bool{}}
}

// reserve lets the log of a tenant take the given bytes; false: there is no room.
func (a *sharedQuota) reserve(log, tenant string, bytes int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	token := tenantToken(tenant)
	a.quota.tenants = a.tenants()
	if !a.quota.reserve(log, token, bytes) {
		return false
	}
	a.changed(token)
	return true
}

// take makes this gateway answer for a log that node from has written.
func (a *sharedQuota) takeOver(log, tenant string, bytes int64, from string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	token := tenantToken(tenant)
	a.quota.takeOver(log, token, bytes, from)
	a.transfers = append(a.transfers, transfer{from, token, bytes})
	a.changed(token)
}

func (a *sharedQuota) free(log string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h, ok := a.quota.reservations[log]; ok {
		a.quota.free(log)
		a.changed(h.tenant)
	}
}

// changed has what a tenant takes reported at once.
func (a *sharedQuota) changed(token string) {
	a.dirty[token] = true
	select {
	case a.pending <- struct{}{}:
	default:
	}
}

// tell reports to the other gateways until done is closed.
func (a *sharedQuota) run(done <-chan struct{}) {
	every := time.NewTicker(reportEvery)
	defer every.Stop()
	for {
		select {
		case <-a.pending:
			a.publish(a.changes())
		case now := <-every.C:
			a.publish(a.full(now))
		case <-done:
			return
		}
	}
}

// changes reports on the tenants that take more or less than before.
func (a *sharedQuota) changes() *report {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &report{Gateway: a.node, Bytes: map[string]int64{}, Transfers: a.transfers}
	for tenant := range a.dirty {
		r.Bytes[tenant] = a.quota.own[tenant]
	}
	a.transfers = nil
	clear(a.dirty)
	return r
}

// all reports on all tenants; nil: there is nothing, and the others know it.
func (a *sharedQuota) full(now time.Time) *report {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.quota.expire(now.Add(-a.retention))
	r := &report{Gateway: a.node, Bytes: maps.Clone(a.quota.own), Whole: true}
	for gateway, s := range a.quota.silent(now.Add(-silentAfter)) {
		if len(s.bytes) > 0 {
			r.Silent = append(r.Silent, silentReport{gateway, maps.Clone(s.bytes), now.Sub(s.reported)})
		}
	}
	told := a.reported
	if a.reported = len(r.Bytes)+len(r.Silent) > 0; !a.reported && !told {
		return nil
	}
	return r
}

func (a *sharedQuota) publish(r *report) {
	if r == nil {
		return
	}
	if body, err := json.Marshal(r); err == nil {
		a.nc.Publish(usedSubject, body) //nolint:errcheck // the next report has it, too
	}
}

// hear takes the report of another gateway.
func (a *sharedQuota) receive(m *nats.Msg) {
	var r report
	if json.Unmarshal(m.Data, &r) != nil || r.Gateway == a.node {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.quota.receive(now, r.Gateway, r.Bytes, r.Whole)
	for _, s := range r.Silent {
		if s.Gateway != a.node && s.Age >= 0 && s.Age < a.retention {
			a.quota.inherit(now.Add(-s.Age), s.Gateway, s.Bytes)
		}
	}
	for _, t := range r.Transfers {
		a.quota.transferred(t.Tenant, t.Bytes, t.From)
	}
}
