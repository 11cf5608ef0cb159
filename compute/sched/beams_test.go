package sched

import (
	"testing"

	"github.com/millrace/millrace/kvmgr"
)

// TestBeamSearchesLeaveAStepToOtherTenants: however many a tenant submits, another tenant's sequences begin in the next step and have a row
// in each.
func TestBeamSearchesLeaveAStepToOtherTenants(t *testing.T) {
	const batch = 64
	s, err := New(Config{MaxBatchTokens: 512, MaxBatchSize: batch, MaxWaiting: 100, MaxSequenceTokens: 2048,
		KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 32})
	if err != nil {
		t.Fatal(err)
	}
	var events []Event
	for id := range ID(5) {
		events = append(events, Submit(&Sequence{ID: id + 1, Tenant: "evil", PromptTokens: 20, MaxNewTokens: 60,
			Beams: ShareWithOthers(batch)}))
	}
	ended, begun := map[ID]bool{}, map[ID]int{}
	note := func(p *Plan) {
		for _, e := range p.Ended {
			ended[e.ID] = true
		}
	}
	for step := range 2000 {
		if step%10 == 5 {
			events = append(events, Submit(&Sequence{ID: ID(100 + step), Tenant: "acme", PromptTokens: 10, MaxNewTokens: 100}))
			begun[ID(100+step)] = step
		}
		plan, err := s.Step(Time(step), events)
		for plan.Hold {
			if err != nil {
				t.Fatal(err)
			}
			note(plan)
			events = events[:0]
			for _, r := range plan.Reserve {
				events = append(events, Granted(r.ID, r.Tokens))
				if events[len(events)-1].Tokens = r.Lease; begun[r.ID] > 0 && step > begun[r.ID]+2 {
					t.Errorf("sequence %d of another tenant begins after %d steps", r.ID, step-begun[r.ID])
				}
			}
			plan, err = s.Step(Time(step), events)
		}
		if err != nil {
			t.Fatal(err)
		}
		events = events[:0]
		for _, l := range plan.Lease {
			events = append(events, Granted(l.ID, l.UpTo))
		}
		others := 0
		for _, c := range plan.Chunks {
			if c.Output {
				events = append(events, Sampled(c.ID))
			}
			if c.ID >= 100 {
				others++
			}
		}
		note(plan)
		if s.Check() != nil {
			t.Fatal(s.Check())
		}
		if step > 100 && others == 0 {
			t.Fatalf("step %d has no row of the other tenant", step)
		}
	}
	for id := range ID(5) {
		if !ended[id+1] {
			t.Errorf("beam search %d did not end", id+1)
		}
	}
}
