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
	if !r.MayEnter(tenant, weight, 1) {
		return false
	}
	r.Admit(tenant, weight, 1)
	return true
}

// MayEnter says whether there are places for n at once.
func (r *Room) MayEnter(tenant string, weight, n int) bool {
	weight = min(max(weight, 1), MaxWeight)
	return r.inside+n <= r.size ||
		r.inside+n <= 2*r.size && (r.Held(tenant)+n)*r.weightsWith(tenant, weight) <= r.size*weight
}

// Admit takes n places even where there are none: for who was let in elsewhere before.
func (r *Room) Admit(tenant string, weight, n int) {
	weight = min(max(weight, 1), MaxWeight)
	r.weights = r.weightsWith(tenant, weight)
	g := r.tenants[tenant]
	if g == nil {
		g = &guest{}
		r.tenants[tenant] = g
	}
	g.inside += n
	g.weight = weight
	r.inside += n
}

// weightsWith is the weights of the tenants inside with that of one of them, or of a
// new one, as given.
func (r *Room) weightsWith(tenant string, weight int) int {
	if g := r.tenants[tenant]; g != nil {
		return r.weights - g.weight + weight
	}
	return r.weights + weight
}

// Leave gives back n places that a tenant has.
func (r *Room) Leave(tenant string, n int) {
	g := r.tenants[tenant]
	r.inside -= n
	if g.inside -= n; g.inside == 0 {
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

// Turns is how many places are given back until one more of a tenant has its turn,
// behind all that its tenant holds, when the tenants inside take turns by weight.
func (r *Room) Turns(tenant string, weight int) int {
	weight = min(max(weight, 1), MaxWeight)
	return ((r.Held(tenant)+1)*r.weightsWith(tenant, weight)+weight-1)/weight - 1
}
