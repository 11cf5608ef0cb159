// Package kvmgr is the allocator of a device's KV cache: which physical slab
// belongs to which sequence. It must not know memory, tensors or what a token means: it counts, and
// the compute actor maps what is leased here.
//
// What a sequence keeps, and what may be done with it, is a Spec.
//
// A slab holds the keys and values of SlabTokens tokens, for a group of layers: see Spec. A
// sequence is promised slabs before it runs, and leases them as it grows. The first invariant is
//
//	promised <= free + cached
//
// where promised counts the promised slabs that are not leased yet, and cached those that nobody
// holds but the prefix tree, which gives them back on demand: a lease
// inside a promise cannot fail. A sequence may declare a longer end than it is promised slabs for, and grow.
// The second invariant is that the pool is safe: in some order, every sequence can reach its declared end with what is
// available and what those before it return, or waits in the tier for its turn. So what is admitted always runs to its end.
//
// The tier is memory outside the pool, in slots of the size of a slab: see Spill.
//
// Where tokens see a window of their past only, a sequence gives slabs back while it runs: see Trim.
//
// Where layers keep a state, a sequence begins at a snapshot of it: see State.
//
// Slabs are counted by reference, so that a sequence shares the slabs of a prefix that
// another has computed; sharing is mapping the same slab twice.
//
// A Manager is a plain value for one owner: no lock, no clock, no goroutine.
package kvmgr

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
)

// Errors. Those with numbers are wrapped; the first two in a *ShortageError.
var (
	ErrNoSlabs           = errors.New("kvmgr: no slabs")               // not now: wait for a release
	ErrNeverFits         = errors.New("kvmgr: larger than the pool")   // not ever
	ErrUnknownSequence   = errors.New("kvmgr: unknown sequence")       //
	ErrSequenceExists    = errors.New("kvmgr: sequence exists")        //
	ErrBeyondReservation = errors.New("kvmgr: beyond the reservation") //
	ErrInvalid           = errors.New("kvmgr: invalid argument")       //
)

// ShortageError is a reservation that was not given. It wraps ErrNoSlabs or
// ErrNeverFits.
type ShortageError struct {
	Err              error
	Need, Free, Pool int // slabs; Free counts those not promised to anyone
}

func (e *ShortageError) Error() string {
	return fmt.Sprintf("%v: need %d slabs, free %d of %d", e.Err, e.Need, e.Free, e.Pool)
}

func (e *ShortageError) Unwrap() error { return e.Err }

// Seq names a sequence.
type Seq uint64

// Config sizes a Manager.
type Config struct {
	Slabs     int   // physical slabs of the pool, numbered from 0
	Committed int   // of them, the first ones, which have memory from the start; 0: all. See Grown
	Mappings  int   // slabs that all regions may hold together, a shared one counted for each; 0: any number
	Slots     int   // of the tier, numbered from 0; 0: there is none
	Cold      bool  // Cold lists slabs
	Worth     Worth // orders evictions of the prefix tree; nil: ReusedLRU
	Spec            // of all sequences
}

// Manager owns the slabs of one pool.
type Manager struct {
	spec        Spec
	slabTokens  int // see Spec
	groups      Counts
	live        int     // slabs of a windowed group that a region has at once at most
	sinks       int     // of these, the first ones, which it keeps
	free        freeSet // committed ones
	refs        []int32 // [slabs] regions that hold the slab
	fixed       []int32 // [slabs] of these, the regions that do not slide
	regions     map[Seq]*region
	bySlab      []*node // [slabs] the node of each slab, nil without
	uncommitted freeSet // slabs without memory
	trees       []tree  // by group
	tier        tier
	ready       []Seq     // see Ready
	taken       []int32   // of extend, reused
	mappings    int       // see Config
	mapped      int       // slabs promised, leased or not, over all regions
	head        int       // slabs of a region before those of its tokens
	states      *states   // nil: sequences have none that others begin with
	needed      int       // slabs that regions need at their declared ends, and are not promised
	lacking     int       // see Lacking
	order       []*region // of safe, reused
	promised    int       // promised and not leased, over all regions
	kept        int       // slabs that regions hold which do not slide
	slid        int       // slabs that regions hold which slide, a shared one counted for each
	shared      int       // slabs with more than one reference
	observer    Observer  // nil: none
}

