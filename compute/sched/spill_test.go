package sched

import (
	"testing"

	"github.com/millrace/millrace/kvmgr"
)

// spilling is a scheduler whose KV manager has a tier.
type spilling struct {
	*testing.T
	*Scheduler
}

func newSpilling(t *testing.T) spilling {
	t.Helper()
	s, err := New(Config{
		MaxBatchTokens: 64, MaxBatchSize: 8, MaxWaiting: 100, MaxSequenceTokens: 2000,
		KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 16, Predict: true, Spill: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return spilling{t, s}
}

func (s spilling) step(events ...Event) *Plan {
	s.Helper()
	plan, err := s.Step(0, events)
	if err != nil {
		s.Fatal(err)
	}
	if err := s.Check(); err != nil {
		s.Fatal(err)
	}
	return plan
}

// run makes a sequence decode, with a lease of some tokens.
func (s spilling) run(q Sequence, leased int) {
	s.Helper()
	q.PromptTokens, q.MaxNewTokens = 16, 1900
	if plan := s.step(Submit(&q)); len(plan.Reserve) != 1 || !plan.Hold {
		s.Fatalf("%+v", plan)
	}
	s.step(Granted(q.ID, leased))
	for _, seq := range s.running.seqs {
		if seq.open() {
			s.apply(&Event{Kind: KindSampled, ID: seq.ID, Tokens: 1}) //nolint:errcheck // Check finds it
		}
	}
	s.byID[q.ID].leaseWanted = leased
}

// deny makes the KV manager deny the growth of some sequences, which are at the ends of their leases.
func (s spilling) deny(ids ...ID) {
	for _, id := range ids {
		q := s.byID[id]
		q.denied, q.triedAt, q.promised, q.promising = true, s.frees, q.leased, q.leased
		q.generated, q.computed = q.leased-q.PromptTokens+1, q.leased
	}
}

func TestTheLeastUrgentSequenceIsSpilled(t *testing.T) {
	a, b := "a", "b"
	for _, c := range []struct {
		name   string
		seqs   []Sequence
		leased []int
		denied []ID
		want   ID // 0: none
	}{
		{"the last one", []Sequence{{ID: 1}, {ID: 2}, {ID: 3}}, []int{64, 64, 64}, []ID{1}, 3},
		{"not the one that may not grow, while others run", []Sequence{{ID: 1}, {ID: 2}}, []int{64, 64}, []ID{2}, 0},
		{"any when all are stuck", []Sequence{{ID: 1}, {ID: 2}}, []int{64, 64}, []ID{1, 2}, 2},
		{"the lowest priority", []Sequence{{ID: 1, Priority: 1}, {ID: 2, Priority: 2}, {ID: 3}}, []int{64, 64, 64}, []ID{3}, 2},
		{"no higher priority", []Sequence{{ID: 1, Priority: 1}, {ID: 2}}, []int{64, 64}, []ID{1}, 0},
		{"of the tenant that has the most", []Sequence{{ID: 1, Tenant: a}, {ID: 2, Tenant: a}, {ID: 3, Tenant: b}}, []int{64, 64, 64},
			[]ID{1}, 2},
		{"for its weight", []Sequence{{ID: 1, Tenant: a, Weight: 3}, {ID: 2, Tenant: a, Weight: 3}, {ID: 3, Tenant: b}}, []int{64, 64, 64},
			[]ID{1}, 3},
		{"a beam search has all that it needs", []Sequence{{ID: 1}, {ID: 2}, {ID: 3, Beams: 2}}, []int{64, 64, 64}, []ID{1}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSpilling(t)
			for i, q := range c.seqs {
				s.run(q, c.leased[i])
			}
			s.deny(c.denied...)
			plan := s.step()
			switch {
			case c.want == 0 && len(plan.Spill) > 0, c.want > 0 && len(plan.Spill) != 1, c.want > 0 && plan.Spill[0].ID != c.want:
				t.Fatalf("spills %+v, expected %d", plan.Spill, c.want)
			}
			for _, k := range plan.Chunks {
				if k.ID == c.want {
					t.Fatalf("%d is in the step: %+v", c.want, plan.Chunks)
				}
			}
		})
	}
}

func TestTheNextOneIsTriedWhenOneIsKept(t *testing.T) {
	s := newSpilling(t)
	for id := range ID(3) {
		s.run(Sequence{ID: id + 1}, 64)
	}
	s.deny(1)
	for _, want := range []ID{3, 2} {
		plan := s.step()
		if len(plan.Spill) != 1 || plan.Spill[0].ID != want {
			t.Fatalf("spills %+v, expected %d", plan.Spill, want)
		}
		s.leaving.generated, s.leaving.computed = 1, 16 // those that run do not get further
		if plan = s.step(); len(plan.Spill) != 0 {
			t.Fatalf("spills %+v while one is on its way", plan.Spill)
		}
		if err := s.apply(&Event{Kind: KindKept, ID: want}); err != nil {
			t.Fatal(err)
		}
		for _, q := range s.running.seqs { // their samples
			if q.open() && !q.denied {
				q.generated++
			}
		}
	}
	if plan := s.step(); len(plan.Spill) != 0 {
		t.Fatalf("spills %+v, which were kept", plan.Spill)
	}
}

// spilledTwo is a scheduler with a sequence that runs, and a later one that is in the tier.
func spilledTwo(t *testing.T) spilling {
	t.Helper()
	s := newSpilling(t)
	s.run(Sequence{ID: 1}, 64)
	s.run(Sequence{ID: 2}, 64)
	s.deny(1)
	if plan := s.step(); len(plan.Spill) != 1 || plan.Spill[0] != (Spill{ID: 2, Tokens: 16}) {
		t.Fatalf("spills %+v", plan.Spill)
	}
	plan := s.step(Spilled(2))
	if len(plan.Lease) != 1 || plan.Lease[0].ID != 1 {
		t.Fatalf("leases %+v, expected the one that made it leave", plan.Lease)
	}
	if s.Running() != 1 || s.Away() != 1 || s.Waiting() != 0 || len(plan.Restore) != 0 {
		t.Fatalf("%+v", s.Snapshot())
	}
	return s
}

func TestASpilledSequenceReturnsBeforeOthersAreAdmitted(t *testing.T) {
	s := spilledTwo(t)
	plan := s.step(Granted(1, 128), Submit(&Sequence{ID: 3, PromptTokens: 16, MaxNewTokens: 10}))
	if len(plan.Reserve)+len(plan.Restore) != 0 {
		t.Fatalf("reserves %+v, restores %+v", plan.Reserve, plan.Restore)
	}
	plan = s.step(Finished(1, ReasonStop))
	if len(plan.Restore) != 1 || len(plan.Reserve) != 0 {
		t.Fatalf("restores %+v, reserves %+v", plan.Restore, plan.Reserve)
	}
	if r := plan.Restore[0]; r.ID != 2 || r.Tokens != 16+1900 || r.Promise < 17+growth {
		t.Fatalf("restores %+v", r)
	}
	if plan = s.step(Kept(2)); len(plan.Restore) != 0 { // not before KV is given back
		t.Fatalf("restores %+v", plan.Restore)
	}
	s.frees++
	s.step()
	plan = s.step(GrantedPrefix(2, 48, 16))
	if len(plan.Chunks) != 1 || plan.Chunks[0].Start != 16 || plan.Chunks[0].Rows != 1 || !plan.Chunks[0].Output {
		if !plan.Hold { // the waiting one is admitted now
			t.Fatalf("%+v", plan)
		}
		plan = s.step()
	}
	if len(plan.Chunks) != 1 || plan.Chunks[0].Start != 16 || plan.Chunks[0].Rows != 1 || !plan.Chunks[0].Output {
		t.Fatalf("%+v, expected the row of the last token", plan.Chunks)
	}
	plan = s.step(Sampled(2), Cancel(2))
	if len(plan.Ended) != 1 || plan.Ended[0].Generated != 2 || len(plan.Release) != 1 {
		t.Fatalf("ended %+v, expected 2 tokens", plan.Ended)
	}
}

func TestALostSequenceIsComputedAgain(t *testing.T) {
	s := spilledTwo(t)
	plan := s.step(Granted(1, 128), Lost(2))
	if len(plan.Reserve) != 1 || plan.Reserve[0].ID != 2 || plan.Reserve[0].Prompt != 17 || s.Away() != 0 {
		t.Fatalf("reserves %+v, expected the prompt and a token", plan.Reserve)
	}
	plan = s.step(GrantedPrefix(2, 48, 0))
	if c := plan.Chunks[len(plan.Chunks)-1]; c.ID != 2 || c.Start != 0 || c.Rows != 17 {
		t.Fatalf("%+v", plan.Chunks)
	}
}

func TestTheEndOfASpilledSequenceReleasesIt(t *testing.T) {
	s := spilledTwo(t)
	plan := s.step(Cancel(2))
	if len(plan.Release) != 1 || plan.Release[0] != 2 || len(plan.Ended) != 1 || plan.Ended[0].Generated != 1 {
		t.Fatalf("%+v", plan)
	}
	for _, e := range []Event{Kept(2), Lost(2), Spilled(2), Granted(2, 64)} { // these were on their way
		s.step(e)
	}
}

func TestEventsOfSpillsOutOfPlaceAreIgnored(t *testing.T) {
	s := spilledTwo(t)
	for _, e := range []Event{Kept(1), Lost(1), Spilled(1), Granted(2, 64), Kept(2), Spilled(2)} {
		if _, err := s.Step(0, []Event{e}); err == nil {
			t.Fatalf("%+v is no error", e)
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestASpilledSequenceReturnsWhenTheOthersEndedDuringItsCopy: no later event gives memory back, so nothing else would make it return.
func TestASpilledSequenceReturnsWhenTheOthersEndedDuringItsCopy(t *testing.T) {
	s := newSpilling(t)
	s.run(Sequence{ID: 1}, 64)
	s.run(Sequence{ID: 2}, 64)
	s.deny(1)
	if plan := s.step(); len(plan.Spill) != 1 || plan.Spill[0].ID != 2 {
		t.Fatalf("spills %+v, expected 2", plan.Spill)
	}
	s.step(Finished(1, ReasonStop))
	if plan := s.step(Spilled(2)); len(plan.Restore) != 1 || plan.Restore[0].ID != 2 {
		t.Fatalf("restores %+v, expected 2", plan.Restore)
	}
}

// TestACopiedSequenceWaitsForNoneThatIsAway: the memory for it is set aside, and would go to others.
func TestACopiedSequenceWaitsForNoneThatIsAway(t *testing.T) {
	s := spilledTwo(t)
	s.deny(1)
	plan := s.step(Submit(&Sequence{ID: 3, PromptTokens: 16, MaxNewTokens: 10, Migrated: true}))
	if len(plan.Reserve) != 0 {
		t.Fatalf("reserves %+v", plan.Reserve)
	}
	s.step(Cancel(3))
	plan = s.step(Submit(&Sequence{ID: 4, PromptTokens: 16, MaxNewTokens: 10, Migrated: true, Copied: true}))
	if len(plan.Reserve) != 1 || plan.Reserve[0].ID != 4 {
		t.Fatalf("reserves %+v, expected 4", plan.Reserve)
	}
}
