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
		a := &requestActor{state: r, places: map[msg.SeqID]*place{lead: {compute: actor.NewPID("w", msg.ComputeActor), choices: []msg.SeqID{lead},
			from: 2}}}
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
