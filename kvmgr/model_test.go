package kvmgr

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// names is how many sequences the random operations have.
const names = 10

// world is a Manager and a simple model of it: what each sequence was promised and holds, and what each slab has in memory.
// The model counts everything anew after each operation.
type world struct {
	t        testing.TB
	label    string
	step     int
	m        *Manager
	cfg      layout
	g        Counts
	next     func(n int) int // 0 to n-1; random numbers, or the fuzzer's
	contents [][]uint64      // of each token of a slab: a hash of the group, the space and the tokens up to it
	tier     [][]uint64      // of each token of a slot
	seqs     [names]*tracked
	ended    []int32 // tokens of a sequence whose state is kept
	waiting  [names]bool
	memory   []bool // [slabs] those that are committed
	happened map[string]int
	exact    bool        // nothing is evicted: a hit is the longest prefix that was committed
	offered  []*offering // with exact
}

// tracked is a sequence.
type tracked struct {
	space, prompt, end int
	promise            int      // tokens
	beams              int      // 0: none
	imported           bool     // its tokens come from elsewhere
	stateless          bool     // its state does not
	offers             bool     // its slabs enter the prefix tree
	settled            bool     // and no more of them
	denied             bool     // its last growth was
	ids                []int32  // of all tokens
	hashes             []uint64 // of the tokens up to each
	done               int      // computed
	first              int      // leading positions whose slabs of windowed groups it has not
	slides             bool     // more slabs of a windowed group than may live at once would hold it
	slabs              []int32  // by position, one of each group, those of the head first
	lent               int      // tokens of which a copy of its state is in slabs that were lent to it; 0: none
	kept               int      // as first, in the tier
	at                 place
	slots              []int32
	moves              []Move // not made yet
}

// place is where a sequence is.
type place uint8

const (
	inPool place = iota
	leaving
	inTier
	returning
)

type offering struct {
	space int
	ids   []int32
}

// layout is a Config by numbers, for tests that draw them.
type layout struct {
	Slabs, Committed, SlabTokens, Mappings, Slots int
	Groups                                        Counts // without a window all are full
	Head, Most, Window, Live, Sinks               int    // 0: none
	Every                                         int    // the head is a state, with snapshots; 0: it is not
}

func (l layout) config() Config {
	c := l.Groups
	switch {
	case l.Window == 0:
		c = Counts{Full: c.Count()}
	case c == Counts{}:
		c = Counts{Windowed: 1}
	}
	if l.Every > 0 {
		return Config{Slabs: l.Slabs, Committed: l.Committed, Mappings: l.Mappings, Slots: l.Slots,
			Spec: NewSpec(l.SlabTokens, Full{}, State{Slabs: l.Head, Every: l.Every})}
	}
	full := Group(Full{Head: l.Head})
	if l.Most > 0 {
		full = Bounded{Slabs: l.Most}
	}
	windowed := Group(Window{Tokens: l.Window, Live: l.Live, Sinks: l.Sinks})
	groups := append(slices.Repeat([]Group{full}, c.Full), slices.Repeat([]Group{windowed}, c.Windowed)...)
	return Config{Slabs: l.Slabs, Committed: l.Committed, Mappings: l.Mappings, Slots: l.Slots, Spec: NewSpec(l.SlabTokens, groups...)}
}

func newWorld(t testing.TB, label string, cfg layout, next func(int) int) *world {
	m, err := New(cfg.config())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, label: label, m: m, cfg: cfg, g: m.groups, next: next, happened: map[string]int{},
		contents: make([][]uint64, cfg.Slabs)}
	w.memory = make([]bool, cfg.Slabs)
	for i := range w.memory {
		w.memory[i] = cfg.Committed == 0 || i < cfg.Committed
	}
	for i := range w.contents {
		w.contents[i] = make([]uint64, cfg.SlabTokens)
	}
	w.tier = make([][]uint64, cfg.Slots)
	for i := range w.tier {
		w.tier[i] = make([]uint64, cfg.SlabTokens)
	}
	return w
}

