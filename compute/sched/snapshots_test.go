package sched

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/kvmgr"
)

// TestChunksEndWhereAStateIsKept: at multiples of 32 tokens, where others left the prompt, and in the last whole slab before its end. The
// rest of the step is for other prompts.
func TestChunksEndWhereAStateIsKept(t *testing.T) {
	c := testConfig()
	c.MaxBatchTokens, c.KV = 40, kvmgr.NewSpec(16, kvmgr.Full{}, kvmgr.State{Slabs: 2, Every: 32})
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	e := Granted(1, 140)
	e.Branch = 80
	var ends []int
	filled := 0
	events := []Event{Submit(&Sequence{ID: 1, PromptTokens: 125, MaxNewTokens: 20}),
		Submit(&Sequence{ID: 2, PromptTokens: 60, MaxNewTokens: 5, Scored: true})}
	for range 12 {
		plan, err := s.Step(0, events)
		if err != nil {
			t.Fatal(err)
		}
		events = nil
		if len(plan.Reserve) > 0 {
			events = append(events, e, Granted(2, 65))
		}
		for _, c := range plan.Chunks {
			switch {
			case c.ID == 2 && c.Snapshot:
				t.Errorf("%+v of a sequence that shares nothing", c)
			case c.ID == 2:
				filled++
			case c.Snapshot:
				ends = append(ends, c.end())
			}
			if c.Output {
				events = append(events, Sampled(c.ID))
			}
		}
	}
	if want := []int{32, 64, 80, 96, 112}; !slices.Equal(ends, want) || filled == 0 {
		t.Errorf("snapshots at %v, expected %v; the other prompt had %d chunks", ends, want, filled)
	}
}

// TestTheStateOfAnAnswerIsKeptAtADistance, after forced tokens too.
func TestTheStateOfAnAnswerIsKeptAtADistance(t *testing.T) {
	c := testConfig()
	c.MaxBatchTokens, c.StateTokens, c.KV = 40, 16, kvmgr.NewSpec(16, kvmgr.Full{}, kvmgr.State{Slabs: 2, Every: 320})
	c.DraftRows = 0
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	var ends []int
	events := []Event{Submit(&Sequence{ID: 1, PromptTokens: 20, MaxNewTokens: 60})}
	for range 60 {
		plan, err := s.Step(0, events)
		if err != nil {
			t.Fatal(err)
		}
		events = nil
		if len(plan.Reserve) > 0 {
			events = append(events, Granted(1, 80))
		}
		for _, c := range plan.Chunks {
			if c.Snapshot {
				ends = append(ends, c.end())
			}
			switch {
			case c.Output && c.end() == 44:
				events = append(events, Forced(1, 1, 3, 3))
			case c.Output:
				events = append(events, Forced(1, 1+c.Forced, 0, 0))
			}
		}
	}
	if want := []int{32, 48, 64}; !slices.Equal(ends, want) {
		t.Errorf("states are kept at %v, expected %v", ends, want)
	}
}
