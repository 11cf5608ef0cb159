package kvmgr

import (
	"errors"
	"slices"
	"testing"
)

// forkPair reserves 100 tokens for parent 1, leases 60 of them (slabs 0-3), and
// returns the manager.
func forkParent(t *testing.T, slabs int) *Manager {
	t.Helper()
	m := newManager(t, slabs)
	if err := m.Reserve(1, 100); err != nil {
		t.Fatal(err)
	}
	must[[]int32](t)(m.Lease(1, 60))
	return m
}

func TestForkSharesWholeSlabsAndCopiesThePartialOne(t *testing.T) {
	m := forkParent(t, 30)
	f := must[Forked](t)(m.Fork(1, 2, 37, 90))
	if !slices.Equal(f.Shared, []int32{0, 1}) || f.Copy != (Copy{From: 2, To: 4, Tokens: 5}) {
		t.Fatalf("fork at token 37: %+v", f)
	}
	if got := must[[]int32](t)(m.Lease(2, 90)); !slices.Equal(got, []int32{5, 6, 7}) {
		t.Fatalf("the child's own slabs: %v", got)
	}
	if s := m.Stats(); s.Used != 8 || s.Shared != 2 || s.Promised != 3 {
		t.Fatalf("stats: %+v", s)
	}
	for _, r := range m.Regions() {
		if r.SharedSlabs != 2 {
			t.Errorf("sequence %d shares %d slabs, want 2", r.Seq, r.SharedSlabs)
		}
	}
}

func TestForkAtASlabBorderCopiesNothing(t *testing.T) {
	m := forkParent(t, 30)
	f := must[Forked](t)(m.Fork(1, 2, 48, 49))
	if !slices.Equal(f.Shared, []int32{0, 1, 2}) || f.Copy.Tokens != 0 {
		t.Fatalf("fork at token 48: %+v", f)
	}
	f = must[Forked](t)(m.Fork(1, 3, 48, 48)) // a child that will not grow
	if len(f.Shared) != 3 || f.Copy.Tokens != 0 {
		t.Fatalf("fork at token 48 of 48: %+v", f)
	}
	f = must[Forked](t)(m.Fork(1, 4, 3, 3)) // less than a slab: nothing to share
	if len(f.Shared) != 0 || f.Copy.From != 0 || f.Copy.Tokens != 3 {
		t.Fatalf("fork at token 3: %+v", f)
	}
}

func TestSharedSlabsLiveAsLongAsTheirLastHolder(t *testing.T) {
	m := forkParent(t, 10)                     // 7 reserved
	f := must[Forked](t)(m.Fork(1, 2, 40, 60)) // 2 shared, 2 more
	must[Forked](t)(m.Fork(2, 3, 33, 40))      // the same 2, 1 more: the pool is full
	if err := m.Reserve(4, 1); !errors.Is(err, ErrNoSlabs) {
		t.Fatalf("a full pool: %v", err)
	}
	for _, c := range []struct {
		seq   Seq
		freed int
	}{{1, 5}, {3, 1}, {2, 4}} {
		if freed := must[int](t)(m.Release(c.seq)); freed != c.freed {
			t.Errorf("release of %d freed %d slabs, want %d", c.seq, freed, c.freed)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(f.Shared, []int32{0, 1}) {
		t.Errorf("shared: %v", f.Shared)
	}
	if s := m.Stats(); s.Free != 10 {
		t.Errorf("stats: %+v", s)
	}
}

func TestForkIsAdmittedExactly(t *testing.T) {
	m := forkParent(t, 9) // 7 reserved, 2 left
	if _, err := m.Fork(1, 2, 37, 81); !errors.Is(err, ErrNoSlabs) {
		t.Fatalf("6 slabs, 2 shared, 2 free: %v", err)
	}
	if _, err := m.Fork(1, 2, 37, 145); !errors.Is(err, ErrNeverFits) {
		t.Fatalf("10 slabs of 9: %v", err)
	}
	must[Forked](t)(m.Fork(1, 2, 37, 64))
	if s := m.Stats(); s.Free != 0 {
		t.Fatalf("stats: %+v", s)
	}
}

func TestForkMisuseIsAnErrorAndChangesNothing(t *testing.T) {
	m := forkParent(t, 30)
	before := m.Stats()
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"unknown parent", second(m.Fork(5, 6, 1, 2)), ErrUnknownSequence},
		{"child exists", second(m.Fork(1, 1, 1, 2)), ErrSequenceExists},
		{"beyond the lease", second(m.Fork(1, 2, 65, 90)), ErrBeyondReservation},
		{"at token 0", second(m.Fork(1, 2, 0, 90)), ErrInvalid},
		{"shorter than its start", second(m.Fork(1, 2, 37, 36)), ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, c.err, c.want)
		}
	}
	if after := m.Stats(); after != before {
		t.Errorf("stats changed from %+v to %+v", before, after)
	}
}