func (w *world) fail(format string, args ...any) {
	w.t.Fatalf("%s, operation %d: %s", w.label, w.step, fmt.Sprintf(format, args...))
}

// want fails unless an operation had the outcome that the model has.
func (w *world) want(what string, got, want error) {
	if want == nil && got != nil || want != nil && !errors.Is(got, want) {
		w.fail("%s: got %v, want %v", what, got, want)
	}
}

// slabsFor is how many positions hold the first tokens of a sequence.
func (w *world) slabsFor(q *tracked, tokens int) int {
	up := func(n int) int { return (n + w.cfg.SlabTokens - 1) / w.cfg.SlabTokens }
	switch {
	case q.beams == 0 && w.cfg.Most > 0:
		return min(up(tokens), w.cfg.Most)
	case q.beams == 0:
		return w.cfg.Head + up(tokens)
	}
	return w.cfg.Head + up(min(tokens, q.prompt)) + q.beams*up(max(0, tokens-q.prompt))
}

// most is how many slabs a sequence has at once at most while it has some tokens.
func (w *world) most(q *tracked, tokens int) int {
	return w.g.Full*w.slabsFor(q, tokens) + w.g.Windowed*w.liveOf(q, tokens)
}

// liveOf is the part of most of a windowed group.
func (w *world) liveOf(q *tracked, tokens int) int {
	n := max(w.slabsFor(q, tokens)-w.gone(q), 0)
	if q.slides {
		n = min(n, w.cfg.Live)
	}
	return n
}

// position is that of a token of a sequence.
func (w *world) position(q *tracked, token int) int {
	if q.beams == 0 && w.cfg.Most > 0 { // in turn: some place of an earlier token
		return token / w.cfg.SlabTokens % w.cfg.Most
	}
	return w.cfg.Head + token/w.cfg.SlabTokens
}

// slabAt is a sequence's slab of a group at a position.
func (w *world) slabAt(q *tracked, position, group int) int32 {
	return q.slabs[position*w.g.Count()+group]
}

// positions is how many positions have slabs.
func (w *world) positions(q *tracked) int { return len(q.slabs) / w.g.Count() }

// firstOf is the first position whose slab of a group a sequence has.
func (w *world) firstOf(q *tracked, group int) int {
	if group < w.g.Full {
		return 0
	}
	return q.first
}

// keeps says whether a sequence has its slab of a group at a position: it gave it not back, or it is one of its sinks.
func (w *world) keeps(q *tracked, position, group int) bool {
	return position >= w.firstOf(q, group) || position < w.cfg.Sinks
}

// gone is how many positions' slabs of windowed groups a sequence has not.
func (w *world) gone(q *tracked) int { return max(0, q.first-w.cfg.Sinks) }

// has are the slabs that a sequence has from a position up to another one.
func (w *world) has(q *tracked, from, to int) (slabs []int32) {
	for i := from; i < min(to, w.positions(q)); i++ {
		for group := range w.g.Count() {
			if w.keeps(q, i, group) {
				slabs = append(slabs, w.slabAt(q, i, group))
			}
		}
	}
	return slabs
}

// content is what a token's keys and values are in a group.
func content(hash uint64, group int) uint64 { return hash ^ uint64(group)*0x9e3779b97f4a7c15 }

// begins notes what a sequence is that begins, or returns, without its first slabs.
func (w *world) begins(q *tracked, first int) {
	q.first = first
	q.slides = w.cfg.Window > 0 && q.beams == 0 && w.slabsFor(q, q.end)-w.gone(q) > w.cfg.Live
}

// seen is the first slab that the token at a position sees.
func (w *world) seen(position int) int {
	if w.cfg.Window == 0 {
		return 0
	}
	return max(0, position-w.cfg.Window+1) / w.cfg.SlabTokens
}

