package kvmgr

import (
	"errors"
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
	m, err := New(Config{Slabs: 100, Spec: NewSpec(16, Full{}), Mappings: 10})
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
	m, err := New(Config{Slabs: regions * (each + 2), Spec: NewSpec(16, Full{})})
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
