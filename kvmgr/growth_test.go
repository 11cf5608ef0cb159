package kvmgr

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestAReservationPromisesItsFirstTokens(t *testing.T) {
	m := newManager(t, 10)
	wantErr(t, m.Reserve(1, Length{End: 160, Promise: 20}), nil)
	if s := m.Stats(); s.Promised != 2 || s.Needed != 8 || s.Free != 8 {
		t.Fatalf("found %+v", s)
	}
	_, err := m.Lease(1, 33)
	wantErr(t, err, ErrBeyondReservation)
	wantErr(t, m.Grow(1, 33), nil)
	_, err = m.Lease(1, 33)
	wantErr(t, err, nil)
	wantErr(t, m.Grow(1, 161), ErrBeyondReservation)
	wantErr(t, m.Grow(2, 1), ErrUnknownSequence)
	wantErr(t, m.Reserve(2, Length{End: 10, Promise: 11}), ErrInvalid)
	wantErr(t, m.Reserve(2, Length{End: 161, Promise: 1}), ErrNeverFits)
}

// Two sequences that may each need the whole pool cannot both reach their ends once both hold something.
func TestAnAdmissionThatCouldEndInADeadlockIsDenied(t *testing.T) {
	m := newManager(t, 10)
	wantErr(t, m.Reserve(1, Length{End: 160, Promise: 16}), nil)
	wantErr(t, m.Reserve(2, Length{End: 160, Promise: 16}), ErrNoSlabs)
	wantErr(t, m.Reserve(2, Length{End: 144, Promise: 16}), nil) // it ends first, and then the other one
}

func TestADeniedGrowthWaitsForARelease(t *testing.T) {
	m := newManager(t, 10)
	wantErr(t, m.Reserve(1, Length{End: 112, Promise: 32}), nil)
	wantErr(t, m.Reserve(2, Length{End: 80, Promise: 32}), nil)
	wantErr(t, m.Reserve(3, Length{End: 64, Promise: 32}), nil) // 4 slabs are available; they need 5, 3 and 2
	wantErr(t, m.Grow(2, 64), nil)
	wantErr(t, m.Grow(3, 48), nil) // one is available; they need 5, 1 and 1
	wantErr(t, m.Grow(1, 48), ErrNoSlabs)
	if s := m.Stats(); s.Denied != 1 {
		t.Fatalf("found %+v", s)
	}
	release(t, m, 2)
	wantErr(t, m.Grow(1, 48), nil)
	if s := m.Stats(); s.Denied != 0 {
		t.Fatalf("found %+v", s)
	}
}

func TestGrowthIsBoundedByMappings(t *testing.T) {
	m, err := New(Config{Slabs: 100, SlabTokens: 16, Mappings: 10})
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, m.Reserve(1, Length{End: 160, Promise: 16}), nil)
	wantErr(t, m.Reserve(2, Length{End: 160, Promise: 16}), ErrNoSlabs)
	wantErr(t, m.Reserve(2, Length{End: 80, Promise: 16}), nil)
	wantErr(t, m.Grow(1, 96), ErrNoSlabs)
	wantErr(t, m.Grow(2, 80), nil)
	release(t, m, 2)
	wantErr(t, m.Grow(1, 160), nil)
}

// bank is the state of a pool as a search over all orders sees it.
type bank struct {
	available, mappings int // that are left
	seqs                map[Seq]entry
}

type entry struct {
	need, quota, leased int
	held                []int32 // twins included
}

func bankOf(m *Manager) bank {
	b := bank{available: m.available(), mappings: m.mappings - m.mapped, seqs: map[Seq]entry{}}
	if m.mappings == 0 {
		b.mappings = 1 << 30
	}
	for seq, r := range m.regions {
		b.seqs[seq] = entry{need: r.need(), quota: r.quota, leased: len(r.slabs), held: slices.Collect(r.holds())}
	}
	return b
}

// grown is the state after a growth.
func (b bank) grown(seq Seq, slabs int) bank {
	b.available, b.mappings, b.seqs = b.available-slabs, b.mappings-slabs, maps.Clone(b.seqs)
	a := b.seqs[seq]
	a.need, a.quota = a.need-slabs, a.quota+slabs
	b.seqs[seq] = a
	return b
}

// safe searches for an order in which all end.
func (b bank) safe() bool {
	if b.available < 0 || b.mappings < 0 {
		return false
	}
	if len(b.seqs) == 0 {
		return true
	}
	for seq, a := range b.seqs {
		if a.need > b.available || a.need > b.mappings {
			continue
		}
		after := bank{mappings: b.mappings + a.quota, seqs: maps.Clone(b.seqs)}
		delete(after.seqs, seq)
		others := map[int32]bool{}
		for _, o := range after.seqs {
			for _, id := range o.held {
				others[id] = true
			}
		}
		after.available = b.available + a.quota - a.leased
		for _, id := range a.held {
			if !others[id] {
				after.available++
			}
		}
		return after.safe() // more is available than before: no other order does better
	}
	return false
}

// banker runs random operations on a small pool whose prompts share slabs.
type banker struct {
	t      *testing.T
	m      *Manager
	rng    *rand.Rand
	ids    map[Seq][]int32 // of the whole sequence
	done   map[Seq]int     // tokens computed
	denied int
}

func (b *banker) tokens(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		if b.rng.IntN(10) == 0 {
			ids[i] = 1
		}
	}
	return ids
}