// firstKept is the first slab that a sequence keeps whose next token is at a position.
func (w *world) firstKept(position int) int {
	if w.cfg.Window == 0 {
		return 0
	}
	return max(0, position-w.cfg.Window+1-w.cfg.SlabTokens) / w.cfg.SlabTokens
}

// limit is how many tokens of a sequence are computed here.
func (q *tracked) limit() int {
	if q.imported {
		return q.prompt - 1
	}
	return q.end
}

// live are the slabs that a sequence has.
func (w *world) live(q *tracked) []int32 { return w.has(q, 0, w.positions(q)) }

// held are the slabs that a sequence holds to its end, and those that it gives back before to have others: its own, and of full groups
// those of others with the same tokens, which only the Manager knows.
func (w *world) held(seq Seq) (fixed, slid []int32) {
	q := w.seqs[seq]
	for i := range w.positions(q) {
		for group := range w.g.Count() {
			switch id := w.slabAt(q, i, group); {
			case !w.keeps(q, i, group):
			case q.slides && group >= w.g.Full:
				slid = append(slid, id)
			default:
				fixed = append(fixed, id)
			}
		}
	}
	if r := w.m.regions[seq]; r != nil {
		for _, id := range r.twins() {
			fixed = append(fixed, id)
		}
	}
	return fixed, slid
}

// bank is the state of the pool, counted from the sequences.
type bank struct {
	refs      []int // holders of each slab
	fixed     []int // of them, those that do not slide
	committed int   // slabs with memory
	available int   // of them, those that nobody holds or is promised
	mappings  int   // that are left
	loans     []loan
	slots     int // of the tier
	spilled   int // of them, those that sequences have
	unused    int // those that nobody has, or that return
}

type loan struct {
	need, quota, leased int
	alone               int // slabs that it holds at its declared end
	fixed, slid         []int32
	beams               bool
}

func (w *world) bank() *bank {
	b := &bank{refs: make([]int, w.cfg.Slabs), fixed: make([]int, w.cfg.Slabs), mappings: w.cfg.Mappings, slots: w.cfg.Slots,
		unused: w.cfg.Slots}
	for _, there := range w.memory {
		if there {
			b.committed++
		}
	}
	b.available = b.committed
	if w.cfg.Mappings == 0 {
		b.mappings = 1 << 30
	}
	for seq, q := range w.seqs {
		if q == nil {
			continue
		}
		b.spilled += len(q.slots)
		if q.at != returning {
			b.unused -= len(q.slots)
		}
		if q.at == inTier {
			continue
		}
		a := loan{quota: w.most(q, q.promise), leased: len(w.live(q)), beams: q.beams > 0}
		a.fixed, a.slid = w.held(Seq(seq))
		a.need = w.most(q, q.end) - a.quota
		if q.at == leaving {
			a.quota, a.need = a.leased, 0
		}
		a.alone = a.quota + a.need + len(a.fixed) + len(a.slid) - a.leased
		for _, id := range a.slid { // it needs as many of its own later
			b.refs[id]++
			b.available--
		}
		for _, id := range a.fixed {
			b.refs[id]++
			if b.fixed[id]++; b.fixed[id] == 1 {
				b.available--
			}
		}
		b.available -= a.quota - a.leased
		b.mappings -= a.quota
		b.loans = append(b.loans, a)
	}
	if len(b.loans) == 1 {
		b.mappings = 1 << 30 // one sequence alone is not bounded
	}
	return b
}

// safe searches for an order in which all end. A sequence that ends leaves more than before, so any that can end may go first. The
// others have the pool one by one, if there is room for all but one of them in the tier.
func (b *bank) safe() bool {
	fixed, available, mappings, left := slices.Clone(b.fixed), b.available, b.mappings, slices.Clone(b.loans)
	if available < 0 || mappings < 0 {
		return false
	}
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(a loan) bool { return a.need <= available && a.need <= mappings })
		if i < 0 {
			return b.fitsTier(left)
		}
		a := left[i]
		left = slices.Delete(left, i, i+1)
		available, mappings = available+a.quota-a.leased, mappings+a.quota
		available += len(a.slid)
		for _, id := range a.fixed {
			if fixed[id]--; fixed[id] == 0 {
				available++
			}
		}
	}
	return true
}

