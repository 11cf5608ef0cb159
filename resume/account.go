package resume

import (
	"encoding/json"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// usedSubject has what the logs of each gateway take. Gateways publish it to each other.
const usedSubject = "millrace.resume.used"

// tellEvery is how often a gateway reports on all its tenants. What a tenant takes in
// addition is reported at once, what it frees with the next report on all.
const tellEvery = time.Second

// report is what a gateway publishes on usedSubject. Tenants are named by their tokens.
type report struct {
	Gateway string           `json:"gateway"`
	Bytes   map[string]int64 `json:"bytes,omitempty"`
	Whole   bool             `json:"whole,omitempty"` // Bytes has all tenants
	Took    []taken          `json:"took,omitempty"`
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
	had := a.l.own[token]
	a.l.tenants = a.tenants()
	ok := a.l.reserve(log, token, bytes)
	if a.l.own[token] > had {
		a.dirty[token] = true
		a.wake()
	}
	return ok
}

// take makes this gateway answer for a log that node from has written.
func (a *account) take(log, tenant string, bytes int64, from string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	token := tenantToken(tenant)
	a.l.take(log, token, bytes, from)
	a.dirty[token] = true
	a.took = append(a.took, taken{from, token, bytes})
	a.wake()
}

func (a *account) free(log string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.l.free(log)
}

func (a *account) wake() {
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

// changes reports on the tenants that take more than before.
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
	told := a.told
	if a.told = len(a.l.own) > 0; !a.told && !told {
		return nil
	}
	return &report{Gateway: a.node, Bytes: maps.Clone(a.l.own), Whole: true}
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
	a.l.hear(time.Now(), r.Gateway, r.Bytes, r.Whole)
	for _, t := range r.Took {
		a.l.moved(t.Tenant, t.Bytes, t.From)
	}
}
