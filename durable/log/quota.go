package log

import (
	"maps"
	"time"
)

// quota decides how many bytes the logs of each tenant may use. Half of the limit is divided
// evenly among the tenants: each tenant's share is reserved for it. The other half goes to the
// first tenants that need it. So a tenant within its share is never refused, and all tenants
// together never use more than the limit. A single tenant may use all of it.
//
// A quota has no clock and does no I/O.
type quota struct {
	limit        int64                    // bytes
	tenants      int                      // number of tenants with a share; 0 means 1
	reservations map[string]reservation   // of this gateway, by state.quotaKey
	own          map[string]int64         // sum of reservations in bytes, by tenant
	others       map[string]*gatewayUsage // by gateway
}

// reservation is the number of bytes that one log of this gateway may use.
type reservation struct {
	tenant string
	bytes  int64
}

// gatewayUsage is what another gateway last reported of its logs.
type gatewayUsage struct {
	bytes    map[string]int64 // by tenant
	reported time.Time
}

// reserveStep is the step in which the reservation of a log grows, in bytes.
const reserveStep = 16 << 10

// reservedFor returns the reservation of a log of the given size in bytes: the size, rounded up to a step.
func reservedFor(bytes int64) int64 { return (bytes + reserveStep - 1) / reserveStep * reserveStep }

func newQuota(limit int64) *quota {
	return &quota{limit: limit, reservations: map[string]reservation{}, own: map[string]int64{}, others: map[string]*gatewayUsage{}}
}

// share returns the bytes that are reserved for each tenant.
func (q *quota) share() int64 {
	if q.tenants <= 1 {
		return q.limit
	}
	return q.limit / 2 / int64(q.tenants)
}

// used returns the bytes that the logs of a tenant use at all gateways.
func (q *quota) used(tenant string) int64 {
	n := q.own[tenant]
	for _, g := range q.others {
		n += g.bytes[tenant]
	}
	return n
}

// borrowed returns the bytes that all tenants use above their shares.
func (q *quota) borrowed() (bytes int64) {
	seen := map[string]bool{}
	add := func(tenant string) {
		if !seen[tenant] {
			seen[tenant] = true
			bytes += max(0, q.used(tenant)-q.share())
		}
	}
	for tenant := range q.own {
		add(tenant)
	}
	for _, g := range q.others {
		for tenant := range g.bytes {
			add(tenant)
		}
	}
	return bytes
}

// reserve sets the reservation of a log. It returns false, and changes nothing, if the tenant
// would exceed its share and no bytes are left to borrow.
func (q *quota) reserve(log, tenant string, bytes int64) bool {
	more := bytes - q.reservations[log].bytes
	if more > 0 && !q.fits(tenant, more) {
		return false
	}
	q.set(log, tenant, bytes)
	return true
}

// reserveLog sets the reservation of a log of the given size in bytes, rounded up to a step if the tenant's quota has room for that. It
// returns the reservation, or false if there is no room for the log.
func (q *quota) reserveLog(log, tenant string, size int64) (int64, bool) {
	for _, bytes := range []int64{reservedFor(size), size} {
		if q.reserve(log, tenant, bytes) {
			return bytes, true
		}
	}
	return 0, false
}

// fits reports whether a tenant may use the given number of bytes more.
func (q *quota) fits(tenant string, more int64) bool {
	used, share := q.used(tenant), q.share()
	if used+more <= share {
		return true
	}
	return q.borrowed()+used+more-max(used, share) <= q.limit-share*int64(max(q.tenants, 1))
}

func (q *quota) set(log, tenant string, bytes int64) {
	q.free(log)
	q.reservations[log] = reservation{tenant, bytes}
	q.own[tenant] += bytes
}

// takeOver moves the reservation of a log of the given size in bytes from another gateway to this one, and returns it. It is never
// refused, because the bytes are in use already. Whether that gateway rounded them up is not known. So takeOver rounds up only if the
// tenant's quota has room for that once more: then its usage stays within the quota in both cases.
func (q *quota) takeOver(log, tenant string, size int64, from string) int64 {
	bytes := reservedFor(size)
	if !q.fits(tenant, bytes-size) {
		bytes = size
	}
	q.transferred(tenant, bytes, from)
	q.set(log, tenant, bytes)
	return bytes
}

// transferred subtracts bytes from the usage of a gateway, because another gateway counts them now.
func (q *quota) transferred(tenant string, bytes int64, from string) {
	if g := q.others[from]; g != nil {
		if g.bytes[tenant] -= bytes; g.bytes[tenant] <= 0 {
			delete(g.bytes, tenant)
		}
	}
}

// free removes the reservation of a log.
func (q *quota) free(log string) {
	r, ok := q.reservations[log]
	if !ok {
		return
	}
	delete(q.reservations, log)
	if q.own[r.tenant] -= r.bytes; q.own[r.tenant] <= 0 {
		delete(q.own, r.tenant)
	}
}

// receive applies the report of another gateway: bytes by tenant. If whole is set, the report has
// all tenants of that gateway, else those that changed.
func (q *quota) receive(now time.Time, gateway string, bytes map[string]int64, whole bool) {
	g := q.others[gateway]
	if g == nil || whole {
		g = &gatewayUsage{bytes: map[string]int64{}}
		q.others[gateway] = g
	}
	g.reported = now
	for tenant, n := range bytes {
		if g.bytes[tenant] = n; n <= 0 {
			delete(g.bytes, tenant)
		}
	}
}

// silent returns the usage of the gateways that have not reported since the given time and may be
// dead.
func (q *quota) silent(since time.Time) map[string]*gatewayUsage {
	silent := map[string]*gatewayUsage{}
	for gateway, g := range q.others {
		if g.reported.Before(since) {
			silent[gateway] = g
		}
	}
	return silent
}

// inherit adds the last report of a silent gateway that this gateway has never received itself,
// because it started later.
func (q *quota) inherit(reported time.Time, gateway string, bytes map[string]int64) {
	if q.others[gateway] == nil {
		q.others[gateway] = &gatewayUsage{bytes: maps.Clone(bytes), reported: reported}
	}
}

// expire drops the usage of gateways that have not reported since the given time. Their logs have
// expired or belong to another gateway.
func (q *quota) expire(since time.Time) {
	for gateway, g := range q.others {
		if g.reported.Before(since) {
			delete(q.others, gateway)
		}
	}
}
