package sched

// SharedLimit counts who is in a bounded place and who may still enter. Any tenant
// may fill it while it is not full. When it is full, a tenant that holds less
// than its share, by weight among those inside, still gets in: nobody is shut
// out by another's load. No more than twice the size are ever inside.
type SharedLimit struct {
	size    int
	inside  int
	weights int // of the tenants inside
	tenants map[string]*limitEntry
}

type limitEntry struct{ inside, weight int }

// NewSharedLimit returns an empty room of a size of at least 1.
func NewSharedLimit(size int) *SharedLimit {
	return &SharedLimit{size: size, tenants: make(map[string]*limitEntry)}
}

// Resize changes the size, to at least 1. Nobody has to leave.
func (r *SharedLimit) Resize(size int) { r.size = size }

// Enter takes a place for a tenant of the given weight (below 1: 1); false when
// there is none for it.
func (r *SharedLimit) Enter(tenant string, weight int) bool {
	if !r.MayEnter(tenant, weight, 1) {
		return false
	}
	r.Admit(tenant, weight, 1)
	return true
}

// MayEnter says whether there are places for n at once.
func (r *SharedLimit) MayEnter(tenant string, weight, n int) bool {
	weight = min(max(weight, 1), MaxWeight)
	return r.inside+n <= r.size ||
		r.inside+n <= 2*r.size && (r.Held(tenant)+n)*r.weightsWith(tenant, weight) <= r.size*weight
}

// Admit takes n places even where there are none: for who was let in elsewhere before.
func (r *SharedLimit) Admit(tenant string, weight, n int) {
	weight = min(max(weight, 1), MaxWeight)
	r.weights = r.weightsWith(tenant, weight)
	g := r.tenants[tenant]
	if g == nil {
		g = &limitEntry{}
		r.tenants[tenant] = g
	}
	g.inside += n
	g.weight = weight
	r.inside += n
}

// weightsWith is the weights of the tenants inside with that of one of them, or of a
// new one, as given.
func (r *SharedLimit) weightsWith(tenant string, weight int) int {
	if g := r.tenants[tenant]; g != nil {
		return r.weights - g.weight + weight
	}
	return r.weights + weight
}

// Leave gives back n places that a tenant has.
func (r *SharedLimit) Leave(tenant string, n int) {
	g := r.tenants[tenant]
	r.inside -= n
	if g.inside -= n; g.inside == 0 {
		r.weights -= g.weight
		delete(r.tenants, tenant)
	}
}

// Inside is the number of places taken.
func (r *SharedLimit) Inside() int { return r.inside }

// Held is the number of places that a tenant has.
func (r *SharedLimit) Held(tenant string) int {
	if g := r.tenants[tenant]; g != nil {
		return g.inside
	}
	return 0
}

// Turns is how many places are given back until one more of a tenant has its turn,
// behind all that its tenant holds, when the tenants inside take turns by weight.
func (r *SharedLimit) Turns(tenant string, weight int) int {
	weight = min(max(weight, 1), MaxWeight)
	return ((r.Held(tenant)+1)*r.weightsWith(tenant, weight)+weight-1)/weight - 1
}
