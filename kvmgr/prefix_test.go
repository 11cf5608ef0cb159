package kvmgr

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"
)

// pool is a device's KV memory as the tests see it: for each token of a slab, a hash of all that its keys and values
// depend on, the space and the tokens up to it.
type pool struct {
	t         *testing.T
	m         *Manager
	rng       *rand.Rand
	seed      maphash.Seed
	tokens    int // of a slab
	contents  [][]uint64
	seqs      map[Seq]*running
	committed map[string][][]int32 // by space
	waiting   map[Seq]bool
	hits      int  // tokens that were shared
	waits     int  // reservations that had to wait
	evicts    bool // the pool is small: a committed prefix may be gone
}

// running is a sequence that computes.
type running struct {
	space  string
	ids    []int32 // known tokens
	limit  int
	done   int     // computed
	slabs  []int32 // mapped
	hashes []uint64
}

func newPool(t *testing.T, seed uint64, slabs, slabTokens int) *pool {
	t.Helper()
	m, err := New(Config{Slabs: slabs, SlabTokens: slabTokens})
	if err != nil {
		t.Fatal(err)
	}
	p := &pool{
		t: t, m: m, rng: rand.New(rand.NewPCG(seed, 3)), seed: maphash.MakeSeed(), tokens: slabTokens,
		contents: make([][]uint64, slabs), seqs: map[Seq]*running{}, committed: map[string][][]int32{}, waiting: map[Seq]bool{},
	}
	for i := range p.contents {
		p.contents[i] = make([]uint64, slabTokens)
	}
	return p
}

// hash is of a space and the tokens up to one.
func (p *pool) hash(space string, ids []int32) uint64 {
	return maphash.String(p.seed, space+fmt.Sprint(ids))
}

// ids returns tokens that share a prefix of some length with those of a running sequence, often.
func (p *pool) ids(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(p.rng.IntN(2))
		if p.rng.IntN(8) > 0 {
			ids[i] = 0
		}
	}
	return ids
}

// reserve begins a sequence, and checks that the slabs it shares were computed from its tokens.
func (p *pool) reserve(seq Seq) {
	p.t.Helper()
	r := &running{space: string(rune('a' + p.rng.IntN(3))), ids: p.ids(1 + p.rng.IntN(6*p.tokens))}
	r.limit = len(r.ids) + p.rng.IntN(3*p.tokens)
	room := p.m.Stats().Free
	h, err := p.m.ReservePrompt(seq, Declared(r.limit), Prompt{Space: r.space, Tokens: r.ids})
	need := (r.limit + p.tokens - 1) / p.tokens
	switch {
	case p.seqs[seq] != nil:
		wantErr(p.t, err, ErrSequenceExists)
		return
	case errors.Is(err, ErrComputing):
		if soon := p.soon(r); soon < p.tokens && soon < len(r.ids)-1 {
			p.t.Fatalf("%v waits, others compute %d tokens of it at most", r.ids, soon)
		}
		p.waiting[seq] = true
		p.waits++
		return
	case need > len(p.contents):
		wantErr(p.t, err, ErrNeverFits)
		return
	case errors.Is(err, ErrNoSlabs):
		if need <= room {
			p.t.Fatalf("%d slabs denied with %d free", need, room)
		}
		return
	}
	wantErr(p.t, err, nil)
	if want := p.longest(r); h.Tokens > want || h.Tokens < want && !p.evicts {
		p.t.Fatalf("a hit of %d tokens of %v, want %d", h.Tokens, r.ids, want)
	}
	if p.hits += h.Tokens; h.Copy.Tokens > 0 {
		copy(p.contents[h.Copy.To][:h.Copy.Tokens], p.contents[h.Copy.From])
	}
	if h.Copy.From == h.Copy.To && h.Copy.Tokens > 0 {
		p.t.Fatalf("a copy to itself: %+v", h)
	}
	r.slabs = slices.Clone(p.m.Slabs(seq))
	if len(r.slabs) != h.Slabs {
		p.t.Fatalf("%d slabs leased, %d said", len(r.slabs), h.Slabs)
	}
	r.done = h.Tokens
	p.seqs[seq] = r
	p.verify(r)
}

// longest is the longest prefix of a prompt, less its last token, that some committed tokens begin with.
func (p *pool) longest(r *running) (n int) {
	for _, c := range p.committed[r.space] {
		n = max(n, commonPrefix(c, r.ids[:len(r.ids)-1]))
	}
	return n
}

