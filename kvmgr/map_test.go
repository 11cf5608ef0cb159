package kvmgr

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestTheMapCountsSlabsByState(t *testing.T) {
	m, err := New(Config{Slabs: 10, Spec: NewSpec(2, Full{})})
	if err != nil {
		t.Fatal(err)
	}
	prompt := func(seq Seq, ids ...int32) {
		t.Helper()
		if _, err := m.ReservePrompt(seq, Declared(len(ids)), Prompt{Tokens: ids}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Lease(seq, len(ids)); err != nil {
			t.Fatal(err)
		}
		if err := m.Commit(seq, ids, false); err != nil {
			t.Fatal(err)
		}
	}
	prompt(1, 10, 11, 12, 13, 14, 15)         // slabs 0 to 2
	prompt(2, 10, 11, 12, 13, 24, 25, 26, 27) // 0, 1, 3, 4
	prompt(3, 30, 31, 32, 33)                 // 5, 6
	if _, err := m.Release(3); err != nil {
		t.Fatal(err)
	}
	got := m.Map(4)
	for name, c := range map[string]struct{ got, want []int }{
		"held": {got.Held, []int{1, 2, 0, 0}}, "shared": {got.Shared, []int{2, 0, 0, 0}}, "cached": {got.Cached, []int{0, 1, 1, 0}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: found %v, expected %v", name, c.got, c.want)
		}
	}
	if got.CellSlabs != 3 {
		t.Errorf("found cells of %d slabs, expected 3", got.CellSlabs)
	}
	if got := m.Map(1000); got.CellSlabs != 1 || len(got.Held) != 10 {
		t.Errorf("found %d cells of %d slabs, expected 10 of 1", len(got.Held), got.CellSlabs)
	}
}

func TestSummariesAreTheRegionsWithoutTheirSlabs(t *testing.T) {
	m, err := New(Config{Slabs: 10, Spec: NewSpec(2, Full{})})
	if err != nil {
		t.Fatal(err)
	}
	for seq := range Seq(3) {
		if err := m.Reserve(seq, Declared(6)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Lease(seq, 3); err != nil {
			t.Fatal(err)
		}
	}
	regions, summaries := m.Regions(), m.Summaries()
	for i := range regions {
		if regions[i].Slabs == nil || summaries[i].Slabs != nil {
			t.Fatalf("found slabs %v and %v, expected some and none", regions[i].Slabs, summaries[i].Slabs)
		}
		regions[i].Slabs = nil
		if r, s := regions[i], summaries[i]; r.Seq != s.Seq || r.LeasedSlabs != s.LeasedSlabs || r.ReservedSlabs != s.ReservedSlabs ||
			s.LeasedSlabs != 2 {
			t.Errorf("found %+v, expected %+v", s, r)
		}
	}
}

// TestASequenceIsTextInJSON: JavaScript would round a number of 64 bits.
func TestASequenceIsTextInJSON(t *testing.T) {
	text, err := json.Marshal(Region{Seq: math.MaxUint64})
	if err != nil || !strings.Contains(string(text), `"sequence":"18446744073709551615"`) {
		t.Fatalf("found %s, %v", text, err)
	}
}
