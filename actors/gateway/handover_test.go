package gateway

import (
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
)

// TestWhatADeadWorkerLeftIsLookedFor: one that is silent may be dead. Its slabs are complete once a token of it is known.
func TestWhatADeadWorkerLeftIsLookedFor(t *testing.T) {
	for why, dead := range map[string]bool{workerDead: true, workerSilent: true, workerForgot: false, workerFailed: false,
		workerStalled: false} {
		r := newRequest(apiRequest(1, 20), modelLimits{context: 100, pool: 100, vocab: 10})
		lead := begin(t, r, make([]int32, 10))[0].Seq
		a := &requestActor{state: r, places: map[msg.SeqID]*place{lead: {compute: actor.NewPID("w", msg.ComputeActor),
			choices: []msg.SeqID{lead},
			from:    2}}}
		for _, known := range []int{2, 3} {
			r.choices[0].tokens = make([]int32, known)
			h := a.leaving(lead, why)
			if !dead {
				require.Nil(t, h.from.KV, why)
				continue
			}
			require.Equal(t, handover{from: msg.Source{KV: kvAt("w"), Seq: lead, Dead: true, Complete: known > 2}}, h, why)
		}
	}
}

// TestAStoppedSequenceIsHandedOver, also if the message that it has stopped was lost: its worker has forgotten it.
func TestAStoppedSequenceIsHandedOver(t *testing.T) {
	r := newRequest(apiRequest(1, 20), modelLimits{context: 100, pool: 100, vocab: 10})
	lead := begin(t, r, make([]int32, 10))[0].Seq
	at := &place{compute: actor.NewPID("w", msg.ComputeActor), choices: []msg.SeqID{lead}, next: &seat{}, why: prefillDone}
	a := &requestActor{state: r, places: map[msg.SeqID]*place{lead: at}}
	require.Nil(t, a.leaving(lead, workerForgot).from.KV, "nobody has stopped it")
	at.stopped = true
	want := handover{from: msg.Source{KV: kvAt("w"), Seq: lead}, to: at.next}
	for _, why := range []string{workerForgot, prefillDone, workerDraining} {
		require.Equal(t, want, a.leaving(lead, why), why)
	}
	require.True(t, a.leaving(lead, workerDead).from.Dead)
}