func (b *banker) reserve(seq Seq) {
	if b.ids[seq] != nil {
		return
	}
	ids := b.tokens(1 + b.rng.IntN(len(b.m.refs)*b.m.slabTokens))
	prompt := 1 + b.rng.IntN((len(ids)+1)/2)
	l := Length{End: len(ids), Promise: prompt + b.rng.IntN(len(ids)-prompt+1)}
	_, err := b.m.ReservePrompt(seq, l, Prompt{Tokens: ids[:prompt]})
	if err != nil {
		if len(b.ids) == 0 {
			b.t.Fatalf("an empty pool of %d slabs denies %+v: %v", len(b.m.refs), l, err)
		}
		return
	}
	b.ids[seq], b.done[seq] = ids, prompt
	_, err = b.m.Lease(seq, prompt)
	wantErr(b.t, err, nil)
}

// grow tries to grow a sequence to some tokens; false if it may not.
func (b *banker) grow(seq Seq, tokens int) bool {
	b.t.Helper()
	r := b.m.regions[seq]
	more := max(0, b.m.slabsOf(r, tokens)-r.quota)
	want := bankOf(b.m).grown(seq, more).safe()
	err := b.m.Grow(seq, tokens)
	if (err == nil) != want {
		b.t.Fatalf("growth of %d by %d slabs: %v, a search over all orders says %t", seq, more, err, want)
	}
	if err != nil {
		wantErr(b.t, err, ErrNoSlabs)
		b.denied++
		return false
	}
	_, err = b.m.Lease(seq, tokens)
	wantErr(b.t, err, nil)
	b.done[seq] = max(b.done[seq], tokens)
	return true
}

func (b *banker) release(seq Seq) {
	release(b.t, b.m, seq)
	delete(b.ids, seq)
}

func (b *banker) op() {
	seq := Seq(b.rng.IntN(6))
	switch b.rng.IntN(8) {
	case 0, 1, 2:
		b.reserve(seq)
	case 3, 4, 5:
		if ids := b.ids[seq]; ids != nil {
			b.grow(seq, b.done[seq]+b.rng.IntN(len(ids)-b.done[seq]+1))
		}
	case 6:
		if ids := b.ids[seq]; ids != nil {
			wantErr(b.t, b.m.Commit(seq, ids[:b.done[seq]], b.rng.IntN(2) == 0), nil)
		}
	case 7:
		if b.ids[seq] != nil && b.rng.IntN(3) == 0 {
			b.release(seq)
		}
	}
	b.m.Ready()
	b.check()
}

func (b *banker) check() {
	b.t.Helper()
	if err := b.m.Check(); err != nil {
		b.t.Fatal(err)
	}
	if !bankOf(b.m).safe() {
		b.t.Fatalf("no order lets all end: %+v", bankOf(b.m))
	}
}

// finish runs all to their declared ends, in whatever order the random numbers try.
func (b *banker) finish() {
	for len(b.ids) > 0 {
		seqs, grew := slices.Sorted(maps.Keys(b.ids)), false
		for _, i := range b.rng.Perm(len(seqs)) {
			seq := seqs[i]
			left := len(b.ids[seq]) - b.done[seq]
			if left == 0 {
				b.release(seq)
				grew = true
			} else if b.grow(seq, b.done[seq]+1+b.rng.IntN(left)) {
				grew = true
			}
			b.check()
			if grew && b.rng.IntN(2) == 0 {
				break
			}
		}
		if !grew {
			b.t.Fatalf("nobody may grow: %+v", bankOf(b.m))
		}
	}
}

func TestAllThatIsAdmittedReachesItsDeclaredEnd(t *testing.T) {
	denied, stopped := 0, 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 19))
		cfg := Config{Slabs: 2 + rng.IntN(14), SlabTokens: 1 + rng.IntN(4)}
		if seed%3 == 0 {
			cfg.Mappings = cfg.Slabs + rng.IntN(cfg.Slabs)
		}
		m, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := &banker{t: t, m: m, rng: rng, ids: map[Seq][]int32{}, done: map[Seq]int{}}
		for range 3 {
			for range 60 {
				b.op()
			}
			for _, r := range m.regions {
				if !r.cached {
					stopped++
				}
			}
			b.finish()
		}
		if s := m.Stats(); s.Free != s.Slabs || s.Needed != 0 || s.Promised != 0 {
			t.Fatalf("seed %d: not all came back: %+v", seed, s)
		}
		denied += b.denied
	}
	if denied == 0 || stopped == 0 {
		t.Fatalf("%d growths were denied, %d sequences offered nothing more", denied, stopped)
	}
}

func TestADenialNamesWhatIsMissing(t *testing.T) {
	m := newManager(t, 10)
	wantErr(t, m.Reserve(1, Length{End: 160, Promise: 16}), nil)
	err := m.Reserve(2, Length{End: 160, Promise: 16})
	var short *ShortageError
	if !errors.As(err, &short) || short.Need != 10 || short.Free != 9 || short.Pool != 10 {
		t.Fatalf("found %v", err)
	}
}

func BenchmarkGrowthOfManyInATightPool(b *testing.B) {
	const regions, each = 64, 256
	m, err := New(Config{Slabs: regions * (each + 2), SlabTokens: 16})
	if err != nil {
		b.Fatal(err)
	}
	for seq := range Seq(regions) {
		if err := m.Reserve(seq, Length{End: (each + 60) * 16, Promise: each * 16}); err != nil {
			b.Fatal(err)
		}
		if _, err := m.Lease(seq, each*16); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if !m.safe() {
			b.Fatal("unsafe")
		}
	}
}
