package kvmgr

import (
	"errors"
	"slices"
	"testing"

	"github.com/millrace/millrace/kvmgr/chain"
)

// changeMemory gives slabs memory, those that a denied call lacked or some, or takes the memory of some back.
func (w *world) changeMemory() {
	if w.next(2) == 0 {
		n := w.m.Lacking()
		if n == 0 {
			n = 1 + w.next(w.cfg.Slabs)
		}
		list := w.m.Uncommitted(n)
		if got := w.slabs(list, false); len(got) != min(n, w.cfg.Slabs-w.bank().committed) || !slices.IsSorted(got) {
			w.fail("%d slabs of %d without memory: %v", n, w.cfg.Slabs-w.bank().committed, got)
		}
		w.set(list, true)
		w.m.Grown(list)
		w.happened["grown"] += len(list)
		return
	}
	n := 1 + w.next(w.cfg.Slabs)
	list := w.m.Shrink(n)
	got := w.slabs(list, true)
	if len(got) > n {
		w.fail("%d slabs lose their memory, expected at most %d", len(got), n)
	}
	w.unheld(0, got)
	w.set(list, false)
	if w.cfg.Slots == 0 && len(got) < n && len(got) < w.bank().committed+len(got) { // as many as is safe
		one := slices.Index(w.memory, true)
		w.memory[one] = false
		if w.bank().safe() && w.bank().mappings >= 0 {
			w.fail("%d slabs lose their memory, one more of %d would be safe", len(got), n)
		}
		w.memory[one] = true
	}
	w.happened["shrunk"] += len(got)
}

// slabs are those of some ranges, which all have memory or have none.
func (w *world) slabs(list []Range, memory bool) (ids []int32) {
	for _, r := range list {
		for id := r.First; id < r.First+int32(r.Slabs); id++ {
			if w.memory[id] != memory {
				w.fail("slab %d has memory: %t", id, w.memory[id])
			}
			ids = append(ids, id)
		}
	}
	return ids
}

// set gives slabs memory, which has no contents, or takes it.
func (w *world) set(list []Range, memory bool) {
	for _, id := range w.slabs(list, !memory) {
		w.memory[id] = memory
		clear(w.contents[id])
	}
}

// partly returns a Manager of which some slabs have memory.
func partly(t *testing.T, slabs, committed int) *Manager {
	t.Helper()
	m, err := New(Config{Slabs: slabs, Spec: NewSpec(16, Full{}), Committed: committed})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// voids are the slabs whose contents ended.
type voids []int32

func (v *voids) Void(slabs []int32)         { *v = append(*v, slabs...) }
func (*voids) Leased(Seq, int, []int32)     {}
func (*voids) Stored(_ int32, _ chain.Hash) {}

func TestOnlyCommittedSlabsArePromised(t *testing.T) {
	m := partly(t, 100, 10)
	wantErr(t, m.Reserve(1, Declared(101*16)), ErrNeverFits)
	if n := m.Lacking(); n != 0 {
		t.Errorf("%d slabs are lacking for what never fits", n)
	}
	wantErr(t, m.Reserve(1, Declared(12*16)), ErrNoSlabs)
	if n := m.Lacking(); n != 2 || m.Lacking() != 0 {
		t.Errorf("%d slabs are lacking, expected 2, once", n)
	}
	m.Grown(m.Uncommitted(2))
	wantErr(t, m.Reserve(1, Declared(12*16)), nil)
	if s := m.Stats(); s.Committed != 12 || s.Free != 88 || s.Promised != 12 {
		t.Errorf("%+v", s)
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

// TestADeclaredEndNeedsMemory: a sequence begins once the memory until its declared end is there, though less is promised to it.
func TestADeclaredEndNeedsMemory(t *testing.T) {
	m := partly(t, 100, 10)
	l := Length{End: 30 * 16, Promise: 4 * 16}
	wantErr(t, m.Reserve(1, l), ErrNoSlabs)
	if n := m.Lacking(); n != 20 {
		t.Errorf("%d slabs are lacking, expected 20", n)
	}
	m.Grown(m.Uncommitted(20))
	wantErr(t, m.Reserve(1, l), nil)
	wantErr(t, m.Reserve(2, Length{End: 27 * 16, Promise: 4 * 16}), ErrNoSlabs)
	if n := m.Lacking(); n != 1 {
		t.Errorf("%d slabs are lacking beside one that needs 26 more, expected 1", n)
	}
	wantErr(t, m.Reserve(2, Length{End: 26 * 16, Promise: 4 * 16}), nil)
	if list := m.Shrink(100); len(list) != 0 {
		t.Errorf("%v lose their memory, which the second one needs after the first one has ended", list)
	}
	wantErr(t, m.Grow(1, 30*16), ErrNoSlabs)
	if n := m.Lacking(); n != 4 {
		t.Errorf("%d slabs are lacking, expected 4: the first one ends then, and the second one has its slabs", n)
	}
}

// TestCachedSlabsLoseTheirMemoryLast, those that are worth the least first, and nobody finds them.
func TestCachedSlabsLoseTheirMemoryLast(t *testing.T) {
	m := partly(t, 8, 6)
	var voided voids
	m.Observe(&voided)
	ids := make([]int32, 4*16)
	for i := range ids {
		ids[i] = int32(i)
	}
	if _, err := m.ReservePrompt(1, Declared(len(ids)), Prompt{Tokens: ids}); err != nil {
		t.Fatal(err)
	}
	slabs, err := m.Lease(1, len(ids))
	if err != nil {
		t.Fatal(err)
	}
	if list := m.Shrink(8); !slices.Equal(list, []Range{{First: 4, Slabs: 2}}) {
		t.Errorf("%v lose their memory, expected the two free ones", list)
	}
	if err := errors.Join(m.Commit(1, ids, false), func() error { _, err := m.Release(1); return err }()); err != nil {
		t.Fatal(err)
	}
	if list := m.Shrink(1); len(list) != 1 || list[0].First != slabs[3] {
		t.Errorf("%v lost its memory, expected the end of the prompt in slab %d", list, slabs[3])
	}
	if !slices.Equal(voided, []int32{0, 1, 2, 3, 5, 4, 3}) {
		t.Errorf("the contents of %v ended, expected those of the leases, and of the slabs without memory", voided)
	}
	if _, tokens := m.Find(Prompt{Tokens: ids}, false); tokens != 3*16 {
		t.Errorf("%d tokens are found, expected 48", tokens)
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}
