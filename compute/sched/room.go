package sched

// Room counts who is in a bounded place and who may still enter. Any tenant
// may fill it while it is not full. When it is full, a tenant that holds less
// than its share, by weight among those inside, still gets in: nobody is shut
// out by another's load. No more than twice the size are ever inside.
type Room struct {
	size    int
	inside  int
	weights int // of the tenants inside
	tenants map[string]*guest
}

type guest struct{ inside, weight int }

// NewRoom returns an empty room of a size of at least 1.
func NewRoom(size int) *Room { return &Room{size: size, tenants: make(map[string]*guest)} }

// Resize changes the size, to at least 1. Nobody has to leave.
func (r *Room) Resize(size int) { r.size = size }

// Enter takes a place for a tenant of the given weight (below 1: 1); false when
// there is none for it.
func (r *Room) Enter(tenant string, weight int) bool {
	weight = min(max(weight, 1), MaxWeight)
	g := r.tenants[tenant]
	held, weights := 0, r.weights+weight
	if g != nil {
		held, weights = g.inside, weights-g.weight
	}
	if r.inside >= r.size && (r.inside >= 2*r.size || (held+1)*weights > r.size*weight) {
		return false
	}
	if g == nil {
		g = &guest{}
		r.tenants[tenant] = g
	}
	g.inside++
	g.weight, r.weights = weight, weights
	r.inside++
	return true
}

// Leave gives back a place that Enter took.
func (r *Room) Leave(tenant string) {
	g := r.tenants[tenant]
	r.inside--
	if g.inside--; g.inside == 0 {
		r.weights -= g.weight
		delete(r.tenants, tenant)
	}
}

// Inside is the number of places taken.
func (r *Room) Inside() int { return r.inside }

// Held is the number of places that a tenant has.
func (r *Room) Held(tenant string) int {
	if g := r.tenants[tenant]; g != nil {
		return g.inside
	}
	return 0
}

// Turns is how many places are given back until all that a tenant holds have
// been, when the tenants inside take turns by weight.
func (r *Room) Turns(tenant string, weight int) int {
	weight = min(max(weight, 1), MaxWeight)
	weights := r.weights
	if g := r.tenants[tenant]; g != nil {
		weights -= g.weight
	}
	return (r.Held(tenant)*(weights+weight) + weight - 1) / weight
}