// region is the slabs of one sequence.
type region struct {
	seq    Seq
	end    int // tokens at its declared end
	groups Counts
	full   int       // the most slabs that it has at once until then, shared ones included
	tokens int       // promised, in tokens
	prompt int       // of the tokens, those in a segment of their own; 0 without beams
	beams  int       // segments for the tokens after the prompt; 1 without beams
	quota  int       // the most slabs that it has at once with these tokens: promised, shared ones included
	slides bool      // it gives slabs of windowed groups back before its end, to have others: see Trim
	denied bool      // its last growth was
	first  int       // leading positions whose slabs of windowed groups it gave back, or never had, but for those of sinks
	sinks  int       // leading slabs that it keeps
	head   []int32   // leased, before those of the tokens; nil: not yet, or not any more
	lent   *snapshot // see Lend; nil: none
	branch int       // of its Hit
	known  int       // tokens that it began with
	late   *snapshot // the last one after these, of its answer; nil: none
	left   *snapshot // of its head, which it holds until its end; nil: none. See Retire
	// slabs are leased, by position; each element is written once (leases hand out views). Those given back are no longer its own, -1:
	// never had.
	slabs    []int32
	imported bool    // its tokens come from elsewhere, and no state between them
	cached   bool    // the region's slabs enter the prefix trees
	space    string  // in this space
	paths    []path  // by group
	pending  []*node // of the first group, that it computes, or has computed
}

// path is the part of a prefix tree that has a region's slabs of one group.
type path struct {
	inTree  int   // leading positions whose tokens are there
	last    *node // of the last of these
	tail    *node // of the next slab, with the first of its tokens; nil without
	doubles int   // see twins
}

// twins are slabs of a group's tree with the same tokens as the region's own, which another sequence computed at the same time.
// The region holds them too, since it holds what follows them.
func (r *region) twins() iter.Seq2[int, int32] {
	return func(yield func(group int, id int32) bool) {
		for group := range r.paths {
			p := &r.paths[group]
			n := p.last
			for i := p.inTree - 1; i >= 0 && p.doubles > 0; i-- {
				if n.slab != r.at(i, group) && !yield(group, n.slab) {
					return
				}
				n = n.parent
			}
		}
	}
}

// doubles is the number of twins.
func (r *region) doubles() (n int) {
	for i := range r.paths {
		n += r.paths[i].doubles
	}
	return n
}

// holds are all slabs that the region holds.
func (r *region) holds() iter.Seq2[int, int32] {
	return func(yield func(group int, id int32) bool) {
		for group, id := range r.own() {
			if !yield(group, id) {
				return
			}
		}
		r.twins()(yield)
	}
}

// held is the number of its own slabs.
func (r *region) held() int { return len(r.head) + r.groups.Slabs(r.positions(), r.gone()) }

// slidesIn says whether the region gives slabs of a group back to have others.
func (r *region) slidesIn(group int) bool { return r.slides && group >= r.groups.Full }

func (r *region) unleased() int { return r.quota - r.held() }

// count adds a region to the sums; sign is -1 to take it off.
func (m *Manager) count(r *region, sign int) {
	m.promised += sign * r.unleased()
	m.mapped += sign * r.quota
	m.needed += sign * r.need()
	if r.slides {
		m.slid += sign * Counts{Windowed: r.groups.Windowed}.Slabs(r.positions(), r.gone())
	}
}

