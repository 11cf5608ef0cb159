package kv

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
)

// testManager is a KV manager of ten slabs of 16 tokens whose answers go to the test.
type testManager struct {
	*Manager
	t      *testing.T
	reply  *actor.PID
	got    chan *msg.KVRound
	ready  chan *msg.KVReady
	broken chan error
}

func newTestManager(t *testing.T) *testManager {
	t.Helper()
	return newTestManagerOf(t, Config{Slabs: 10})
}

func newTestManagerOf(t *testing.T, cfg Config) *testManager {
	t.Helper()
	system := actor.NewActorSystem()
	t.Cleanup(system.Shutdown)
	m := &testManager{t: t, got: make(chan *msg.KVRound, 10), ready: make(chan *msg.KVReady, 100), broken: make(chan error, 10)}
	m.reply = system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		switch r := ctx.Message().(type) {
		case *msg.KVRound:
			m.got <- r
		case *msg.KVReady:
			m.ready <- r
		}
	}))
	cfg.Root, cfg.Broken, cfg.Metrics = system.Root, func(err error) { m.broken <- err }, metrics.New(metrics.Build{}).Model("m")
	if cfg.KV.Groups == nil {
		cfg.KV = kvmgr.NewSpec(16, kvmgr.Full{})
	}
	cfg.Spawn = func(name string, a actor.Actor) (*actor.PID, error) {
		return system.Root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }), name)
	}
	var err error
	m.Manager, err = New(cfg)
	require.NoError(t, err)
	return m
}

// round sends a round and returns it with its answer.
func (m *testManager) round(r *msg.KVRound) *msg.KVRound {
	m.t.Helper()
	r.Reply = m.reply
	m.root.Send(m.PID(), r)
	select {
	case got := <-m.got:
		require.Same(m.t, r, got)
		return got
	case err := <-m.broken:
		m.t.Fatal(err)
	case <-time.After(20 * time.Second):
		m.t.Fatal("no answer")
	}
	panic("unreachable")
}

func TestARoundHasOneAnswer(t *testing.T) {
	m := newTestManager(t)
	r := m.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: 1, Tokens: 128, Promise: 128, Lease: 16},
		{Seq: 3, Tokens: 200, Promise: 200, Lease: 16}, {Seq: 2, Tokens: 48, Promise: 48, Lease: 48},
		{Seq: 4, Tokens: 16, Promise: 16, Lease: 16}}})
	require.Len(t, r.Granted, 1, "nobody passes the one that was denied")
	require.Equal(t, msg.SeqID(1), r.Granted[0].Seq)
	require.Equal(t, 16, r.Granted[0].UpTo)
	require.Len(t, r.Granted[0].Slabs, 1)
	require.Equal(t, []msg.Denied{{Seq: 3, Need: 13, Free: 2, Pool: 10, Never: true}, {Seq: 2, Need: 3, Free: 2, Pool: 10}}, r.Denied)
	r = m.round(&msg.KVRound{Extend: []msg.Extend{{Seq: 1, UpTo: 64}}})
	require.Len(t, r.Granted, 1)
	require.Len(t, r.Granted[0].Slabs, 3, "the new ones")
}

func TestWhatARoundReleasesIsThereForItsReservations(t *testing.T) {
	m := newTestManager(t)
	m.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: 1, Tokens: 160, Promise: 160, Lease: 160}}})
	r := m.round(&msg.KVRound{Release: []msg.SeqID{1}, Reserve: []msg.Reserve{{Seq: 2, Tokens: 160, Promise: 160, Lease: 32}}})
	require.Empty(t, r.Denied)
	require.Len(t, r.Granted, 1)
	state, err := m.State(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "ok", state.Check)
	require.Equal(t, kvmgr.Seq(2), state.Regions[0].Seq)
}

func TestABriefStateHasNoSlabIDsAndNoCheck(t *testing.T) {
	m := newTestManager(t)
	m.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: 1, Tokens: 96, Promise: 96, Lease: 48}}})
	full, err := m.State(t.Context(), false)
	require.NoError(t, err)
	brief, err := m.State(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, []kvmgr.Range{{First: 0, Slabs: 3}}, full.Regions[0].Slabs)
	full.Regions[0].Slabs, full.Check = nil, ""
	require.Equal(t, full, brief)
	require.Equal(t, []int{1, 1, 1, 0, 0, 0, 0, 0, 0, 0}, brief.Map.Held)
	require.Equal(t, brief.Stats, m.Stats())
	require.Equal(t, 3, m.Stats().Promised)
}

