package kvmgr

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// newManager returns a manager whose books are checked when the test ends.
func newManager(tb testing.TB, slabs int) *Manager {
	tb.Helper()
	m, err := New(Config{Slabs: slabs, Spec: NewSpec(16, Full{})})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := m.Check(); err != nil {
			tb.Error(err)
		}
	})
	return m
}

func must[T any](tb testing.TB) func(T, error) T {
	tb.Helper()
	return func(v T, err error) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}

func TestAdmissionIsExact(t *testing.T) {
	m := newManager(t, 10)
	if err := m.Reserve(1, Declared(97)); err != nil { // 7 slabs
		t.Fatal(err)
	}
	if err := m.Reserve(2, Declared(48)); err != nil { // 3 slabs: the pool is full to the last one
		t.Fatal(err)
	}
	err := m.Reserve(3, Declared(1))
	var short *ShortageError
	if !errors.Is(err, ErrNoSlabs) || !errors.As(err, &short) || short.Need != 1 || short.Free != 0 || short.Pool != 10 {
		t.Fatalf("a reservation beyond the pool: %v", err)
	}
	if got := must[[]int32](t)(m.Lease(1, 97)); len(got) != 7 {
		t.Fatalf("lease of the whole reservation: %v", got)
	}
	if got := must[[]int32](t)(m.Lease(2, 48)); len(got) != 3 {
		t.Fatalf("lease of the whole reservation: %v", got)
	}
	if s := m.Stats(); s != (Stats{Slabs: 10, Committed: 10, Used: 10, Regions: 2}) || s.Usage() != 1 {
		t.Fatalf("stats: %+v", s)
	}
}

func TestTooLongIsToldFromNotNow(t *testing.T) {
	m := newManager(t, 10)
	if err := m.Reserve(1, Declared(161)); !errors.Is(err, ErrNeverFits) {
		t.Fatalf("11 slabs of 10: %v", err)
	}
	if err := m.Reserve(1, Declared(math.MaxInt)); !errors.Is(err, ErrNeverFits) {
		t.Fatalf("the longest int: %v", err)
	}
	if err := m.Reserve(1, Declared(160)); err != nil {
		t.Fatalf("10 slabs of 10: %v", err)
	}
	if err := m.Reserve(2, Declared(160)); !errors.Is(err, ErrNoSlabs) {
		t.Fatalf("10 slabs of 10, all taken: %v", err)
	}
}

func TestLeaseReturnsOnlyTheNewSlabs(t *testing.T) {
	m := newManager(t, 20)
	if err := m.Reserve(7, Declared(100)); err != nil {
		t.Fatal(err)
	}
	lease := must[[]int32](t)
	for _, c := range []struct {
		upTo int
		want []int32
	}{{17, []int32{0, 1}}, {32, nil}, {5, nil}, {0, nil}, {-3, nil}, {33, []int32{2}}, {100, []int32{3, 4, 5, 6}}} {
		if got := lease(m.Lease(7, c.upTo)); !slices.Equal(got, c.want) {
			t.Errorf("lease up to token %d: got %v, want %v", c.upTo, got, c.want)
		}
	}
	if _, err := m.Lease(7, 101); !errors.Is(err, ErrBeyondReservation) {
		t.Errorf("beyond the reservation: %v", err)
	}
}

func TestLeasedIdsStayReadableAfterTheRelease(t *testing.T) {
	m := newManager(t, 4)
	if err := m.Reserve(1, Declared(64)); err != nil {
		t.Fatal(err)
	}
	ids := must[[]int32](t)(m.Lease(1, 33))
	must[[]int32](t)(m.Lease(1, 64))
	_ = append(ids, -9) // a view without room: this must not write into the region
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	must[int](t)(m.Release(1))
	if err := m.Reserve(2, Declared(64)); err != nil {
		t.Fatal(err)
	}
	must[[]int32](t)(m.Lease(2, 64))
	if !slices.Equal(ids, []int32{0, 1, 2}) {
		t.Fatalf("the ids changed under their reader: %v", ids)
	}
}

func TestReleaseGivesBackLeasedAndPromised(t *testing.T) {
	m := newManager(t, 9)
	if err := m.Reserve(1, Declared(130)); err != nil {
		t.Fatal(err)
	}
	must[[]int32](t)(m.Lease(1, 40))
	if freed := must[int](t)(m.Release(1)); freed != 9 {
		t.Fatalf("freed %d slabs, want 3 leased and 6 promised", freed)
	}
	if _, err := m.Release(1); !errors.Is(err, ErrUnknownSequence) {
		t.Fatalf("second release: %v", err)
	}
	if s := m.Stats(); s != (Stats{Slabs: 9, Committed: 9, Free: 9}) {
		t.Fatalf("stats: %+v", s)
	}
}