// New returns a Manager with every slab free.
func New(cfg Config) (*Manager, error) {
	if cfg.Slabs < 1 || cfg.Slabs > math.MaxInt32 {
		return nil, fmt.Errorf("%w: slabs %d, expected 1 to %d", ErrInvalid, cfg.Slabs, math.MaxInt32)
	}
	if cfg.Committed < 0 || cfg.Committed > cfg.Slabs {
		return nil, fmt.Errorf("%w: %d slabs with memory of %d, expected 0 or at most all", ErrInvalid, cfg.Committed, cfg.Slabs)
	}
	if cfg.Slots < 0 || cfg.Slots > math.MaxInt32 {
		return nil, fmt.Errorf("%w: slots %d, expected 0 to %d", ErrInvalid, cfg.Slots, math.MaxInt32)
	}
	if err := cfg.Validate(Wants{Disk: cfg.Cold, Tier: cfg.Slots > 0}); err != nil {
		return nil, err
	}
	if cfg.Worth == nil {
		cfg.Worth = ReusedLRU
	}
	m := &Manager{
		spec:       cfg.Spec,
		slabTokens: cfg.SlabTokens,
		groups:     cfg.Counts(),
		mappings:   cfg.Mappings,
		free:       newFreeSet(cfg.Slabs),
		refs:       make([]int32, cfg.Slabs),
		fixed:      make([]int32, cfg.Slabs),
		bySlab:     make([]*node, cfg.Slabs),
		regions:    make(map[Seq]*region),
		tier:       newTier(cfg.Slots),
	}
	m.live, m.sinks = cfg.last().trims()
	m.head = cfg.Head()
	if every := cfg.every(); every > 0 {
		m.states = &states{every: every}
	}
	for i := range m.groups.Count() {
		m.trees = append(m.trees, newTree(m.bySlab, i, cfg.Spec, cfg.Worth))
		m.trees[i].states = m.states
	}
	m.trees[0].cold = cold{wanted: cfg.Cold, hollow: cfg.Hollow(), next: -1}
	m.uncommitted = newFreeSet(cfg.Slabs)
	if cfg.Committed == 0 {
		cfg.Committed = cfg.Slabs
	}
	m.uncommitted.remove(nil, 0, cfg.Committed)
	m.free.remove(nil, cfg.Committed, cfg.Slabs-cfg.Committed)
	return m, nil
}

// slabsFor is the number of positions that hold tokens.
func (m *Manager) slabsFor(tokens int) int { return divideUp(tokens, m.slabTokens) }

// divideUp cannot overflow.
func divideUp(a, b int) int {
	n := a / b
	if a%b != 0 {
		n++
	}
	return n
}

// Reserve admits a sequence: it promises slabs for the first tokens of l. Errors:
// ErrNoSlabs (a *ShortageError), ErrNeverFits (likewise), ErrSequenceExists,
// ErrInvalid; nothing changes then.
func (m *Manager) Reserve(seq Seq, l Length) error {
	if err := m.checkReserve(seq, l); err != nil {
		return err
	}
	return m.add(&region{seq: seq, end: l.End, tokens: l.Promise, beams: 1}, &found{})
}

func (m *Manager) checkReserve(seq Seq, l Length) error {
	if m.Has(seq) {
		return fmt.Errorf("%w: %d", ErrSequenceExists, seq)
	}
	if l.Promise < 1 || l.Promise > l.End {
		return fmt.Errorf("%w: reserve %d tokens of %d, expected at least 1 and at most all", ErrInvalid, l.Promise, l.End)
	}
	return nil
}