// soon is the longest prefix of a prompt, less its last token, that a prompt of a running sequence begins with.
func (p *pool) soon(r *running) (n int) {
	for _, q := range p.seqs {
		if q.space == r.space {
			n = max(n, commonPrefix(q.ids, r.ids[:len(r.ids)-1]))
		}
	}
	return n
}

// verify checks every computed token of a sequence.
func (p *pool) verify(r *running) {
	p.t.Helper()
	for i := len(r.hashes); i < r.done; i++ {
		r.hashes = append(r.hashes, p.hash(r.space, r.ids[:i+1]))
	}
	for i := range r.done {
		if p.contents[r.slabs[i/p.tokens]][i%p.tokens] != r.hashes[i] {
			p.t.Fatalf("token %d of %v was computed from other tokens", i, r.ids)
		}
	}
}

// compute runs some tokens of a sequence, makes more, and commits what is whole.
func (p *pool) compute(seq Seq) {
	p.t.Helper()
	r := p.seqs[seq]
	if r == nil {
		return
	}
	if len(r.ids) == r.done && r.done < r.limit {
		r.ids = append(r.ids, p.ids(1)...)
	}
	upTo := min(r.done+1+p.rng.IntN(2*p.tokens), len(r.ids))
	slabs, err := p.m.Lease(seq, upTo)
	wantErr(p.t, err, nil) // inside a reservation it never fails
	r.slabs = append(r.slabs, slabs...)
	for i := r.done; i < upTo; i++ {
		slab := r.slabs[i/p.tokens]
		if n := p.m.tree.bySlab[slab]; p.m.refs[slab] != 1 || n != nil && i%p.tokens < len(n.tokens) {
			p.t.Fatalf("token %d is written to slab %d, which %d sequences hold, in the tree: %+v", i, slab, p.m.refs[slab], n)
		}
		p.contents[slab][i%p.tokens] = p.hash(r.space, r.ids[:i+1])
	}
	r.done = upTo
	if tail := p.rng.IntN(2) == 0; tail || p.rng.IntN(3) > 0 {
		p.commit(seq, tail)
	}
}

func (p *pool) commit(seq Seq, tail bool) {
	p.t.Helper()
	r := p.seqs[seq]
	ids := slices.Clone(r.ids[:r.done])
	wantErr(p.t, p.m.Commit(seq, ids, tail), nil)
	if !tail {
		ids = ids[:len(ids)/p.tokens*p.tokens]
	}
	p.committed[r.space] = append(p.committed[r.space], ids)
}

func (p *pool) op() {
	p.t.Helper()
	seq := Seq(p.rng.IntN(8))
	switch p.rng.IntN(7) {
	case 0, 1:
		p.reserve(seq)
	case 2, 3, 4, 5:
		p.compute(seq)
	case 6:
		if p.seqs[seq] != nil {
			p.release(seq)
		}
	}
	for _, seq := range p.m.Ready() {
		delete(p.waiting, seq)
	}
	if err := p.m.Check(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pool) release(seq Seq) {
	p.t.Helper()
	p.verify(p.seqs[seq])
	free := p.m.Stats().Free
	freed, err := p.m.Release(seq)
	wantErr(p.t, err, nil)
	if got := p.m.Stats().Free; got != free+freed {
		p.t.Fatalf("a release freed %d slabs, the room grew from %d to %d", freed, free, got)
	}
	delete(p.seqs, seq)
}

func TestSharedSlabsHoldWhatTheirTokensSay(t *testing.T) {
	hits, waits := 0, 0
	for seed := range uint64(60) {
		p := newPool(t, seed, 8+int(seed), 1+int(seed%5))
		p.evicts = true
		for i := range 1500 {
			p.op()
			if i == 700 && seed%4 == 0 {
				p.forget()
			}
		}
		waits += p.waits
		for seq := range p.seqs {
			p.release(seq)
		}
		for _, seq := range p.m.Ready() {
			delete(p.waiting, seq)
		}
		if len(p.waiting) > 0 {
			t.Fatalf("%d sequences wait for ever", len(p.waiting))
		}
		if s := p.m.Stats(); s.Free != s.Slabs || s.Used != 0 || s.Shared != 0 || s.Promised != 0 || s.Regions != 0 {
			t.Fatalf("seed %d: not all came back: %+v", seed, s)
		}
		hits += p.hits
	}
	if hits == 0 || waits == 0 {
		t.Fatalf("%d tokens were shared, %d sequences waited", hits, waits)
	}
}

// forget loses the contents of the memory, and all sequences.
func (p *pool) forget() {
	for seq := range p.seqs {
		p.release(seq)
	}
	for _, slab := range p.contents {
		clear(slab)
	}
	p.m.Forget()
	clear(p.committed)
}

func TestAHitIsTheLongestPrefixThatWasComputed(t *testing.T) {
	hits := 0
	for seed := range uint64(20) {
		p := newPool(t, seed, 4000, 1+int(seed%5))
		for range 800 {
			p.op()
		}
		hits += p.hits
	}
	if hits == 0 {
		t.Fatal("nothing was shared")
	}
}

// promptFrom returns n tokens that no prompt from another number has.
func promptFrom(first, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(first*1000 + i)
	}
	return ids
}

