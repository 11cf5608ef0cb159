// Package places divides a number of places among tenants, so that none can take those of another. It must not know what a place is.
package places

// Places counts who has a place. Half of the places are divided evenly among the tenants, and nobody else gets a tenant's share. The other
// half goes to the first tenants that need it. It has no clock, no lock and does no I/O.
type Places struct {
	capacity int
	tenants  func() int
	taken    map[string]int // by tenant
	all      int
}

// New returns places that are all free. tenants is the number of tenants with a share.
func New(capacity int, tenants func() int) *Places {
	return &Places{capacity: capacity, tenants: tenants, taken: map[string]int{}}
}

// Enter takes a place for a tenant. It returns false if there is none.
func (p *Places) Enter(tenant string) bool {
	const part = 2 // that is divided
	n := max(p.tenants(), 1)
	share := p.capacity / part / n
	first := p.capacity - share*n // for whoever comes first
	for _, taken := range p.taken {
		first -= max(taken-share, 0)
	}
	if p.all >= p.capacity || p.taken[tenant] >= share && first <= 0 {
		return false
	}
	p.taken[tenant]++
	p.all++
	return true
}

// Leave gives a place of a tenant back.
func (p *Places) Leave(tenant string) {
	if p.taken[tenant]--; p.taken[tenant] == 0 {
		delete(p.taken, tenant)
	}
	p.all--
}

// Taken returns the number of places that a tenant has, and that all have.
func (p *Places) Taken(tenant string) (own, all int) { return p.taken[tenant], p.all }
