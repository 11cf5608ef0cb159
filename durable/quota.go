package durable

import (
	"maps"
	"time"
)

// ledger decides how many bytes the logs of each tenant may take. Half of the room is
// divided among the tenants, and nobody else gets a tenant's share. The other half is lent
// to whoever asks first. So a tenant within its share always gets what it asks for, and
// all tenants together never take more than the room. A single tenant may take all of it.
//
// A ledger has no clock and does no I/O.
type quota struct {
	limit        int64                    // bytes
	tenants      int                      // that the room is divided among; 0: one
	reservations map[string]reservation   // by state.holding
	own          map[string]int64         // bytes by tenant: the sum of held
	others       map[string]*gatewayUsage // by gateway
}

// holding is what one log of this gateway may take.
type reservation struct {
	tenant string
	bytes  int64
}

// reports are what another gateway has said of its own logs.
type gatewayUsage struct {
	bytes    map[string]int64 // by tenant
	reported time.Time
}

// roomStep is what a log's room grows by, in bytes.
const reserveStep = 16 << 10

// roomFor is the room of a log of the given bytes: who takes a log over knows from its bytes
// what the gateway before had reserved.
func reservedFor(bytes int64) int64 { return (bytes/reserveStep + 1) * reserveStep }

func newQuota(room int64) *quota {
	return &quota{limit: room, reservations: map[string]reservation{}, own: map[string]int64{}, others: map[string]*gatewayUsage{}}
}

// share is what each tenant is sure of.
func (l *quota) share() int64 {
	if l.tenants <= 1 {
		return l.limit
	}
	return l.limit / 2 / int64(l.tenants)
}

// used is what the logs of a tenant take at all gateways.
func (l *quota) used(tenant string) int64 {
	n := l.own[tenant]
	for _, r := range l.others {
		n += r.bytes[tenant]
	}
	return n
}

// lent is what all tenants take above their shares.
func (l *quota) borrowed() (bytes int64) {
	seen := map[string]bool{}
	add := func(tenant string) {
		if !seen[tenant] {
			seen[tenant] = true
			bytes += max(0, l.used(tenant)-l.share())
		}
	}
	for tenant := range l.own {
		add(tenant)
	}
	for _, r := range l.others {
		for tenant := range r.bytes {
			add(tenant)
		}
	}
	return bytes
}

// reserve lets a log take the given bytes, in place of what it had; false: it would be more
// than its tenant's share and nothing is left to lend. It keeps what it had then.
func (l *quota) reserve(log, tenant string, bytes int64) bool {
	more := bytes - l.reservations[log].bytes
	if more > 0 && !l.fits(tenant, more) {
		return false
	}
	l.set(log, tenant, bytes)
	return true
}

func (l *quota) fits(tenant string, more int64) bool {
	had, share := l.used(tenant), l.share()
	if had+more <= share {
		return true
	}
	return l.borrowed()+had+more-max(had, share) <= l.limit-share*int64(max(l.tenants, 1))
}

func (l *quota) set(log, tenant string, bytes int64) {
	l.free(log)
	l.reservations[log] = reservation{tenant, bytes}
	l.own[tenant] += bytes
}

// take makes this gateway answer for a log that another one has written. Nothing is
// refused: the bytes are there.
func (l *quota) takeOver(log, tenant string, bytes int64, from string) {
	l.set(log, tenant, bytes)
	l.transferred(tenant, bytes, from)
}

// moved takes bytes off a gateway's report: another one answers for them now.
func (l *quota) transferred(tenant string, bytes int64, from string) {
	if r := l.others[from]; r != nil {
		if r.bytes[tenant] -= bytes; r.bytes[tenant] <= 0 {
			delete(r.bytes, tenant)
		}
	}
}

// free ends what a log may take.
func (l *quota) free(log string) {
	h, ok := l.reservations[log]
	if !ok {
		return
	}
	delete(l.reservations, log)
	if l.own[h.tenant] -= h.bytes; l.own[h.tenant] <= 0 {
		delete(l.own, h.tenant)
	}
}

// hear takes the report of another gateway: bytes by tenant, of all its tenants when whole.
func (l *quota) receive(now time.Time, gateway string, bytes map[string]int64, whole bool) {
	r := l.others[gateway]
	if r == nil || whole {
		r = &gatewayUsage{bytes: map[string]int64{}}
		l.others[gateway] = r
	}
	r.reported = now
	for tenant, n := range bytes {
		if r.bytes[tenant] = n; n <= 0 {
			delete(r.bytes, tenant)
		}
	}
}

// silent are the reports of gateways that were not heard since a time, and may be dead.
func (l *quota) silent(since time.Time) map[string]*gatewayUsage {
	silent := map[string]*gatewayUsage{}
	for gateway, r := range l.others {
		if r.reported.Before(since) {
			silent[gateway] = r
		}
	}
	return silent
}

// inherit takes the last report of a gateway that another one has heard: this one has begun since.
func (l *quota) inherit(heard time.Time, gateway string, bytes map[string]int64) {
	if l.others[gateway] == nil {
		l.others[gateway] = &gatewayUsage{bytes: maps.Clone(bytes), reported: heard}
	}
}

// forget drops the reports of gateways that were not heard since a time: their logs have
// expired, or are another gateway's.
func (l *quota) expire(since time.Time) {
	for gateway, r := range l.others {
		if r.reported.Before(since) {
			delete(l.others, gateway)
		}
	}
}
