package sched

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/millrace/millrace/kvmgr"
)

func testConfig() Config {
	return Config{
		MaxBatchTokens: 24, MaxBatchSize: 4, MaxWaiting: 3,
		MaxSequenceTokens: 200, KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 20,
	}
}

func TestConfigNamesTheFieldAtFault(t *testing.T) {
	if err := testConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func(*Config){
		"MaxBatchTokens is 0":                     func(c *Config) { c.MaxBatchTokens = 0 },
		"ChunkTokens is -1":                       func(c *Config) { c.ChunkTokens = -1 },
		"MaxBatchSize is 0":                       func(c *Config) { c.MaxBatchSize = 0 },
		"MaxWaiting is -2":                        func(c *Config) { c.MaxWaiting = -2 },
		"MaxSequenceTokens is 1":                  func(c *Config) { c.MaxSequenceTokens = 1 },
		"tokens per slab 0":                       func(c *Config) { c.KV.SlabTokens = 0 },
		"cannot be spilled":                       func(c *Config) { c.KV, c.Spill = kvmgr.NewSpec(16, kvmgr.Full{Head: 1}), true },
		"takes no draft tokens back":              func(c *Config) { c.KV, c.DraftRows = kvmgr.NewSpec(16, kvmgr.Bounded{Slabs: 9}), 1 },
		"LeaseAheadTokens is 0":                   func(c *Config) { c.LeaseAheadTokens = 0 },
		"MaxBatchTokens is 1073741825":            func(c *Config) { c.MaxBatchTokens = 1<<30 + 1 },
		"LeaseAheadTokens is 9223372036854775807": func(c *Config) { c.LeaseAheadTokens = math.MaxInt },
		"MaxBatchTokens is 3":                     func(c *Config) { c.MaxBatchTokens = 3 },
		"WaitingServedRatio is -0.5":              func(c *Config) { c.WaitingServedRatio = -0.5 },
		"WaitingServedRatio is NaN":               func(c *Config) { c.WaitingServedRatio = math.NaN() },
		"WaitingServedRatio is 2e+300":            func(c *Config) { c.WaitingServedRatio = 2e300 },
	} {
		c := testConfig()
		breakIt(&c)
		_, err := New(c)
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A sequence that is cancelled while its reservation is on its way leaves its ID taken until the answer.
func TestAnIDIsFreeWhenItsReservationIsAnswered(t *testing.T) {
	s, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	submit := Submit(&Sequence{ID: 1, PromptTokens: 20, MaxNewTokens: 10})
	for _, step := range []struct {
		event Event
		want  error
	}{{submit, nil}, {Cancel(1), nil}, {submit, ErrDuplicate}, {Granted(1, 30), nil}, {submit, nil}} {
		if _, err := s.Step(0, []Event{step.event}); !errors.Is(err, step.want) {
			t.Fatalf("event %d: got %v, expected %v", step.event.Kind, err, step.want)
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// Three sequences with scored prompts and one that decodes share the outputs of a step, MaxBatchSize. None of them starves.
func TestScoredPromptsAreCutByTheOutputsOfAStep(t *testing.T) {
	s, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	const prompt = 30
	events := []Event{Submit(&Sequence{ID: 1, PromptTokens: 3, MaxNewTokens: 150})}
	for id := ID(2); id <= 4; id++ {
		events = append(events, Submit(&Sequence{ID: id, PromptTokens: prompt, MaxNewTokens: 2, Scored: true}))
	}
	scored := make(map[ID]int)
	for range 200 {
		plan, err := s.Step(0, events)
		if err != nil {
			t.Fatal(err)
		}
		events = events[:0]
		for _, r := range plan.Reserve {
			events = append(events, Granted(r.ID, r.Lease))
		}
		for _, l := range plan.Lease {
			events = append(events, Granted(l.ID, l.UpTo))
		}
		outputs := 0
		for _, c := range plan.Chunks {
			outputs += c.outputs()
			if c.Scored {
				scored[c.ID] += c.Rows
			}
			if c.Output {
				events = append(events, Sampled(c.ID))
			}
		}
		if outputs != plan.Outputs || outputs > s.cfg.MaxBatchSize {
			t.Fatalf("found %d outputs, the plan has %d, expected at most %d", outputs, plan.Outputs, s.cfg.MaxBatchSize)
		}
	}
	for id := ID(1); id <= 4; id++ {
		want := prompt
		if id == 1 {
			want = 0
		}
		if scored[id] != want {
			t.Errorf("sequence %d: found %d scored tokens, expected %d", id, scored[id], want)
		}
	}
}
