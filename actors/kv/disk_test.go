package kv

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/kvdisk"
	"github.com/millrace/millrace/metrics"
)

// diskWorker is a KV manager with a disk, as a process that may be started again.
type diskWorker struct {
	t      *testing.T
	dir    string
	change func(Store) Store
	log    bytes.Buffer
	series *metrics.Metrics // of this process
	closes func()
	window int           // of its tokens; 0: none
	states []kvmgr.Group // of sequences that keep states; nil: they keep none

	*Manager
	memory testMemory
	store  *kvdisk.Store
	self   *actor.PID
	rounds chan *msg.KVRound
	ready  chan msg.SeqID
}

func newDiskWorker(t *testing.T) *diskWorker {
	w := &diskWorker{t: t, dir: t.TempDir(), change: func(s Store) Store { return s }}
	w.start()
	t.Cleanup(func() { w.closes() })
	return w
}

func (w *diskWorker) start() {
	w.t.Helper()
	var err error
	group := kvmgr.Group(kvmgr.Full{})
	if w.window > 0 {
		group = kvmgr.Window{Tokens: w.window, Live: kvmgr.LiveSlabs(w.window, 32, 16)}
	}
	spec := kvmgr.NewSpec(16, append([]kvmgr.Group{group}, w.states...)...)
	w.store, err = kvdisk.Open(kvdisk.Config{Dir: w.dir, Size: 1 << 20, SlabBytes: testBytes, SlabTokens: 16, StateSlabs: spec.Head(),
		Identity: "n",
		TTL:      time.Hour})
	require.NoError(w.t, err)
	system := actor.NewActorSystem()
	rounds, ready := make(chan *msg.KVRound, 10), make(chan msg.SeqID, 10)
	w.rounds, w.ready, w.memory, w.series = rounds, ready, testMemory{}, metrics.New(metrics.Build{})
	w.self = system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		switch m := ctx.Message().(type) {
		case *msg.KVRound:
			rounds <- m
		case *msg.KVReady:
			for _, seq := range m.Seqs {
				ready <- seq
			}
		}
	}))
	w.Manager, err = New(Config{
		Root: system.Root, Slabs: 10 + 2*spec.Head(), KV: spec, Broken: func(err error) { w.t.Error(err) }, Metrics: w.series.Model("m"),
		Memory: &w.memory, Disk: w.change(w.store), Log: zerolog.New(&w.log),
		Spawn: func(name string, a actor.Actor) (*actor.PID, error) {
			return system.Root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }), name)
		},
	})
	require.NoError(w.t, err)
	w.closes = func() {
		system.Shutdown()
		w.store.Close() //nolint:errcheck // nothing is lost
	}
}

// restart is another process in the same directory.
func (w *diskWorker) restart() {
	w.t.Helper()
	require.NoError(w.t, w.Flush())
	require.NoError(w.t, w.CloseDisk())
	w.closes()
	w.start()
}

func get[T any](t *testing.T, from chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("no message")
	}
	panic("unreachable")
}

func (w *diskWorker) round(r *msg.KVRound) *msg.KVRound {
	w.t.Helper()
	r.Reply = w.self
	w.root.Send(w.PID(), r)
	return get(w.t, w.rounds)
}

// reserve begins a sequence, and begins it again when it may. It returns the number of tokens that need not be computed.
func (w *diskWorker) reserve(seq msg.SeqID, tenant string, tokens []int32) msg.Granted {
	w.t.Helper()
	n := len(tokens) + 10
	for range 3 {
		r := w.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: n, Promise: n, Lease: len(tokens), Known: tokens,
			Space: tenant}}})
		if len(r.Granted) == 1 {
			return r.Granted[0]
		}
		require.Equal(w.t, []msg.SeqID{seq}, parked(r))
		require.Equal(w.t, seq, get(w.t, w.ready))
	}
	w.t.Fatal("the sequence is not granted")
	panic("unreachable")
}

// runs is a sequence from its begin to its end. It returns the tokens that it did not compute.
func (w *diskWorker) runs(seq msg.SeqID, tenant string, tokens []int32) int {
	w.t.Helper()
	g := w.reserve(seq, tenant, tokens)
	for i, slab := range g.Slabs {
		i += g.First
		want := [testBytes]byte{byte(tokens[0]), byte(i), 1, 2, 3}
		if i < g.Computed/16 {
			require.Equal(w.t, want, w.memory.slabs[slab])
		}
		w.memory.slabs[slab] = want
	}
	w.round(&msg.KVRound{Commit: []msg.Commit{{Seq: seq, Tokens: tokens[:len(tokens)-1], Tail: true}}, Release: []msg.SeqID{seq}})
	return g.Computed
}

