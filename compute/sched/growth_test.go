package sched

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/kvmgr"
)

// TestAnswersLongerThanPredictedPauseAndReachTheirEnds: after many short answers, all run to their declared ends in a pool that
// cannot hold them at once.
func TestAnswersLongerThanPredictedPauseAndReachTheirEnds(t *testing.T) {
	const short, long, prompt, most = 32, 24, 20, 400
	s, err := New(Config{
		MaxBatchTokens: 64, MaxBatchSize: 16, MaxWaiting: 100, MaxSequenceTokens: 500,
		KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 32, Predict: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	kv, err := kvmgr.New(kvmgr.Config{Slabs: 80, Spec: kvmgr.NewSpec(16, kvmgr.Full{})}) // three declared sequences
	if err != nil {
		t.Fatal(err)
	}
	var events []Event
	for id := range ID(short + long) {
		events = append(events, Submit(&Sequence{ID: id, PromptTokens: prompt, MaxNewTokens: most, Tenant: "a"}))
	}
	computed, made, ended, denied, together := map[ID]int{}, map[ID]int{}, 0, 0, 0
	for range 20_000 {
		plan, err := s.Step(0, events)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Check(), kv.Check()); err != nil {
			t.Fatal(err)
		}
		events = events[:0]
		for _, e := range plan.Ended {
			if ended++; e.ID >= short && (e.Reason != ReasonLength || e.Generated != most) {
				t.Fatalf("%+v", e)
			}
		}
		for _, c := range plan.Chunks {
			if c.Start != computed[c.ID] {
				t.Fatalf("%+v: %d tokens were computed before", c, computed[c.ID])
			}
			computed[c.ID] += c.Rows
			if !c.Output {
				continue
			}
			if made[c.ID]++; c.ID < short && made[c.ID] == 10 {
				events = append(events, Finished(c.ID, ReasonStop))
			} else {
				events = append(events, Sampled(c.ID))
			}
		}
		answers, n := manage(t, kv, plan)
		events, denied = append(events, answers...), denied+n
		together = max(together, s.Running())
		if s.Idle() {
			break
		}
	}
	if ended != short+long || denied == 0 || together <= 3 {
		t.Fatalf("%d of %d sequences ended, %d growths were denied, at most %d ran together", ended, short+long, denied, together)
	}
}

// manage does what a plan requests of the KV manager, and returns its answers and how many growths it denied.
func manage(t *testing.T, kv *kvmgr.Manager, plan *Plan) (events []Event, denied int) {
	t.Helper()
	lease := func(id ID, upTo int) {
		if _, err := kv.Lease(kvmgr.Seq(id), upTo); err != nil {
			t.Fatal(err)
		}
		events = append(events, Granted(id, upTo))
	}
	for _, id := range plan.Release {
		if _, err := kv.Release(kvmgr.Seq(id)); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range plan.Reserve {
		if err := kv.Reserve(kvmgr.Seq(r.ID), kvmgr.Length{End: r.Tokens, Promise: r.Promise}); err != nil {
			events = append(events, Denied(r.ID, 0, 0))
			break
		}
		lease(r.ID, min(r.Lease, kv.Limit(kvmgr.Seq(r.ID))))
		events[len(events)-1].Lease = events[len(events)-1].Tokens
	}
	for _, l := range plan.Lease {
		if err := kv.Trim(kvmgr.Seq(l.ID), l.From); err != nil {
			t.Fatal(err)
		}
		if err := kv.Grow(kvmgr.Seq(l.ID), l.Promise); err != nil {
			events, denied = append(events, Paused(l.ID)), denied+1
			continue
		}
		lease(l.ID, l.UpTo)
	}
	return events, denied
}

// TestASequenceBeginsWithWhatAnotherOneGaveBack, while that one runs: its prompt needed more than its answer does.
func TestASequenceBeginsWithWhatAnotherOneGaveBack(t *testing.T) {
	const slabs = 16
	spec := kvmgr.NewSpec(16, kvmgr.Window{Tokens: 40, Live: 13})
	s, err := New(Config{
		MaxBatchTokens: 64, MaxBatchSize: 16, MaxWaiting: 100, MaxSequenceTokens: 3000, KV: spec, LeaseAheadTokens: 32, Predict: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	kv, err := kvmgr.New(kvmgr.Config{Slabs: slabs, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	events := []Event{Submit(&Sequence{ID: 1, PromptTokens: 150, MaxNewTokens: 2000}),
		Submit(&Sequence{ID: 2, PromptTokens: 20, MaxNewTokens: 60})}
	made, denials := map[ID]int{}, 0
	for range 5000 {
		plan, err := s.Step(0, events)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Check(), kv.Check()); err != nil {
			t.Fatal(err)
		}
		for _, e := range plan.Ended {
			if made[1] > 400 || denials == 0 || denials > 20 {
				t.Errorf("sequence %d ended when the first one had %d tokens, after %d denials", e.ID, made[1], denials)
			}
			return
		}
		events = events[:0]
		for _, c := range plan.Chunks {
			if c.Output {
				made[c.ID]++
				events = append(events, Sampled(c.ID))
			}
		}
		answers, _ := manage(t, kv, plan)
		for _, e := range answers {
			if e.Kind == KindDenied {
				denials++
			}
		}
		events = append(events, answers...)
	}
	t.Fatal("no sequence ended")
}

// The more sequences run, the less each gets ahead of its tokens, down to what one slab needs.
func TestManySequencesGetLessAheadOfTheirTokens(t *testing.T) {
	for _, c := range []struct {
		running, growth, lease int
		covered                float64
	}{
		{0, 64, 32, 0.5}, {1, 64, 32, 0.5}, {few, 64, 32, 0.5}, {2 * few, 32, 16, 0.25}, {4 * few, 16, 8, 0.125}, {100 * few, 16, 8, 0.005},
	} {
		s, err := New(Config{MaxBatchTokens: 64, MaxBatchSize: 16, MaxWaiting: 100, MaxSequenceTokens: 500,
			KV:               kvmgr.NewSpec(16, kvmgr.Full{}),
			LeaseAheadTokens: 32, Predict: true})
		if err != nil {
			t.Fatal(err)
		}
		s.running.seqs = make([]*sequence, c.running)
		if s.growth() != c.growth || s.leaseAhead() != c.lease || covered*s.ahead() != c.covered {
			t.Errorf("%d sequences: growth %d, lease %d, covered %v; expected %+v", c.running, s.growth(), s.leaseAhead(),
				covered*s.ahead(), c)
		}
	}
}
