package sched

// SharedLimit bounds a number of places and shares them among tenants. While there are free
// places, any tenant may take them. When there are none, a tenant that holds less than its
// share, by weight among the tenants present, still gets one: no tenant's load shuts out
// another. At most twice the size are ever taken.
type SharedLimit struct {
	size    int
	inside  int // places taken
	weights int // sum over the tenants present
	tenants map[string]*limitEntry
}

// limitEntry is a tenant that holds places.
type limitEntry struct{ inside, weight int }

// NewSharedLimit returns a SharedLimit of a size of at least 1, with all places free.
func NewSharedLimit(size int) *SharedLimit {
	return &SharedLimit{size: size, tenants: make(map[string]*limitEntry)}
}

// Resize changes the size, to at least 1. Places that are taken stay taken.
func (l *SharedLimit) Resize(size int) { l.size = size }

// Enter takes a place for a tenant of the given weight (below 1: 1). It returns false if there
// is none for the tenant.
func (l *SharedLimit) Enter(tenant string, weight int) bool {
	if !l.MayEnter(tenant, weight, 1) {
		return false
	}
	l.Admit(tenant, weight, 1)
	return true
}

// MayEnter says whether a tenant may take n places at once.
func (l *SharedLimit) MayEnter(tenant string, weight, n int) bool {
	weight = min(max(weight, 1), MaxWeight)
	return l.inside+n <= l.size ||
		l.inside+n <= 2*l.size && (l.Held(tenant)+n)*l.weightsWith(tenant, weight) <= l.size*weight
}

// Admit takes n places even if none are free, for requests that another process accepted.
func (l *SharedLimit) Admit(tenant string, weight, n int) {
	weight = min(max(weight, 1), MaxWeight)
	l.weights = l.weightsWith(tenant, weight)
	e := l.tenants[tenant]
	if e == nil {
		e = &limitEntry{}
		l.tenants[tenant] = e
	}
	e.inside += n
	e.weight = weight
	l.inside += n
}

// weightsWith returns the sum of the weights of the tenants present, with the given weight for
// one of them or for a new one.
func (l *SharedLimit) weightsWith(tenant string, weight int) int {
	if e := l.tenants[tenant]; e != nil {
		return l.weights - e.weight + weight
	}
	return l.weights + weight
}

// Leave gives back n of a tenant's places.
func (l *SharedLimit) Leave(tenant string, n int) {
	e := l.tenants[tenant]
	l.inside -= n
	if e.inside -= n; e.inside == 0 {
		l.weights -= e.weight
		delete(l.tenants, tenant)
	}
}

// Inside returns the number of places taken.
func (l *SharedLimit) Inside() int { return l.inside }

// Held returns the number of places that a tenant holds.
func (l *SharedLimit) Held(tenant string) int {
	if e := l.tenants[tenant]; e != nil {
		return e.inside
	}
	return 0
}

// Turns returns how many places must come back before one more request of a tenant is served,
// if tenants take turns by weight. The request follows all others of its tenant.
func (l *SharedLimit) Turns(tenant string, weight int) int {
	weight = min(max(weight, 1), MaxWeight)
	return ((l.Held(tenant)+1)*l.weightsWith(tenant, weight)+weight-1)/weight - 1
}