// BenchmarkBriefState is what /debug/kv's page requests once a second, of 100,000 slabs: half are leased to 64 sequences,
// half are kept for their tokens.
func BenchmarkBriefState(b *testing.B) {
	const slabs = 100_000
	allocator, err := kvmgr.New(kvmgr.Config{Slabs: slabs, Spec: kvmgr.NewSpec(16, kvmgr.Full{})})
	require.NoError(b, err)
	a := kvActor{exchange: exchange{kv: allocator}}
	ids := make([]int32, slabs/128*16)
	for seq := range kvmgr.Seq(128) {
		ids[0] = int32(seq)
		_, err := a.kv.ReservePrompt(seq, kvmgr.Declared(len(ids)), kvmgr.Prompt{Tokens: ids})
		require.NoError(b, err)
		_, err = a.kv.Lease(seq, len(ids))
		require.NoError(b, err)
		require.NoError(b, a.kv.Commit(seq, ids, true))
	}
	for seq := kvmgr.Seq(0); seq < 128; seq += 2 {
		_, err := a.kv.Release(seq)
		require.NoError(b, err)
	}
	for b.Loop() {
		a.state(true)
	}
	data, err := json.Marshal(a.state(true))
	require.NoError(b, err)
	b.ReportMetric(float64(len(data)), "JSON-bytes")
}

func TestASequenceThatMayNotGrowPausesUntilSlabsReturn(t *testing.T) {
	m := newTestManager(t)
	r := m.round(&msg.KVRound{Reserve: []msg.Reserve{
		{Seq: 1, Tokens: 160, Promise: 32, Lease: 32}, {Seq: 2, Tokens: 128, Promise: 32, Lease: 32},
	}})
	require.Len(t, r.Granted, 2)
	grow := msg.Extend{Seq: 1, UpTo: 64, Promise: 64}
	r = m.round(&msg.KVRound{Extend: []msg.Extend{grow}})
	require.Equal(t, []msg.SeqID{1}, r.Paused, "the other one could not reach its end")
	require.Empty(t, r.Granted)
	state, err := m.State(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "ok", state.Check)
	require.Equal(t, 1, state.Stats.Denied)
	require.True(t, state.Regions[0].Denied)
	r = m.round(&msg.KVRound{Release: []msg.SeqID{2}, Extend: []msg.Extend{grow}})
	require.Empty(t, r.Paused)
	require.Len(t, r.Granted[0].Slabs, 2)
}

func TestARoundThatContradictsTheAllocatorIsReported(t *testing.T) {
	for name, r := range map[string]*msg.KVRound{
		"release of an unknown sequence": {Release: []msg.SeqID{7}},
		"extend beyond the reservation": {Reserve: []msg.Reserve{{Seq: 1, Tokens: 16, Promise: 16, Lease: 16}},
			Extend: []msg.Extend{{Seq: 1, UpTo: 17}}},
		"a sequence that is there": {Reserve: []msg.Reserve{{Seq: 1, Tokens: 16, Promise: 16, Lease: 16},
			{Seq: 1, Tokens: 16, Promise: 16, Lease: 16}}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestManager(t)
			r.Reply = m.reply
			m.root.Send(m.PID(), r)
			select {
			case err := <-m.broken:
				require.Error(t, err)
			case <-time.After(20 * time.Second):
				t.Fatal("nothing was reported")
			}
			require.Empty(t, m.got)
		})
	}
}

func TestAPromptSharesWhatWasComputed(t *testing.T) {
	m := newTestManager(t)
	prompt := make([]int32, 40)
	for i := range prompt {
		prompt[i] = int32(i)
	}
	r := m.round(&msg.KVRound{Reserve: []msg.Reserve{
		{Seq: 1, Tokens: 48, Promise: 48, Lease: 48, Known: prompt, Space: "a"},
		{Seq: 2, Tokens: 48, Promise: 48, Lease: 48, Known: prompt, Space: "a"},
		{Seq: 3, Tokens: 48, Promise: 48, Lease: 48, Known: prompt, Space: "b"},
	}})
	require.Equal(t, []msg.Parked{{Seq: 2, By: 1}}, r.Parked, "the first one computes the prompt, and the third is in another space")
	require.Len(t, r.Granted, 2)
	first := r.Granted[0]
	require.Zero(t, first.Computed)
	require.Zero(t, r.Granted[1].Computed)

	r = m.round(&msg.KVRound{Commit: []msg.Commit{{Seq: 1, Tokens: prompt, Tail: true}}})
	require.Equal(t, []msg.SeqID{2}, r.Ready)
	r = m.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: 2, Tokens: 48, Promise: 48, Lease: 48, Known: prompt, Space: "a"}}})
	require.Empty(t, r.Parked)
	second := r.Granted[0]
	require.Equal(t, 39, second.Computed, "all but the last token")
	require.Len(t, second.Slabs, 3)
	require.Equal(t, first.Slabs[:2], second.Slabs[:2])
	require.Equal(t, []any{first.Slabs[2:3], second.Slabs[2:3], 7}, []any{second.CopyFrom, second.CopyTo, second.CopyTokens})

	r = m.round(&msg.KVRound{Release: []msg.SeqID{1, 2, 3}, Forget: true,
		Reserve: []msg.Reserve{{Seq: 4, Tokens: 48, Promise: 48, Lease: 48, Known: prompt, Space: "a"}}})
	require.Zero(t, r.Granted[0].Computed, "the device was loaded again")
}

// parked are the sequences whose reservations wait.
func parked(r *msg.KVRound) (seqs []msg.SeqID) {
	for _, p := range r.Parked {
		seqs = append(seqs, p.Seq)
	}
	return seqs
}
