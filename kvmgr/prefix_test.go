package kvmgr

import (
	"errors"
	"slices"
	"testing"
)

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
		if found := m.trees[0].match("", c.ids, false, hasSlab); len(found.path)*16 != c.want {
			t.Errorf("%s: found %d tokens, expected %d", c.name, len(found.path)*16, c.want)
		}
	}
}

func TestASlabThatWasUsedAgainStaysTwiceAsLong(t *testing.T) {
	const stay = 5 // reservations of two slabs, until the pool is full
	m := newManager(t, 2*stay+2)
	again := promptFrom(0, 32)
	kept := func() bool { return len(m.trees[0].match("", again, false, hasSlab).path) == 2 }
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
	m, err := New(Config{Slabs: 4, Spec: NewSpec(16, Full{}), Worth: func(u Use) int64 { return -u.Last }})
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
		if found := m.trees[0].match("", c.ids, false, hasSlab); len(found.path) != c.want {
			t.Errorf("%s: found %d slabs, expected %d", c.name, len(found.path), c.want)
		}
	}
}

func TestSharedSlabsNeedAMappingInEachRegion(t *testing.T) {
	m, err := New(Config{Slabs: 10, Spec: NewSpec(16, Full{}), Mappings: 10})
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
	if c, ok := errors.AsType[*ComputingError](err); !ok || c.By != 1 {
		t.Fatalf("found %v, expected sequence 1 to compute", err)
	}
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