// fitsTier says whether the tier can have all of some sequences but the one that has the most.
func (b *bank) fitsTier(left []loan) bool {
	sizes := make([]int, 0, len(left))
	for _, a := range left {
		if a.beams || a.alone > b.committed {
			return false
		}
		sizes = append(sizes, a.quota)
	}
	slices.Sort(sizes)
	room := b.unused
	for _, n := range sizes[:len(sizes)-1] {
		room -= n
	}
	return b.slots > 0 && room >= 0
}

// allowed says whether the pool would be safe with a sequence changed.
func (w *world) allowed(seq Seq, q *tracked) bool {
	old := w.seqs[seq]
	w.seqs[seq] = q
	ok := w.bank().safe()
	w.seqs[seq] = old
	return ok
}

// unheld fails if somebody holds one of the slabs.
func (w *world) unheld(seq Seq, ids []int32) {
	refs := w.bank().refs
	for _, id := range ids {
		if refs[id] != 0 {
			w.fail("sequence %d leases slab %d, which %d sequences hold", seq, id, refs[id])
		}
	}
}

// check compares everything that the Manager says with the model.
func (w *world) check() {
	if err := w.m.Check(); err != nil {
		w.fail("%v", err)
	}
	b := w.bank()
	want := Stats{Slabs: w.cfg.Slabs, Committed: b.committed, Free: b.available + w.cfg.Slabs - b.committed, Slots: b.slots,
		Spilled: b.spilled}
	for id, n := range b.refs {
		if n > 0 && !w.memory[id] {
			w.fail("%d sequences hold slab %d, which has no memory", n, id)
		}
		want.Used += min(n, 1)
		want.Shared += min(max(n-1, 0), 1)
	}
	for _, a := range b.loans {
		want.Promised += a.quota - a.leased
		want.Needed += a.need
	}
	for seq, q := range w.seqs {
		if q == nil {
			continue
		}
		if q.at != inTier {
			want.Regions++
		}
		if q.denied {
			want.Denied++
		}
		first, slabs := w.m.Live(Seq(seq))
		slabs = slices.DeleteFunc(slices.Clone(slabs), func(id int32) bool { return id < 0 })
		begin := min(w.firstOf(q, 0), q.first)
		if has := w.has(q, begin, w.positions(q)); q.at != inTier && (first != begin || w.m.Released(Seq(seq)) != q.first) ||
			!slices.Equal(has, slabs) {
			w.fail("sequence %d has slabs %v from %d on, the model %v from %d on", seq, slabs, first, has, q.first)
		}
		if live := w.positions(q) - w.gone(q); q.slides && live > w.cfg.Live {
			w.fail("sequence %d has %d slabs of a windowed group at once, expected at most %d", seq, live, w.cfg.Live)
		}
		w.checkWrites(Seq(seq))
	}
	got := w.m.Stats()
	if want.Cached = got.Cached; got != want {
		w.fail("stats %+v, the model has %+v", got, want)
	}
	w.checkStates()
	if !b.safe() {
		w.fail("unsafe: no order lets all end: %+v", b)
	}
}

// writeSet are the slabs that a sequence will write.
func (w *world) writeSet(seq Seq) []int32 {
	q := w.seqs[seq]
	if q == nil {
		return nil
	}
	if q.beams > 0 && q.done >= q.prompt {
		return w.has(q, w.slabsFor(q, q.prompt), w.positions(q))
	}
	if q.beams == 0 && w.cfg.Head+w.cfg.Most > 0 && w.cfg.Every == 0 {
		return w.live(q) // the first slabs in each step, or any
	}
	return append(w.has(q, 0, w.cfg.Head), w.has(q, w.cfg.Head+q.done/w.cfg.SlabTokens, w.positions(q))...)
}