// add admits a region that begins with the whole slabs of what was found of its prompt.
func (m *Manager) add(r *region, f *found) error {
	r.groups, r.paths, r.sinks = m.groups, make([]path, len(m.trees)), m.sinks
	r.slides = m.slides(r)
	r.full = m.most(r, r.end)
	if m.mappings > 0 && r.full > m.mappings {
		r.tokens = r.end // it runs alone, see admit
	}
	r.quota = m.most(r, r.tokens)
	if err := m.admit(r, f); err != nil {
		return err
	}
	m.share(r, f)
	m.count(r, 1)
	m.regions[r.seq] = r
	if m.needed == 0 || m.safe() {
		return nil
	}
	m.lackSafety()
	m.drop(r)
	return &ShortageError{Err: ErrNoSlabs, Need: r.full - m.groups.Slabs(f.whole, r.first), Free: m.available(), Pool: len(m.refs)}
}

// rest is the nodes of what was found whose slabs a region has, in a group.
func (r *region) rest(f *found, group int) []*node {
	if f.whole == 0 {
		return nil
	}
	path := f.groups[group].path
	return path[min(r.from(group), len(path)):]
}

// available is how many slabs can be promised: those that are free, or kept for their tokens alone. What regions share that slide is
// as if each had slabs of its own: it needs them later.
func (m *Manager) available() int { return m.committed() - m.kept - m.slid - m.promised }

// admit says whether what is promised to a region that begins with the slabs of what was found fits beside all other promises.
func (m *Manager) admit(r *region, f *found) error {
	need, free := r.quota, m.available()
	for group := range m.trees {
		if r.slidesIn(group) {
			continue
		}
		for _, n := range r.rest(f, group) {
			if m.fixed[n.slab] > 0 {
				need--
			}
		}
	}
	if r.full > len(m.refs) {
		return &ShortageError{Err: ErrNeverFits, Need: r.full, Free: free, Pool: len(m.refs)}
	}
	if need > free {
		m.lack(need - free)
		return &ShortageError{Err: ErrNoSlabs, Need: need, Free: free, Pool: len(m.refs)}
	}
	// Each slab of a region may need a mapping of its own, and a process has a limited number of them.
	if m.mappings > 0 && m.mapped > 0 && r.quota > m.mappings-m.mapped {
		return &ShortageError{Err: ErrNoSlabs, Need: r.quota, Free: m.mappings - m.mapped, Pool: m.mappings}
	}
	return nil
}

// Lease gives the sequence physical slabs for its first upTo tokens and
// returns the ids of the new ones, first those of its head, in the order of their positions (see
// Segments for beams); none if they are leased already. The slice is the caller's to read for ever. Inside
// the reservation and up to Limit it does not fail. Errors: ErrUnknownSequence,
// ErrBeyondReservation.
func (m *Manager) Lease(seq Seq, upTo int) ([]int32, error) {
	r, ok := m.regions[seq]
	if !ok {
		return nil, fmt.Errorf("%w: lease for %d", ErrUnknownSequence, seq)
	}
	if upTo > r.tokens {
		return nil, fmt.Errorf("%w: sequence %d, lease up to token %d, promised %d", ErrBeyondReservation, seq, upTo, r.tokens)
	}
	have, total := r.positions(), m.slabsOf(r, max(upTo, 0))
	place := have*m.groups.Count() + len(r.head)
	if total > have && total-r.gone() > m.liveOf(r, m.slabsOf(r, r.tokens)) {
		return nil, fmt.Errorf("%w: sequence %d, lease up to token %d, expected at most %d before it gives slabs back",
			ErrBeyondReservation, seq,
			upTo, m.Limit(seq))
	}
	got := m.extend(r, total)
	m.leased(seq, place, got)
	return got, nil
}

