package sched

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/millrace/millrace/kvmgr"
)

// served is what became of a queue of sequences, all of which arrived at the beginning.
type served struct {
	begun  []int // by place in the queue, how many sequences began before it
	passed []int // of these, later ones that began since it was denied first, at most
	steps  int   // until the last one ended
	tokens []int // made in each step
}

// serve runs a queue on a pool of slabs, with a bound of passes.
func serve(t *testing.T, slabs, passes int, queue []Sequence) *served {
	t.Helper()
	cfg := Config{
		MaxBatchTokens: 10_000, MaxBatchSize: 64, MaxWaiting: len(queue), MaxSequenceTokens: slabs * 16,
		KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 32,
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.maxPasses = passes
	kv, err := kvmgr.New(kvmgr.Config{Slabs: slabs, Spec: cfg.KV})
	if err != nil {
		t.Fatal(err)
	}
	var events []Event
	for i, q := range queue {
		q.ID, q.Arrival = ID(i), time.Duration(i)
		events = append(events, Submit(&q))
	}
	r := &served{begun: make([]int, len(queue)), passed: make([]int, len(queue))}
	computed, denied, waiting, begun := make([]int, len(queue)), make([]bool, len(queue)), make([]bool, len(queue)), 0
	for i := range waiting {
		waiting[i] = true
	}
	for !s.Idle() || len(events) > 0 {
		plan, err := s.Step(0, events)
		if err := errors.Join(err, s.Check(), kv.Check()); err != nil {
			t.Fatal(err)
		}
		events, _ = manage(t, kv, plan)
		for _, e := range events {
			switch {
			case e.Kind == KindDenied:
				denied[e.ID] = true
			case e.Kind == KindGranted && waiting[e.ID]:
				waiting[e.ID], r.begun[e.ID] = false, begun
				begun++
				for i := range e.ID {
					if waiting[i] && denied[i] {
						r.passed[i]++
					}
				}
			}
		}
		made := 0
		for _, c := range plan.Chunks {
			if c.Start != computed[c.ID] {
				t.Fatalf("%+v: %d tokens were computed before", c, computed[c.ID])
			}
			computed[c.ID] += c.Rows
			if c.Output {
				events = append(events, Sampled(c.ID))
				made++
			}
		}
		if plan.Rows > 0 {
			r.steps++
			r.tokens = append(r.tokens, made)
		}
	}
	return r
}

// TestASequenceThatFitsPassesLargerOnes is figure 4 of "LLM inference at scale with TGI": 20,500 tokens, of which 13 sequences leave 1,000.
// The next three need more, and the one after them does not.
func TestASequenceThatFitsPassesLargerOnes(t *testing.T) {
	queue := make([]Sequence, 20)
	for i := range queue {
		queue[i] = Sequence{PromptTokens: 1000, MaxNewTokens: 500 + 10*i}
	}
	for i := range 13 {
		queue[i].MaxNewTokens = 500
	}
	queue[16] = Sequence{PromptTokens: 600, MaxNewTokens: 340}
	const slabs = 20_500 / 16
	strict, passing := serve(t, slabs, 0, queue), serve(t, slabs, maxPasses, queue)
	for i, place := range strict.begun {
		if place != i {
			t.Errorf("without passes %d began as number %d", i, place)
		}
	}
	if passing.begun[16] != 13 || passing.begun[13] != 14 || passing.begun[14] != 15 {
		t.Errorf("16 began as number %d, and the ones that it passed as %d and %d, expected 13, 14, 15",
			passing.begun[16], passing.begun[13], passing.begun[14])
	}
	if a, b := strict.made(500), passing.made(500); b != a+340 {
		t.Errorf("%d tokens in 500 steps with passes, %d without, expected those of 16 more", b, a)
	}
}

// made is the number of tokens of the first steps.
func (r *served) made(steps int) (tokens int) {
	for _, n := range r.tokens[:steps] {
		tokens += n
	}
	return tokens
}

// TestPassesAreBoundedAndServeMore runs random queues of few large and many small sequences.
func TestPassesAreBoundedAndServeMore(t *testing.T) {
	strict, passing, most := 0, 0, 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 4))
		slabs := 100 + rng.IntN(200)
		queue := make([]Sequence, 100)
		for i := range queue {
			queue[i] = Sequence{PromptTokens: 1 + rng.IntN(200), MaxNewTokens: 1 + rng.IntN(100)}
			if rng.IntN(8) == 0 {
				queue[i].PromptTokens = slabs*4 + rng.IntN(slabs*10)
			}
		}
		a, b := serve(t, slabs, 0, queue), serve(t, slabs, maxPasses, queue)
		strict, passing = strict+a.steps, passing+b.steps
		for i := range queue {
			if a.passed[i] > 0 || b.passed[i] > maxPasses {
				t.Errorf("seed %d: %d was passed %d and %d times, expected 0 and at most %d", seed, i, a.passed[i], b.passed[i], maxPasses)
			}
			most = max(most, b.passed[i])
		}
	}
	t.Logf("%d steps with passes, %d without", passing, strict)
	if most != maxPasses {
		t.Errorf("a sequence was passed %d times at most, expected %d: nothing tested the bound", most, maxPasses)
	}
	if float64(passing) > 0.98*float64(strict) {
		t.Errorf("%d steps with passes, %d without, expected fewer by 2%%", passing, strict)
	}
}
