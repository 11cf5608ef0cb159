package sched

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/kvmgr"
)

// TestSequencesThatMovedHereAreReadAgainSoon: half of 200 streams lose their worker, and the
// other one has to read their tokens again. In virtual time.
func TestSequencesThatMovedHereAreReadAgainSoon(t *testing.T) {
	const streams, tokens = 100, 160 // of each of the two workers; of a prompt with its answer so far
	s, err := New(Config{
		MaxBatchTokens: 512, ChunkTokens: 256, MaxBatchSize: 2 * streams, MaxWaiting: streams,
		MaxSequenceTokens: 8192, KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 32,
	})
	if err != nil {
		t.Fatal(err)
	}
	var now Time
	var events []Event
	last, longest := map[ID]Time{}, map[ID]Time{}
	var step func()
	step = func() {
		plan, err := s.Step(now, events)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		events = events[:0]
		if !plan.Hold {
			now += smallModel.takes(plan)
		}
		for _, r := range plan.Reserve {
			events = append(events, Granted(r.ID, r.Tokens))
		}
		for _, c := range plan.Chunks {
			if c.Output {
				longest[c.ID] = max(longest[c.ID], now-last[c.ID])
				last[c.ID] = now
				events = append(events, Sampled(c.ID))
			}
		}
		if plan.Hold {
			step()
		}
	}
	submit := func(first ID, migrated bool) {
		for id := first; id < first+streams; id++ {
			events = append(events, Submit(&Sequence{ID: id, PromptTokens: tokens, MaxNewTokens: 2000, Migrated: migrated}))
		}
	}
	submit(0, false)
	for len(last) < streams {
		step()
	}
	for range 8 { // all decode
		step()
	}
	clear(longest)
	submit(streams, true)
	for id := ID(streams); id < 2*streams; id++ {
		last[id] = now
	}
	for len(longest) < 2*streams {
		step()
	}
	gaps := func(first ID) (p99 time.Duration) {
		var all []Time
		for id := first; id < first+streams; id++ {
			all = append(all, longest[id])
		}
		slices.Sort(all)
		return all[len(all)*99/100]
	}
	stayed, migrated := gaps(0), gaps(streams)
	least := streams * tokens * smallModel.prompt // with nothing but their rows
	t.Logf("longest gaps, p99: %v of those that migrated, %v at least; %v of those that stayed", migrated, least, stayed)
	if migrated > least*5/4 {
		t.Errorf("the p99 of the gaps of those that migrated is %v, expected at most 1.25 x %v", migrated, least)
	}
	if most := (readTurns + 2) * (512*smallModel.prompt + 50*smallModel.decode); stayed > most {
		t.Errorf("the p99 of the gaps of those that stayed is %v, expected at most %v", stayed, most)
	}
}
