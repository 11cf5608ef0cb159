package gateway

import (
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/prefix"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/kvmgr/chain"
	"github.com/millrace/millrace/metrics"
)

// TestALoadIsOfNow: what ended after the beat of a worker counts no longer, if it was this gateway's.
func TestALoadIsOfNow(t *testing.T) {
	w := newTestWatch()
	r := newRouting(&Config{Node: "me"}, w.watch, nil)
	load := func(running, waiting int, owners map[string]int) (int, int) {
		list := r.workers([]*cluster.Member{{Node: "a", Worker: &cluster.Worker{Running: running, Waiting: waiting, Gateways: owners}}})
		return list[0].Running, list[0].Waiting
	}
	check := func(wantRunning, wantWaiting int, why string, running, waiting int) {
		t.Helper()
		require.Equal(t, []int{wantRunning, wantWaiting}, []int{running, waiting}, why)
	}
	for seq := range msg.SeqID(3) {
		w.runs(1+seq, "a", "me", 0)
	}
	running, waiting := load(0, 0, nil)
	check(0, 3, "sent after the beat", running, waiting)
	running, waiting = load(5, 4, map[string]int{"me": 7, "other": 2})
	check(5, 0, "four of this gateway's have ended", running, waiting)
	running, waiting = load(5, 4, map[string]int{"me": 9})
	check(3, 0, "all others have", running, waiting)
	running, waiting = load(1, 1, map[string]int{"other": 2})
	check(1, 4, "none has arrived there", running, waiting)
	running, waiting = load(2, 3, nil)
	check(2, 3, "an earlier version", running, waiting)
}

// TestASequenceThatEndedLatelyIsWhereItWas: the next turn may come before the event of the worker's cache.
func TestASequenceThatEndedLatelyIsWhereItWas(t *testing.T) {
	w := newTestWatch()
	prompt := chain.Of("a", 2, []int32{1, 2, 3, 4, 5, 6})
	w.runs(1, "a", "me", 0)
	w.prompts(1, "a", prompt)
	w.end(1, "a")
	require.Equal(t, 3, w.overlap("a", prompt))
	require.Equal(t, 2, w.overlap("a", chain.Of("a", 2, []int32{1, 2, 3, 4, 7, 8})))
	require.Zero(t, w.overlap("b", prompt))
	w.now = w.now.Add(eventsLate)
	w.look()
	require.Equal(t, 3, w.overlap("a", prompt))
	w.now = w.now.Add(watchEvery)
	w.look()
	require.Zero(t, w.overlap("a", prompt), "the events say what is there")
	require.Empty(t, w.ended)
}

func TestOnlyWorkersOfTheModelAreLookedUp(t *testing.T) {
	w := newTestWatch()
	p := newPrefixes(&Config{Metrics: metrics.New(metrics.Build{})})
	p.any.Store(true)
	p.index.Follow(map[string]int{"a": 10, "b": 10})
	prompt := chain.Of("", 2, []int32{1, 2, 3, 4})
	var salt prefix.Salt
	for _, node := range []string{"a", "b"} {
		require.NoError(t, p.index.Load(node, &prefix.Snapshot{Blocks: []prefix.ID{salt.ID(prompt[0])}}))
	}
	workers := []route.Worker{{Node: "a", Model: "m"}, {Node: "b", Model: "other"}}
	q := route.Query{Model: "m"}
	p.fill(&q, workers, prompt, w.watch)
	require.True(t, q.ByOverlap)
	require.Equal(t, []route.Worker{{Node: "a", Model: "m", Overlap: 1, Blocks: 1}, {Node: "b", Model: "other"}}, workers)
}

// TestAProcessWithManyTextsInHandSendsThemToOthers: else a gateway with tokenizers of its own would leave those of other processes without
// work.
func TestAProcessWithManyTextsInHandSendsThemToOthers(t *testing.T) {
	member := func(node, text string, load int) *cluster.Member {
		return &cluster.Member{Node: node, Model: "m", Text: text,
			Tokenizer: &cluster.Tokenizer{Pool: cluster.Pool{Actors: []string{"tokenize-0"}, Load: load}}}
	}
	chosen := func(own int, others ...*cluster.Member) string {
		cfg := &Config{Node: "me", Cluster: members{list: others}}
		cfg.Local = Local{Model: "m", Text: "t", Tokenizers: always{actor.NewPID("me", "tokenize-0"), own}}
		return newRouting(cfg, newTestWatch().watch, nil).tokenizer("m", route.To("t")).Address
	}
	idle, busy, other := member("idle", "t", 0), member("busy", "t", crowded), member("other", "u", 0)
	draining := member("draining", "t", 0)
	draining.Draining = true
	require.Equal(t, "me", chosen(crowded-1, idle), "few texts stay")
	require.Equal(t, "idle", chosen(crowded, idle, busy, other, draining))
	require.Equal(t, "me", chosen(crowded, busy, other, draining), "none is better")
	require.Equal(t, "busy", chosen(crowded+1, busy, other))
	require.Equal(t, "me", chosen(crowded), "nobody else is there")
}