// counts are the hits, misses and errors of the disk in this process.
func (w *diskWorker) counts() (list []float64) {
	w.t.Helper()
	families, err := w.series.Registry().Gather()
	require.NoError(w.t, err)
	for _, name := range []string{"hits", "misses", "errors"} {
		for _, f := range families {
			if f.GetName() == "millrace_kv_disk_"+name+"_total" {
				list = append(list, f.Metric[0].Counter.GetValue())
			}
		}
	}
	return list
}

func (w *diskWorker) state() *State {
	w.t.Helper()
	state, err := w.State(w.t.Context(), false)
	require.NoError(w.t, err)
	require.Equal(w.t, "ok", state.Check)
	return state
}

func TestAPrefixReturnsAfterARestart(t *testing.T) {
	w := newDiskWorker(t)
	tokens := prompt(100, 60)
	require.Zero(t, w.runs(1, "a", tokens))
	w.restart()
	require.Equal(t, &Disk{Stats: w.store.Stats()}, w.state().Disk)
	require.Equal(t, 3, w.store.Stats().Slabs)
	require.Equal(t, 48, w.runs(2, "a", tokens))
	require.Equal(t, 59, w.runs(3, "a", tokens), "it is in memory now")
	require.Zero(t, w.runs(4, "b", tokens), "another tenant's")
	require.Zero(t, w.runs(5, "a", append(prompt(100, 30), prompt(500, 30)...)[16:]), "other tokens before it")
	w.restart()
	require.Equal(t, 32, w.runs(6, "a", append(prompt(100, 40), prompt(300, 20)...)), "no more than is common")
	require.Equal(t, 32+3, w.runs(7, "a", append(prompt(100, 35), prompt(700, 5)...)))
	w.restart()
	require.Zero(t, w.runs(8, "a", prompt(100, 31)), "a slab alone does not pay")
	require.Zero(t, w.state().Disk.Reading)
	require.Empty(t, w.log.String())
}

// TestEvictedSlabsReturn: the pool holds less than the conversations that take turns.
func TestEvictedSlabsReturn(t *testing.T) {
	w := newDiskWorker(t)
	for n := range 12 {
		i := n % 3
		computed := w.runs(msg.SeqID(n+1), "a", prompt(100+i*100, 90))
		require.NoError(t, w.Flush())
		if n >= 3 {
			require.GreaterOrEqual(t, computed, 80)
		}
	}
	w.state()
}

// TestOthersWaitForALoad: the second one neither loads nor computes what is on its way.
func TestOthersWaitForALoad(t *testing.T) {
	w := newDiskWorker(t)
	tokens := prompt(100, 60)
	w.runs(1, "a", tokens)
	held := make(chan struct{})
	w.change = func(s Store) Store { return &testStore{Store: s, read: func() error { <-held; return nil }} }
	w.restart()
	other := append(prompt(100, 48), prompt(900, 12)...)
	r := w.round(&msg.KVRound{Reserve: []msg.Reserve{
		{Seq: 2, Tokens: 60, Promise: 60, Lease: 60, Known: tokens, Space: "a"},
		{Seq: 3, Tokens: 60, Promise: 60, Lease: 60, Known: other, Space: "a"},
	}})
	require.Equal(t, []msg.SeqID{2, 3}, parked(r))
	close(held)
	require.ElementsMatch(t, []msg.SeqID{2, 3}, []msg.SeqID{get(t, w.ready), get(t, w.ready)})
	require.Equal(t, 48, w.reserve(2, "a", tokens).Computed)
	require.Equal(t, 48, w.reserve(3, "a", other).Computed)
	w.round(&msg.KVRound{Release: []msg.SeqID{2, 3}})
	require.Zero(t, w.state().Stats.Regions)
}

// testStore is a store whose disk does as a test says.
type testStore struct {
	Store
	read, write func() error
}

func (s *testStore) Read(b kvdisk.Block, to []byte) error {
	if s.read != nil {
		if err := s.read(); err != nil {
			return err
		}
	}
	return s.Store.Read(b, to)
}

func (s *testStore) Write(b kvdisk.Block, data []byte) error {
	if s.write != nil {
		if err := s.write(); err != nil {
			return err
		}
	}
	return s.Store.Write(b, data)
}

func TestASlabThatCannotBeReadIsComputed(t *testing.T) {
	for good := range 3 {
		t.Run(fmt.Sprint(good), func(t *testing.T) {
			w := newDiskWorker(t)
			tokens := prompt(100, 60)
			w.runs(1, "a", tokens)
			w.change = func(s Store) Store {
				n := 0
				return &testStore{Store: s, read: func() error {
					if n++; n == good+1 {
						return errors.New("test")
					}
					return nil
				}}
			}
			w.restart()
			require.Equal(t, 16*good, w.runs(2, "a", tokens))
			require.Equal(t, []float64{float64(good), float64(3 - good), 1}, w.counts())
			require.Equal(t, 59, w.runs(3, "a", tokens))
			require.Contains(t, w.log.String(), "computed again")
			require.Zero(t, w.state().Stats.Regions)
		})
	}
}

