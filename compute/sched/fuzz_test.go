package sched

import (
	"maps"
	"testing"

	"github.com/millrace/millrace/kvmgr"
)

// FuzzStep throws events at the scheduler in any order, most of them out of
// place: each is applied or is an error, the counts stay whole, every accepted
// sequence ends once, and every reservation is denied or released once.
func FuzzStep(f *testing.F) {
	f.Add([]byte{0, 1, 20, 8, 0, 0, 2, 1, 28, 9, 1, 4, 4, 1, 9, 3})
	// Granted at once, then sampled with draft tokens of which some are accepted.
	f.Add([]byte{1, 1, 3, 11, 0, 0, 2, 0, 0, 3, 1, 14, 5, 1, 1, 5, 5, 1, 3, 4, 5, 1, 2, 2})
	f.Add([]byte("submit, cancel, grant, deny, sample and finish"))
	// An ID that is submitted again before the reservation of the first has its answer.
	f.Add([]byte("12010000082y120100000c21"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s, err := New(Config{
			MaxBatchTokens: 9, ChunkTokens: 5, MaxBatchSize: 3, MaxWaiting: 2, WaitingServedRatio: 0.7,
			MaxSequenceTokens: 40, KV: kvmgr.NewSpec(4, kvmgr.Full{}), LeaseAheadTokens: 6, DraftRows: 6,
		})
		if err != nil {
			t.Fatal(err)
		}
		b := tracker{s: s, live: map[ID]bool{}, requested: map[ID]int{}, reserved: map[ID]bool{}}
		next := func() int {
			if len(in) == 0 {
				return 0
			}
			v := in[0]
			in = in[1:]
			return int(v)
		}
		for len(in) > 0 {
			kind, id := next(), ID(next()%7)
			switch e := (Event{Kind: EventKind(kind % 14), ID: id}); e.Kind {
			case KindSubmit:
				b.step(t, Submit(&Sequence{
					ID: id, PromptTokens: next() % 35, MaxNewTokens: next() % 12, Beams: next() % 5, Priority: next() % 2,
					Deadline: Time(next() % 40), Tenant: string(rune('a' + next()%3)), Weight: next() % 4,
				}))
			case KindGranted:
				b.step(t, GrantedPrefix(id, next()%48, next()%8))
			case KindParked:
				b.step(t, Parked(id, ID(next()%7)))
			case KindDenied:
				e.Never = next()%4 == 0
				b.step(t, e)
			case KindSampled:
				b.step(t, Accepted(id, next()%5, next()%7))
			case KindFinished:
				b.step(t, Finished(id, Reason(next()%10)))
			default:
				b.now += Time(kind / 64)
				b.step(t, e)
			}
		}
		for range 7 { // the queue moves up as the slots are answered
			for id := range ID(7) {
				b.step(t, Cancel(id))
				b.step(t, Granted(id, 1))
			}
		}
		if !s.Idle() || len(b.live)+len(b.requested)+len(b.reserved) != 0 {
			t.Fatalf("at the end: live %v, reserved %v, %+v", b.live, b.reserved, s.Snapshot())
		}
	})
}

// tracker follows sequences from the outside, one event per step.
type tracker struct {
	s         *Scheduler
	now       Time
	live      map[ID]bool // accepted and not ended
	requested map[ID]int  // Reserve is out; its number
	reserves  int         // so far
	reserved  map[ID]bool // granted, not released
}

func (b *tracker) step(t *testing.T, e Event) {
	t.Helper()
	plan, err := b.s.Step(b.now, []Event{e})
	switch {
	case err != nil:
	case e.Kind == KindSubmit:
		b.live[e.ID] = true
	case e.Kind == KindDenied && e.Never:
		delete(b.requested, e.ID)
	case e.Kind == KindDenied: // later reservations are dropped
		from := b.requested[e.ID]
		maps.DeleteFunc(b.requested, func(_ ID, number int) bool { return number >= from })
	case e.Kind == KindParked:
		delete(b.requested, e.ID)
	case e.Kind == KindGranted && b.requested[e.ID] > 0:
		delete(b.requested, e.ID)
		b.reserved[e.ID] = true
	}
	for _, end := range plan.Ended {
		if !b.live[end.ID] {
			t.Fatalf("%+v was not live", end)
		}
		delete(b.live, end.ID)
	}
	for _, id := range plan.Release {
		if !b.reserved[id] || b.live[id] {
			t.Fatalf("release of %d, live %v, reserved %v", id, b.live, b.reserved)
		}
		delete(b.reserved, id)
	}
	for _, r := range plan.Reserve {
		if !b.live[r.ID] || b.requested[r.ID] > 0 || b.reserved[r.ID] {
			t.Fatalf("%+v, live %v, requested %v, reserved %v", r, b.live, b.requested, b.reserved)
		}
		b.reserves++
		b.requested[r.ID] = b.reserves
	}
	if err := b.s.Check(); err != nil {
		t.Fatal(err)
	}
	if n := b.s.Running() + b.s.Waiting(); n != len(b.live) || len(b.s.Snapshot()) != n {
		t.Fatalf("%d sequences, %d are live", n, len(b.live))
	}
}