// checkWrites checks that no other sequence has a slab that a sequence will write.
func (w *world) checkWrites(seq Seq) {
	for other, o := range w.seqs {
		if o == nil || Seq(other) == seq {
			continue
		}
		if both := common(w.live(o), w.writeSet(seq)); len(both) > 0 {
			w.fail("sequence %d writes slabs %v, which sequence %d has", seq, both, other)
		}
	}
}

func common(a, b []int32) (both []int32) {
	for _, id := range a {
		if slices.Contains(b, id) {
			both = append(both, id)
		}
	}
	return both
}

// verify checks that every computed token that a sequence has was computed from its tokens, in its space, and that it has those that its
// next token sees.
func (w *world) verify(seq Seq, q *tracked) {
	copying := q.imported && q.done < q.limit()
	if seen := w.seen(q.done); q.beams == 0 && q.first > seen && !copying || q.beams > 0 && q.first > 0 {
		w.fail("sequence %d of %d computed tokens has slabs from %d on, and sees those from %d on", seq, q.done, q.first, seen)
	}
	w.verifyState(seq, q)
	first := 0
	if q.beams == 0 && w.cfg.Most > 0 { // later tokens took the places of those before it
		first = max(0, q.computed()-w.cfg.Most*w.cfg.SlabTokens)
	}
	for group := range w.g.Count() {
		for i := first; i < q.computed(); i++ {
			if at := w.position(q, i); w.keeps(q, at, group) &&
				w.contents[w.slabAt(q, at, group)][i%w.cfg.SlabTokens] != content(q.hashes[i], group) {
				w.fail("token %d of sequence %d was computed from other tokens or in another space, in group %d", i, seq, group)
			}
		}
	}
}

// stateOf is what the slab at a place of a state has after some tokens of a hash.
func stateOf(hash uint64, place int) uint64 { return content(hash, 100+place) }

// setState sets the state of a sequence to that after its computed tokens, if it has one.
func (w *world) setState(q *tracked) {
	for i := range w.cfg.Head {
		if w.cfg.Every > 0 && q.done > 0 {
			w.contents[q.slabs[i]][0] = stateOf(q.hashes[q.done-1], i)
		}
	}
}

// verifyState checks that the state of a sequence is that after its computed tokens.
func (w *world) verifyState(seq Seq, q *tracked) {
	for i := range w.cfg.Head {
		if w.cfg.Every > 0 && q.done > 0 && !q.stateless && w.contents[q.slabs[i]][0] != stateOf(q.hashes[q.done-1], i) {
			w.fail("the state of sequence %d is not that after its %d tokens", seq, q.done)
		}
	}
}

// checkStates checks that every snapshot is of the tokens that the tree has for it.
func (w *world) checkStates() {
	if w.m.states == nil {
		return
	}
	for _, v := range w.m.states.heap {
		if v.node == nil {
			continue
		}
		var ids []int32
		n := v.node
		for ; n.parent != nil; n = n.parent {
			ids = append(slices.Clone(n.tokens), ids...)
		}
		if len(ids) != v.tokens {
			w.fail("a snapshot of %d tokens is at %d", v.tokens, len(ids))
		}
		h := hashes(int(n.space[0]-'a'), ids)
		for i, id := range v.slabs {
			if w.contents[id][0] != stateOf(h[len(h)-1], i) {
				w.fail("the snapshot of %v has another state", ids)
			}
		}
	}
}

// computed are the computed tokens whose contents the model has: of a beam search, those of its prompt.
func (q *tracked) computed() int {
	if q.beams > 0 {
		return min(q.done, q.prompt)
	}
	return q.done
}

// hashes returns a hash of the space and the tokens up to each.
func hashes(space int, ids []int32) []uint64 {
	out := make([]uint64, len(ids))
	h := uint64(space+1) * 0x9e3779b97f4a7c15
	for i, id := range ids {
		h = (h ^ uint64(id+1)) * 0xff51afd7ed558ccd
		h ^= h >> 32
		out[i] = h
	}
	return out
}