// compute reserves, leases and commits a whole sequence.
func compute(t *testing.T, m *Manager, seq Seq, ids []int32) Hit {
	t.Helper()
	h, err := m.ReservePrompt(seq, Declared(len(ids)), Prompt{Tokens: ids})
	wantErr(t, err, nil)
	_, err = m.Lease(seq, len(ids))
	wantErr(t, err, nil)
	wantErr(t, m.Commit(seq, ids, true), nil)
	return h
}

func release(t *testing.T, m *Manager, seqs ...Seq) {
	t.Helper()
	for _, seq := range seqs {
		if _, err := m.Release(seq); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASharedSlabLivesAsLongAsItsLastHolder(t *testing.T) {
	m := newManager(t, 10)
	ids := promptFrom(1, 50)
	compute(t, m, 1, ids)
	if h := compute(t, m, 2, ids); h.Tokens != 49 || h.Slabs != 4 || h.Copy.Tokens != 1 {
		t.Fatalf("found %+v", h)
	}
	if got, want := m.Slabs(2)[:3], m.Slabs(1)[:3]; !slices.Equal(got, want) {
		t.Fatalf("found slabs %v, expected %v", got, want)
	}
	release(t, m, 1)
	if s := m.Stats(); s.Used != 4 || s.Cached != 1 || s.Free != 6 {
		t.Fatalf("found %+v", s)
	}
	release(t, m, 2)
	if s := m.Stats(); s.Used != 0 || s.Cached != 4 || s.Free != 10 {
		t.Fatalf("found %+v", s)
	}
}

func TestAHitNeedsRoomForTheRestOnly(t *testing.T) {
	m := newManager(t, 10)
	ids := promptFrom(1, 64)
	compute(t, m, 1, ids)
	if _, err := m.ReservePrompt(2, Declared(64+4*16), Prompt{Tokens: append(ids, 1)}); err != nil {
		t.Fatal(err)
	}
	_, err := m.ReservePrompt(3, Declared(64+3*16), Prompt{Tokens: append(ids, 2)})
	wantErr(t, err, ErrNoSlabs)
	if _, err := m.ReservePrompt(3, Declared(64+2*16), Prompt{Tokens: append(ids, 2)}); err != nil {
		t.Fatal(err)
	}
	if s := m.Stats(); s.Free != 0 || s.Shared != 4 {
		t.Fatalf("found %+v", s)
	}
}

func TestALeaseEvictsWhatIsWorthTheLeast(t *testing.T) {
	m := newManager(t, 10)
	often, old, young := promptFrom(1, 32), promptFrom(2, 32), promptFrom(3, 32)
	compute(t, m, 1, often)
	release(t, m, 1)
	compute(t, m, 1, append(slices.Clone(often), promptFrom(4, 16)...)) // uses it again, and is a leaf of its own
	release(t, m, 1)
	for seq, ids := range [][]int32{old, young} {
		compute(t, m, Seq(seq+2), ids)
		release(t, m, Seq(seq+2))
	}
	if s := m.Stats(); s.Cached != 7 || s.Free != 10 {
		t.Fatalf("found %+v", s)
	}
	wantErr(t, m.Reserve(9, Declared(6*16)), nil)
	if _, err := m.Lease(9, 6*16); err != nil { // three are free; the leaf of the first prompt and old go
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		ids  []int32
		want int
	}{{"old", old, 0}, {"young", young, 32}, {"often", often, 32}} {
		if found := m.tree.match("", c.ids); len(found.path)*16 != c.want {
			t.Errorf("%s: found %d tokens, expected %d", c.name, len(found.path)*16, c.want)
		}
	}
}

func TestASlabThatWasUsedAgainStaysTwiceAsLong(t *testing.T) {
	const stay = 5 // reservations of two slabs, until the pool is full
	m := newManager(t, 2*stay+2)
	again := promptFrom(0, 32)
	kept := func() bool { return len(m.tree.match("", again).path) == 2 }
	seq := Seq(0)
	read := func(ids []int32) {
		seq++
		compute(t, m, seq, ids)
		release(t, m, seq)
	}
	for i := range 3 * stay { // the cache turns over, so that the time that a slab stays is known
		read(promptFrom(1+i, 32))
	}
	read(again)
	read(append(slices.Clone(again), 7))
	others := 0
	for ; kept(); others++ {
		read(promptFrom(100+others, 32))
	}
	if others < 2*stay-1 || others > 2*stay+1 {
		t.Fatalf("evicted after %d prompts, one that was used once is after %d", others, stay)
	}
}

func TestAnotherWorthEvictsOtherSlabs(t *testing.T) {
	m, err := New(Config{Slabs: 4, SlabTokens: 16, Worth: func(u Use) int64 { return -u.Last }})
	wantErr(t, err, nil)
	old, young := promptFrom(1, 32), promptFrom(2, 32)
	for seq, ids := range [][]int32{old, young} {
		compute(t, m, Seq(seq), ids)
		release(t, m, Seq(seq))
	}
	wantErr(t, m.Reserve(9, Declared(32)), nil)
	if _, err := m.Lease(9, 32); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		ids  []int32
		want int
	}{{"old", old, 2}, {"young", young, 0}} {
		if found := m.tree.match("", c.ids); len(found.path) != c.want {
			t.Errorf("%s: found %d slabs, expected %d", c.name, len(found.path), c.want)
		}
	}
}

func TestSharedSlabsNeedAMappingInEachRegion(t *testing.T) {
	m, err := New(Config{Slabs: 10, SlabTokens: 16, Mappings: 10})
	if err != nil {
		t.Fatal(err)
	}
	ids := promptFrom(1, 64)
	compute(t, m, 1, ids)
	if _, err := m.ReservePrompt(2, Declared(65), Prompt{Tokens: append(ids, 1)}); err != nil {
		t.Fatal(err)
	}
	_, err = m.ReservePrompt(3, Declared(65), Prompt{Tokens: append(ids, 2)})
	wantErr(t, err, ErrNoSlabs)
	release(t, m, 1)
	if _, err = m.ReservePrompt(3, Declared(65), Prompt{Tokens: append(ids, 2)}); err != nil {
		t.Fatal(err)
	}
}

func TestAWaitEndsWithTheSequenceThatComputes(t *testing.T) {
	m := newManager(t, 10)
	ids := promptFrom(1, 64)
	if _, err := m.ReservePrompt(1, Declared(64), Prompt{Tokens: ids}); err != nil {
		t.Fatal(err)
	}
	_, err := m.ReservePrompt(2, Declared(64), Prompt{Tokens: ids})
	wantErr(t, err, ErrComputing)
	if ready := m.Ready(); len(ready) != 0 {
		t.Fatalf("ready: %v", ready)
	}
	release(t, m, 1)
	if ready := m.Ready(); !slices.Equal(ready, []Seq{2}) {
		t.Fatalf("ready: %v, expected 2", ready)
	}
	if h, err := m.ReservePrompt(2, Declared(64), Prompt{Tokens: ids}); err != nil || h.Tokens != 0 {
		t.Fatalf("found %+v, %v", h, err)
	}
}

func TestAFewCommonTokensAreNotWaitedFor(t *testing.T) {
	m := newManager(t, 20)
	a, b := promptFrom(1, 64), promptFrom(2, 64)
	copy(b, a[:12])
	for seq, ids := range [][]int32{a, b} {
		if _, err := m.ReservePrompt(Seq(seq), Declared(64), Prompt{Tokens: ids}); err != nil {
			t.Fatal(err)
		}
	}
}
