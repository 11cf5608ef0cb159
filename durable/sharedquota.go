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
const tellEvery = time.Second

// quiet is how long a gateway with logs reports nothing before it may be dead.
const quiet = 4 * tellEvery

// report is what a gateway publishes on usedSubject. Tenants are named by their tokens.
type report struct {
	Gateway string           `json:"gateway"`
	Bytes   map[string]int64 `json:"bytes,omitempty"`
	Whole   bool             `json:"whole,omitempty"` // Bytes has all tenants
	Took    []taken          `json:"took,omitempty"`
	Silent  []silent         `json:"silent,omitempty"`
}

// silent is the last report of a gateway that may be dead: its logs are still there.
type silent struct {
	Gateway string           `json:"gateway"`
	Bytes   map[string]int64 `json:"bytes"`
	Age     time.Duration    `json:"age"`
}

// taken is a log that the reporting gateway answers for now, and another one did before.
type taken struct {
	From   string `json:"from"`
	Tenant string `json:"tenant"`
	Bytes  int64  `json:"bytes"`
}

// account is the ledger of this gateway, kept up to date with those of the others.
type account struct {
	nc      *nats.Conn
	node    string
	tenants func() int
	lasting time.Duration // of a report: as long as the records of a gateway that died
	more    chan struct{} // holds a value when there is something to report at once

	mu    sync.Mutex
	l     *ledger
	dirty map[string]bool // tenants
	took  []taken
	told  bool // the last report on all was not empty
}

func newAccount(nc *nats.Conn, node string, room int64, tenants func() int, lasting time.Duration) *account {
	return &account{nc: nc, node: node, tenants: tenants, lasting: lasting, more: make(chan struct{}, 1),
		l: newLedger(room), dirty: map[string]bool{}}
}

// reserve lets the log of a tenant take the given bytes; false: there is no room.
func (a *account) reserve(log, tenant string, bytes int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	token := tenantToken(tenant)
	a.l.tenants = a.tenants()
	if !a.l.reserve(log, token, bytes) {
		return false
	}
	a.changed(token)
	return true
}

// take makes this gateway answer for a log that node from has written.
func (a *account) take(log, tenant string, bytes int64, from string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	token := tenantToken(tenant)
	a.l.take(log, token, bytes, from)
	a.took = append(a.took, taken{from, token, bytes})
	a.changed(token)
}

func (a *account) free(log string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h, ok := a.l.held[log]; ok {
		a.l.free(log)
		a.changed(h.tenant)
	}
}

// changed has what a tenant takes reported at once.
func (a *account) changed(token string) {
	a.dirty[token] = true
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// tell reports to the other gateways until done is closed.
func (a *account) tell(done <-chan struct{}) {
	every := time.NewTicker(tellEvery)
	defer every.Stop()
	for {
		select {
		case <-a.more:
			a.publish(a.changes())
		case now := <-every.C:
			a.publish(a.all(now))
		case <-done:
			return
		}
	}
}

// changes reports on the tenants that take more or less than before.
func (a *account) changes() *report {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &report{Gateway: a.node, Bytes: map[string]int64{}, Took: a.took}
	for tenant := range a.dirty {
		r.Bytes[tenant] = a.l.own[tenant]
	}
	a.took = nil
	clear(a.dirty)
	return r
}

// all reports on all tenants; nil: there is nothing, and the others know it.
func (a *account) all(now time.Time) *report {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.l.forget(now.Add(-a.lasting))
	r := &report{Gateway: a.node, Bytes: maps.Clone(a.l.own), Whole: true}
	for gateway, s := range a.l.silent(now.Add(-quiet)) {
		if len(s.bytes) > 0 {
			r.Silent = append(r.Silent, silent{gateway, maps.Clone(s.bytes), now.Sub(s.heard)})
		}
	}
	told := a.told
	if a.told = len(r.Bytes)+len(r.Silent) > 0; !a.told && !told {
		return nil
	}
	return r
}

func (a *account) publish(r *report) {
	if r == nil {
		return
	}
	if body, err := json.Marshal(r); err == nil {
		a.nc.Publish(usedSubject, body) //nolint:errcheck // the next report has it, too
	}
}

// hear takes the report of another gateway.
func (a *account) hear(m *nats.Msg) {
	var r report
	if json.Unmarshal(m.Data, &r) != nil || r.Gateway == a.node {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.l.hear(now, r.Gateway, r.Bytes, r.Whole)
	for _, s := range r.Silent {
		if s.Gateway != a.node && s.Age >= 0 && s.Age < a.lasting {
			a.l.inherit(now.Add(-s.Age), s.Gateway, s.Bytes)
		}
	}
	for _, t := range r.Took {
		a.l.moved(t.Tenant, t.Bytes, t.From)
	}
}