func TestLowAndAdjacentSlabsComeFirst(t *testing.T) {
	m := newManager(t, 100)
	for seq, tokens := range []int{48, 48, 80, 160} { // slabs 0-2, 3-5, 6-10, 11-20
		if err := m.Reserve(Seq(seq), Declared(tokens+160)); err != nil {
			t.Fatal(err)
		}
		must[[]int32](t)(m.Lease(Seq(seq), tokens))
	}
	must[int](t)(m.Release(0))
	must[int](t)(m.Release(2))
	lease := must[[]int32](t)
	if err := m.Reserve(9, Declared(300)); err != nil {
		t.Fatal(err)
	}
	// Free: 0-2, 6-10, 21-99. Four adjacent ones are at 6.
	if got := lease(m.Lease(9, 64)); !slices.Equal(got, []int32{6, 7, 8, 9}) {
		t.Errorf("the lowest run that is long enough: %v", got)
	}
	// It grows by its neighbor 10, then by the lowest run of the rest.
	if got := lease(m.Lease(9, 112)); !slices.Equal(got, []int32{10, 0, 1}) {
		t.Errorf("growth: %v", got)
	}
	want := []Region{
		{Seq: 1, ReservedTokens: 208, ReservedSlabs: 13, LeasedSlabs: 3, Slabs: []Range{{3, 3}}},
		{Seq: 3, ReservedTokens: 320, ReservedSlabs: 20, LeasedSlabs: 10, Slabs: []Range{{11, 10}}},
		{Seq: 9, ReservedTokens: 300, ReservedSlabs: 19, LeasedSlabs: 7, Slabs: []Range{{6, 5}, {0, 2}}},
	}
	got := m.Regions()
	if !slices.EqualFunc(got, want, func(a, b Region) bool {
		s := slices.Equal(a.Slabs, b.Slabs)
		a.Slabs, b.Slabs = nil, nil
		return s && a.Seq == b.Seq && a.ReservedTokens == b.ReservedTokens &&
			a.ReservedSlabs == b.ReservedSlabs && a.LeasedSlabs == b.LeasedSlabs && a.SharedSlabs == b.SharedSlabs
	}) {
		t.Errorf("regions:\n got %+v\nwant %+v", got, want)
	}
}

func TestMisuseIsAnErrorAndChangesNothing(t *testing.T) {
	m := newManager(t, 10)
	if err := m.Reserve(1, Declared(20)); err != nil {
		t.Fatal(err)
	}
	before := m.Stats()
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"reserve twice", m.Reserve(1, Declared(20)), ErrSequenceExists},
		{"reserve nothing", m.Reserve(2, Declared(0)), ErrInvalid},
		{"reserve less than nothing", m.Reserve(2, Declared(-5)), ErrInvalid},
		{"lease for an unknown one", second(m.Lease(2, 1)), ErrUnknownSequence},
		{"release of an unknown one", second(m.Release(2)), ErrUnknownSequence},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, c.err, c.want)
		}
	}
	if after := m.Stats(); after != before {
		t.Errorf("stats changed from %+v to %+v", before, after)
	}
	for _, cfg := range []Config{{Slabs: 0, Spec: NewSpec(16, Full{})}, {Slabs: -1, Spec: NewSpec(16, Full{})},
		{Slabs: 1, Spec: NewSpec(0, Full{})}, {Slabs: math.MaxInt32 + 1, Spec: NewSpec(16, Full{})}} {
		if _, err := New(cfg); !errors.Is(err, ErrInvalid) {
			t.Errorf("New(%+v): %v", cfg, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestPoolSizeIsAShareOfWhatIsLeft(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name                    string
		available, weights, act uint64
		share                   float64
		slab                    uint64
		want                    int
		err                     error
		text                    string
	}{
		{"a server", 16 * gib, 2 * gib, gib / 2, 0.9, 360448, 36193, nil, ""},
		{"all that is left", 1000, 300, 199, 1, 100, 5, nil, ""},
		{"one byte short of a slab", 1000, 300, 601, 1, 100, 0, ErrNoMemory, "one slab takes 100 bytes, room for 99 (1 of the 99 bytes"},
		{"weights do not fit", 1000, 1001, 0, 1, 100, 0, ErrNoMemory, "weights 1001 + activations 0 bytes, available 1000"},
		{"activations do not fit", 1000, 900, 101, 1, 100, 0, ErrNoMemory, "weights 900 + activations 101 bytes, available 1000"},
		{"a sum beyond 64 bits", 1000, 900, math.MaxUint64, 1, 100, 0, ErrNoMemory, ""},
		{"no slab size", 1000, 0, 0, 1, 0, 0, ErrInvalid, "slab of 0 bytes"},
		{"no share", 1000, 0, 0, 0, 1, 0, ErrInvalid, "share 0"},
		{"a share above 1", 1000, 0, 0, 1.01, 1, 0, ErrInvalid, "share 1.01"},
		{"no number", 1000, 0, 0, math.NaN(), 1, 0, ErrInvalid, "share NaN"},
		{"all of 64 bits", math.MaxUint64, 0, 0, 1, 1, math.MaxInt32, nil, ""},
		{"nearly all of 64 bits", math.MaxUint64, 0, 0, math.Nextafter(1, 0), 1, math.MaxInt32, nil, ""},
	} {
		got, err := SizePool(c.available, c.weights, c.act, c.share, c.slab)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: got %d, %v, want %d, %v", c.name, got, err, c.want, c.err)
		}
		if err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %q lacks %q", c.name, err, c.text)
		}
	}
}
