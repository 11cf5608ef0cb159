package gateway

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
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

// takeOver submits a call that another gateway had, and returns what the worker is to search for.
func takeOver(t *testing.T, g *testGateway, id string) (api.Stream, *msg.Find) {
	t.Helper()
	s, err := g.Submit(t.Context(), &api.Request{ID: id + ".1", First: id, Model: "m", N: 1, PromptTokens: []int32{1}, IgnoreEOS: true,
		Arrival: time.Now(), TopLogprobs: -1, Takeover: &api.Progress{Choices: []api.ChoiceProgress{{}}}})
	require.NoError(t, err)
	find := next[*msg.Find](t, g)
	require.True(t, find.End)
	return s, find
}

// TestWhatNoWorkerHasBeginsWhenAllHaveSaidSo: not before, and without waiting for longer.
func TestWhatNoWorkerHasBeginsWhenAllHaveSaidSo(t *testing.T) {
	g := newTestGateway(t)
	var took []time.Duration
	for i := range 5 { // a busy machine may take long for one
		id := strconv.Itoa(i)
		began := time.Now()
		s, find := takeOver(t, g, id)
		select {
		case m := <-g.got:
			require.Fail(t, "the worker has not answered", "found a %T after %s", m, time.Since(began))
		case <-time.After(findFor / 4):
		}
		g.root.Send(find.Reply, &msg.Found{Compute: g.stages})
		next[*msg.OpenText](t, g)
		next[*msg.Generate](t, g)
		took = append(took, time.Since(began))
		s.Close()
		next[*msg.Cancel](t, g)
		next[*msg.CloseText](t, g)
	}
	require.Less(t, slices.Min(took), findFor)
}

// TestWhatAWorkerHasIsTakenOver, as soon as it has said so.
func TestWhatAWorkerHasIsTakenOver(t *testing.T) {
	g := newTestGateway(t)
	s, find := takeOver(t, g, "r")
	g.root.Send(find.Reply, &msg.Found{Seqs: []msg.SeqID{7}, Compute: g.stages, Pin: api.Pin{Prompt: api.HashPrompt([]int32{1})}})
	require.EqualValues(t, 7, next[*msg.OpenText](t, g).Seq)
	require.EqualValues(t, 7, next[*msg.Redirect](t, g).Seq)
	g.root.Send(find.Reply, &msg.Found{Compute: g.stages})
	s.Close()
	require.EqualValues(t, 7, next[*msg.Cancel](t, g).Seq, "nothing was started")
}
