package sched

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/kvmgr"
)

func TestTheSharedLimitIsExact(t *testing.T) {
	r := NewSharedLimit(10)
	enter := func(tenant string, weight, want int) {
		t.Helper()
		got := 0
		for r.Enter(tenant, weight) {
			got++
		}
		if got != want {
			t.Errorf("tenant %s, weight %d: %d got in, expected %d; %d inside", tenant, weight, got, want, r.Inside())
		}
	}
	enter("a", 1, 10) // alone it may take every place, and no more
	enter("b", 1, 5)  // half of it is b's
	enter("a", 1, 0)
	enter("c", 2, 5) // 2 of 4 parts
	enter("d", 9, 0) // twice the size: nobody
	for range 10 {
		r.Leave("a", 1)
	}
	enter("b", 1, 0) // full: b has more than 1 of 3 parts
	r.Leave("c", 1)
	enter("b", 1, 1) // not full: anybody
	if got := r.Held("b"); got != 6 {
		t.Errorf("b holds %d places, expected 6", got)
	}
}

func TestManyPlacesAreTakenTogetherOrNotAtAll(t *testing.T) {
	r := NewSharedLimit(10)
	for _, c := range []struct {
		tenant string
		n      int
		may    bool
	}{
		{"a", 11, false}, // more than there are
		{"a", 10, true},
		{"b", 6, false}, // its share is 5
		{"b", 5, true},
		{"c", 4, false}, // its share is 3
		{"c", 3, true},
		{"d", 3, false}, // twice the size: nobody
		{"d", 2, true},
		{"e", 1, false},
	} {
		if may := r.MayEnter(c.tenant, 1, c.n); may != c.may {
			t.Fatalf("%d of %s beside %d: found %t, expected %t", c.n, c.tenant, r.Inside(), may, c.may)
		}
		if c.may {
			r.Admit(c.tenant, 1, c.n)
		}
		if c.may && r.Held(c.tenant) != c.n {
			t.Fatalf("%s holds %d, expected %d", c.tenant, r.Held(c.tenant), c.n)
		}
	}
	r.Leave("a", 10)
	r.Leave("b", 5)
	if r.Inside() != 5 || r.Held("a") != 0 {
		t.Fatalf("%d inside, %d of them of a, expected 5 and 0", r.Inside(), r.Held("a"))
	}
}

func TestTheSharedLimitCountsByShare(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	r, held, weights := NewSharedLimit(23), map[string]int{}, map[string]int{"a": 1, "b": 3, "c": 0, "d": 7}
	names := []string{"a", "b", "c", "d"}
	for range 20_000 {
		n := names[rng.IntN(len(names))]
		if rng.IntN(5) < 2 && held[n] > 0 {
			r.Leave(n, 1)
			held[n]--
			continue
		}
		inside, sum := 0, 0
		for name, k := range held {
			inside += k
			if k > 0 || name == n {
				sum += max(weights[name], 1)
			}
		}
		if held[n] == 0 {
			if _, known := held[n]; !known {
				sum += max(weights[n], 1)
			}
		}
		share := float64(23*max(weights[n], 1)) / float64(sum)
		want := inside < 23 || inside < 46 && float64(held[n]+1) <= share
		if got := r.Enter(n, weights[n]); got != want {
			t.Fatalf("%s with %d of %d places, share %.2f: got in %t, expected %t", n, held[n], inside, share, got, want)
		}
		if want {
			held[n]++
		}
		if r.Held(n) != held[n] {
			t.Fatalf("%s holds %d, expected %d", n, r.Held(n), held[n])
		}
	}
}

// TestAFullQueueAcceptsMigratedSequences: another worker has accepted them before.
func TestAFullQueueAcceptsMigratedSequences(t *testing.T) {
	s, err := New(Config{
		MaxBatchTokens: 8, ChunkTokens: 8, MaxBatchSize: 1, MaxWaiting: 1,
		MaxSequenceTokens: 64, KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 32,
	})
	if err != nil {
		t.Fatal(err)
	}
	submit := func(id ID, migrated bool) Event {
		return Submit(&Sequence{ID: id, PromptTokens: 4, MaxNewTokens: 4, Migrated: migrated})
	}
	plan, err := s.Step(0, []Event{submit(1, false), submit(2, false), submit(3, false), submit(4, true)})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Ended) != 1 || plan.Ended[0].ID != 3 || plan.Ended[0].Reason != ReasonQueueFull {
		t.Errorf("ended: %+v, expected sequence 3 for a full queue", plan.Ended)
	}
}

// TestPlacesKeptForNewTenantsAreNotKeptFromMigratedSequences: their readers wait for the next token, not for the first one.
func TestPlacesKeptForNewTenantsAreNotKeptFromMigratedSequences(t *testing.T) {
	s, err := New(Config{
		MaxBatchTokens: 64, ChunkTokens: 64, MaxBatchSize: 8, MaxWaiting: 64,
		MaxSequenceTokens: 64, KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 32,
	})
	if err != nil {
		t.Fatal(err)
	}
	submit := func(id ID, tenant string, migrated bool) Event {
		return Submit(&Sequence{ID: id, Tenant: tenant, PromptTokens: 4, MaxNewTokens: 4, Migrated: migrated})
	}
	reserved := map[ID]bool{}
	step := func(events ...Event) {
		for len(events) > 0 {
			plan, err := s.Step(0, events)
			if err != nil {
				t.Fatal(err)
			}
			events = nil
			for _, r := range plan.Reserve {
				reserved[r.ID] = true
				events = append(events, Granted(r.ID, r.Lease))
			}
		}
	}
	step(submit(1, "small", false))
	for id := ID(2); id <= 7; id++ {
		step(submit(id, "large", false))
	}
	step(submit(8, "large", true), submit(9, "large", true))
	for id := ID(1); id <= 9; id++ {
		if has := id != 7; reserved[id] != has {
			t.Errorf("sequence %d has a place: %t, expected %t", id, reserved[id], has)
		}
	}
}