// TestADiskThatHangsIsGivenUp: the sequence computes its tokens, and the next ones do not wait.
func TestADiskThatHangsIsGivenUp(t *testing.T) {
	w := newDiskWorker(t)
	tokens := prompt(100, 60)
	w.runs(1, "a", tokens)
	held := make(chan struct{})
	w.change = func(s Store) Store { return &testStore{Store: s, read: func() error { <-held; return nil }} }
	w.restart()
	require.Zero(t, w.reserve(2, "a", tokens).Computed)
	r := w.round(&msg.KVRound{Release: []msg.SeqID{2},
		Reserve: []msg.Reserve{{Seq: 3, Tokens: 60, Promise: 60, Lease: 60, Known: tokens, Space: "a"}}})
	require.Len(t, r.Granted, 1, "the disk still hangs")
	w.round(&msg.KVRound{Release: []msg.SeqID{3}})
	close(held)
	require.Eventually(t, func() bool { return w.state().Disk.Reading == 0 && w.state().Stats.Regions == 0 }, 20*time.Second,
		time.Millisecond)
	require.Equal(t, 48, w.runs(4, "a", tokens))
}

func TestAFullDiskIsReadAndNotWritten(t *testing.T) {
	w := newDiskWorker(t)
	tokens := prompt(100, 60)
	w.runs(1, "a", tokens)
	writes := 0
	w.change = func(s Store) Store {
		return &testStore{Store: s, write: func() error { writes++; return errors.New("test: no space") }}
	}
	w.restart()
	for seq := range msg.SeqID(3) {
		w.runs(10+seq, "b", prompt(int(200+100*seq), 60))
	}
	require.NoError(t, w.Flush())
	require.LessOrEqual(t, writes, storeAhead)
	require.Equal(t, 1, bytes.Count(w.log.Bytes(), []byte("no more slabs are stored")), w.log.String())
	require.True(t, w.state().Disk.Full)
	require.Equal(t, 48, w.runs(2, "a", tokens))
}

// TestALoadEndsWithItsMemory: the device is loaded again while slabs come from the disk.
func TestALoadEndsWithItsMemory(t *testing.T) {
	w := newDiskWorker(t)
	tokens := prompt(100, 60)
	w.runs(1, "a", tokens)
	held := make(chan struct{})
	w.change = func(s Store) Store { return &testStore{Store: s, read: func() error { <-held; return nil }} }
	w.restart()
	r := w.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: 2, Tokens: 60, Promise: 60, Lease: 60, Known: tokens, Space: "a"}}})
	require.Equal(t, []msg.SeqID{2}, parked(r))
	r = w.round(&msg.KVRound{Forget: true})
	require.Equal(t, []msg.SeqID{2}, r.Ready)
	r = w.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: 2, Tokens: 60, Promise: 60, Lease: 60, Known: tokens, Space: "a"}}})
	require.Len(t, r.Granted, 1)
	require.Zero(t, r.Granted[0].Computed)
	close(held)
	w.round(&msg.KVRound{Release: []msg.SeqID{2}})
	require.Zero(t, w.state().Stats.Regions)
}

// TestALoadWaitsForCopies: a slab that it writes may be the source of a copy inside the pool.
func TestALoadWaitsForCopies(t *testing.T) {
	w := newDiskWorker(t)
	w.runs(1, "a", prompt(100, 60))
	w.restart()
	w.runs(2, "b", prompt(300, 20))
	short, before := append(prompt(300, 18), 1), w.memory
	r := w.round(&msg.KVRound{Reserve: []msg.Reserve{
		{Seq: 3, Tokens: 20, Promise: 20, Lease: 19, Known: short, Space: "b"},
		{Seq: 4, Tokens: 60, Promise: 60, Lease: 60, Known: prompt(100, 60), Space: "a"},
	}})
	require.Len(t, r.Granted, 1)
	require.Positive(t, r.Granted[0].CopyTokens)
	require.Equal(t, []msg.SeqID{4}, parked(r))
	for range 10 { // the slabs arrive
		w.round(&msg.KVRound{})
	}
	require.Equal(t, before, w.memory)
	w.root.Send(w.PID(), &msg.KVCopied{Copies: 1})
	require.Equal(t, msg.SeqID(4), get(t, w.ready))
	require.Equal(t, 48, w.reserve(4, "a", prompt(100, 60)).Computed)
}
