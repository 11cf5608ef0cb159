package sched

import (
	"testing"
)

// TestPromptsAtOnceAreNeverCut submits texts of many lengths, up to the rows of a step: each is in one step, and none starves.
func TestPromptsAtOnceAreNeverCut(t *testing.T) {
	cfg := testConfig()
	cfg.ChunkTokens, cfg.MaxWaiting = 5, 50
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var events []Event
	lengths := map[ID]int{}
	for id := ID(1); id <= 30; id++ {
		lengths[id] = 1 + int(id*7)%cfg.MaxBatchTokens
		q := &Sequence{ID: id, PromptTokens: lengths[id], MaxNewTokens: 1, AtOnce: true, Tenant: string(rune('a' + id%3))}
		if id%5 == 0 {
			q.Priority = PriorityIdle
		}
		events = append(events, Submit(q))
	}
	lengths[31] = cfg.MaxBatchTokens
	events = append(events, Submit(&Sequence{ID: 31, PromptTokens: cfg.MaxBatchTokens, MaxNewTokens: 1, AtOnce: true}))
	done, most := 0, 0
	for step := range 200 {
		plan, err := s.Step(Time(step), events)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		events = events[:0]
		for _, r := range plan.Reserve {
			if r.Tokens != lengths[r.ID] {
				t.Fatalf("sequence %d reserves %d tokens, expected %d: nothing follows the prompt", r.ID, r.Tokens, lengths[r.ID])
			}
			if r.ID%4 == 0 && r.Lease > 16 { // the slabs of a long one are mapped in two rounds
				e := Granted(r.ID, 16)
				e.Lease = r.Lease
				events = append(events, e, Granted(r.ID, r.Lease))
				continue
			}
			events = append(events, Granted(r.ID, r.Lease))
		}
		for _, c := range plan.Chunks {
			if c.Start != 0 || c.Rows != lengths[c.ID] || !c.Output {
				t.Fatalf("sequence %d: rows from %d to %d of %d, output %t", c.ID, c.Start, c.end(), lengths[c.ID], c.Output)
			}
			done++
			events = append(events, Finished(c.ID, ReasonStop))
		}
		if plan.Rows > cfg.MaxBatchTokens {
			t.Fatalf("found %d rows, expected at most %d", plan.Rows, cfg.MaxBatchTokens)
		}
		most = max(most, len(plan.Chunks))
	}
	if done != len(lengths) || most < 2 {
		t.Fatalf("%d of %d texts are done, at most %d in a step", done, len(lengths), most)
	}
}

func TestAPromptAtOnceThatIsLongerThanAStepIsRefused(t *testing.T) {
	s, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	plan, err := s.Step(0, []Event{Submit(&Sequence{ID: 1, PromptTokens: testConfig().MaxBatchTokens + 1, MaxNewTokens: 1, AtOnce: true})})
	if err != nil || len(plan.Ended) != 1 || plan.Ended[0].Reason != ReasonTooLong {
		t.Fatalf("found %v, %v, expected one end with %v", plan.Ended, err, ReasonTooLong)
	}
}