// extend leases slabs until the region has its head and those of total positions (at most its quota), and returns the new ones by position:
// -1 where a windowed group needs none.
func (m *Manager) extend(r *region, total int) []int32 {
	have, begin, n := r.positions(), len(r.slabs), m.groups.Count()
	if total <= have {
		return nil
	}
	begins := m.head > 0 && r.head == nil
	if begins {
		m.leaseHead(r)
	}
	m.room(m.groups.Slabs(total, r.first) - m.groups.Slabs(have, r.first))
	m.count(r, -1)
	for range (total - have) * n {
		r.slabs = append(r.slabs, -1)
	}
	for group := range n { // neighbors of one group are mapped by one call
		from, near := max(have, r.from(group)), -1
		if have > r.from(group) {
			near = int(r.at(have-1, group)) + 1
		}
		m.taken = m.free.take(m.taken[:0], max(total-from, 0), near)
		for i, id := range m.taken {
			r.slabs[(from+i)*n+group] = id
			m.refs[id] = 1
			m.keep(r, group, id, 1)
		}
		m.void(m.taken)
	}
	m.count(r, 1)
	if begins {
		return slices.Concat(r.head, r.slabs[begin:])
	}
	return r.slabs[begin:len(r.slabs):len(r.slabs)]
}

// room makes some slabs free, which are promised: it evicts others.
func (m *Manager) room(slabs int) {
	for m.free.count < slabs {
		m.evict()
	}
}

// evict makes the slab free that is worth the least of a prefix tree: of trees with equal ones, of the one that has the most slabs which
// nobody holds, so that no group loses what the others need. Leaves with a snapshot are none: slabs after the last snapshot go first, and
// then the slabs of the snapshot that is worth the least. There is one.
func (m *Manager) evict() {
	var least *tree
	for i := range m.trees {
		if t := &m.trees[i]; len(t.leaves) > 0 && (least == nil || t.goesBefore(least)) {
			least = t
		}
	}
	if least == nil {
		m.evictState()
		return
	}
	m.free.put(int(least.evict()))
}

// goesBefore says whether a slab of a tree is evicted before those of another one.
func (t *tree) goesBefore(o *tree) bool {
	if a, b := t.leaves[0].worth, o.leaves[0].worth; a != b {
		return a < b
	}
	return t.idle > o.idle
}

// Release ends the sequence's reservation and gives back its slabs, and its slots of the tier. It returns
// how many slabs can now be promised to others: those never leased, and those
// that nobody else shares. Errors: ErrUnknownSequence.
func (m *Manager) Release(seq Seq) (freed int, err error) {
	if !m.Has(seq) {
		return 0, fmt.Errorf("%w: release of %d", ErrUnknownSequence, seq)
	}
	m.tier.free(seq)
	if r := m.regions[seq]; r != nil {
		before := m.available()
		m.drop(r)
		freed = m.available() - before
	}
	return freed, nil
}

// drop gives back the slabs of a region.
func (m *Manager) drop(r *region) {
	m.count(r, -1)
	m.settle(r)
	if v := r.lent; v != nil {
		m.states.remove(v)
		m.discard(v)
	}
	m.leave(r)
	for group, id := range r.holds() {
		m.unref(r, group, id)
	}
	for group := range m.trees {
		m.follow(r, group, nil)
	}
	delete(m.regions, r.seq)
}

// keep notes that a region holds a slab, or with -1 that it does not any more.
func (m *Manager) keep(r *region, group int, id, by int32) {
	if r.slidesIn(group) {
		return
	}
	before := m.fixed[id]
	m.fixed[id] += by
	m.kept += int(min(m.fixed[id], 1) - min(before, 1))
}

// ref counts a region that holds a slab which is in the tree or another region's.
func (m *Manager) ref(r *region, group int, id int32) {
	m.keep(r, group, id, 1)
	m.refs[id]++
	switch m.refs[id] {
	case 1:
		m.trees[group].hold(m.bySlab[id])
	case 2:
		m.shared++
	}
}

// unref uncounts a region that held the slab.
func (m *Manager) unref(r *region, group int, id int32) {
	m.keep(r, group, id, -1)
	m.refs[id]--
	switch n := m.bySlab[id]; {
	case m.refs[id] > 1:
	case m.refs[id] == 1:
		m.shared--
	case n != nil:
		m.ready = append(m.ready, m.trees[group].drop(n)...)
	default:
		m.free.put(int(id))
	}
}
