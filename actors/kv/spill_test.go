package kv

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/metrics/metricstest"
)

// testTier is a tier of ten slots in memory.
type testTier struct {
	slots       [10][testBytes]byte
	write, read func() error // nil: they succeed
}

func (f *testTier) Slots() int { return len(f.slots) }

func (f *testTier) Write(slot int32, data []byte) error {
	if f.write != nil {
		if err := f.write(); err != nil {
			return err
		}
	}
	copy(f.slots[slot][:], data)
	return nil
}

func (f *testTier) Read(slot int32, to []byte) error {
	if f.read != nil {
		if err := f.read(); err != nil {
			return err
		}
	}
	copy(to, f.slots[slot][:])
	return nil
}

// tierWorker is a KV manager of ten slabs with a tier.
type tierWorker struct {
	*Manager
	t      *testing.T
	tier   testTier
	memory testMemory
	series *metrics.Metrics
	self   *actor.PID
	rounds chan *msg.KVRound
	moved  chan *msg.KVMoved
}

func newTierWorker(t *testing.T) *tierWorker {
	system := actor.NewActorSystem()
	t.Cleanup(system.Shutdown)
	w := &tierWorker{t: t, series: metrics.New(metrics.Build{}), rounds: make(chan *msg.KVRound, 10), moved: make(chan *msg.KVMoved, 10)}
	w.self = system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		switch m := ctx.Message().(type) {
		case *msg.KVRound:
			w.rounds <- m
		case *msg.KVMoved:
			w.moved <- m
		}
	}))
	var err error
	w.Manager, err = New(Config{
		Root: system.Root, Slabs: 10, KV: kvmgr.NewSpec(16, kvmgr.Full{}), Broken: func(err error) { t.Error(err) },
		Metrics: w.series.Model("m"), Memory: &w.memory, Tier: &w.tier, Log: zerolog.New(io.Discard),
		Spawn: func(name string, a actor.Actor) (*actor.PID, error) {
			return system.Root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }), name)
		},
	})
	require.NoError(t, err)
	return w
}

func (w *tierWorker) round(r *msg.KVRound) *msg.KVRound {
	w.t.Helper()
	r.Reply = w.self
	w.root.Send(w.PID(), r)
	return get(w.t, w.rounds)
}

// begin starts a sequence of six computed slabs and a token, with bytes of its own.
func (w *tierWorker) begin(seq msg.SeqID) msg.Granted {
	w.t.Helper()
	tokens := prompt(100*int(seq), 97)
	r := w.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: 160, Promise: 112, Lease: 112, Known: tokens, Space: "a"}}})
	require.Len(w.t, r.Granted, 1)
	for i, slab := range r.Granted[0].Slabs {
		w.memory.slabs[slab] = [testBytes]byte{byte(seq), byte(i), 1, 2, 3}
	}
	w.round(&msg.KVRound{Commit: []msg.Commit{{Seq: seq, Tokens: tokens[:96]}}})
	return r.Granted[0]
}

// restore requests a sequence again.
func (w *tierWorker) restore(seq msg.SeqID) *msg.KVRound {
	w.t.Helper()
	return w.round(&msg.KVRound{Restore: []msg.Reserve{{Seq: seq, Tokens: 160, Promise: 112, Lease: 112}}})
}

func (w *tierWorker) state() *State {
	w.t.Helper()
	state, err := w.State(w.t.Context(), false)
	require.NoError(w.t, err)
	require.Equal(w.t, "ok", state.Check)
	return state
}

func TestASequenceGoesToTheTierAndBack(t *testing.T) {
	w := newTierWorker(t)
	w.begin(1)
	require.Empty(t, w.round(&msg.KVRound{Spill: []msg.Spill{{Seq: 1, Tokens: 96}}}).Kept)
	require.Equal(t, &msg.KVMoved{Spilled: []msg.SeqID{1}}, get(t, w.moved))
	s := w.state()
	require.Equal(t, 6, s.Stats.Spilled)
	require.Equal(t, 10, s.Stats.Free)
	require.Equal(t, 6, s.Regions[0].SpilledSlabs)
	require.Zero(t, s.Regions[0].LeasedSlabs)
	w.begin(2)
	require.Equal(t, []msg.SeqID{1}, w.restore(1).Kept, "there is no room")
	w.round(&msg.KVRound{Release: []msg.SeqID{2}})
	w.memory.slabs = [testSlabs][testBytes]byte{} // whatever others had there
	require.Empty(t, w.restore(1).Kept)
	g := get(t, w.moved).Granted[0]
	require.Equal(t, 96, g.Computed)
	require.Equal(t, 112, g.UpTo)
	require.Len(t, g.Slabs, 7)
	for i, slab := range g.Slabs[:6] {
		require.Equal(t, [testBytes]byte{1, byte(i), 1, 2, 3}, w.memory.slabs[slab])
	}
	require.Zero(t, w.state().Stats.Spilled)
	require.Equal(t, 1.0, metricstest.Sum(t, w.series.Registry(), "millrace_kv_spill_restores_total"))
}

// TestASlabIsNotUsedBeforeItsCopyIsComplete: the disk hangs, and no round waits for it.
func TestASlabIsNotUsedBeforeItsCopyIsComplete(t *testing.T) {
	w := newTierWorker(t)
	held := make(chan struct{})
	w.tier.write = func() error { <-held; return nil }
	w.begin(1)
	w.round(&msg.KVRound{Spill: []msg.Spill{{Seq: 1, Tokens: 96}}})
	other := msg.Reserve{Seq: 2, Tokens: 96, Promise: 96, Lease: 96}
	require.Len(t, w.round(&msg.KVRound{Reserve: []msg.Reserve{other}}).Denied, 1)
	w.state()
	for range 5 {
		held <- struct{}{}
	}
	require.Len(t, w.round(&msg.KVRound{Reserve: []msg.Reserve{other}}).Denied, 1)
	require.Empty(t, w.moved)
	held <- struct{}{}
	get(t, w.moved)
	require.Len(t, w.round(&msg.KVRound{Reserve: []msg.Reserve{other}}).Granted, 1)
}

func TestASequenceThatEndsOnItsWayReturnsItsSlots(t *testing.T) {
	w := newTierWorker(t)
	held := make(chan struct{})
	hang := func() error { <-held; return nil }
	w.tier.write, w.tier.read = hang, hang
	w.begin(1)
	w.round(&msg.KVRound{Spill: []msg.Spill{{Seq: 1, Tokens: 96}}})
	w.round(&msg.KVRound{Release: []msg.SeqID{1}})
	require.Zero(t, w.state().Stats.Spilled)
	w.begin(2) // its copies follow those of the first one to the same slots
	w.round(&msg.KVRound{Spill: []msg.Spill{{Seq: 2, Tokens: 96}}})
	for range moveAhead + 6 {
		held <- struct{}{}
	}
	require.Equal(t, []msg.SeqID{2}, get(t, w.moved).Spilled)
	w.restore(2)
	w.round(&msg.KVRound{Release: []msg.SeqID{2}})
	before := w.memory
	for range moveAhead {
		held <- struct{}{}
	}
	s := w.state()
	require.Zero(t, s.Stats.Spilled+s.Stats.Regions)
	require.Equal(t, before, w.memory, "nothing is written for a sequence that has ended")
	require.Empty(t, w.moved)
}

func TestACopyThatCannotBeMadeIsLost(t *testing.T) {
	fails := func(n int) func() error {
		return func() error {
			if n--; n == 0 {
				return errors.New("test")
			}
			return nil
		}
	}
	t.Run("write", func(t *testing.T) {
		w := newTierWorker(t)
		w.tier.write = fails(3)
		w.begin(1)
		w.round(&msg.KVRound{Spill: []msg.Spill{{Seq: 1, Tokens: 96}}})
		require.Equal(t, &msg.KVMoved{Spilled: []msg.SeqID{1}, Lost: []msg.SeqID{1}}, get(t, w.moved))
		require.Zero(t, w.state().Stats.Spilled)
	})
	t.Run("read", func(t *testing.T) {
		w := newTierWorker(t)
		w.tier.read = fails(3)
		w.begin(1)
		w.round(&msg.KVRound{Spill: []msg.Spill{{Seq: 1, Tokens: 96}}})
		get(t, w.moved)
		w.restore(1)
		require.Equal(t, &msg.KVMoved{Lost: []msg.SeqID{1}}, get(t, w.moved))
		s := w.state()
		require.Zero(t, s.Stats.Spilled+s.Stats.Regions)
		require.Equal(t, 1.0, metricstest.Sum(t, w.series.Registry(), "millrace_kv_spill_replays_total"))
		w.begin(1) // as any other
	})
}

// TestALostSequenceMayEndBeforeTheWorkerKnows: its release is on its way meanwhile.
func TestALostSequenceMayEndBeforeTheWorkerKnows(t *testing.T) {
	w := newTierWorker(t)
	w.tier.write = func() error { return errors.New("test") }
	for range 2 {
		w.begin(1)
		w.round(&msg.KVRound{Spill: []msg.Spill{{Seq: 1, Tokens: 96}}})
		require.Equal(t, []msg.SeqID{1}, get(t, w.moved).Lost)
		w.round(&msg.KVRound{Release: []msg.SeqID{1}})
		require.Zero(t, w.state().Stats.Regions)
	}
	w.begin(1)
	w.round(&msg.KVRound{Release: []msg.SeqID{1}}) // as any other
	require.Zero(t, w.state().Stats.Regions)
}

// TestARestoreWaitsForCopies: a slab that it writes may be the source of a copy inside the pool.
func TestARestoreWaitsForCopies(t *testing.T) {
	w := newTierWorker(t)
	w.begin(1)
	w.round(&msg.KVRound{Spill: []msg.Spill{{Seq: 1, Tokens: 96}}})
	get(t, w.moved)
	tokens := prompt(300, 20)
	w.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: 3, Tokens: 20, Promise: 20, Lease: 20, Known: tokens, Space: "b"}}})
	w.round(&msg.KVRound{Commit: []msg.Commit{{Seq: 3, Tokens: tokens[:19], Tail: true}}, Release: []msg.SeqID{3}})
	r := w.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: 4, Tokens: 20, Promise: 20, Lease: 19, Known: append(prompt(300, 18), 1),
		Space: "b"}}})
	require.Positive(t, r.Granted[0].CopyTokens)
	w.memory.slabs = [testSlabs][testBytes]byte{}
	before := w.memory
	require.Empty(t, w.restore(1).Kept)
	require.Never(t, func() bool { return len(w.moved) > 0 }, 50*time.Millisecond, 5*time.Millisecond)
	w.round(&msg.KVRound{})
	require.Equal(t, before, w.memory)
	require.Empty(t, w.moved)
	w.root.Send(w.PID(), &msg.KVCopied{Copies: 1})
	require.Equal(t, 96, get(t, w.moved).Granted[0].Computed)
}

// newPairWithTier is a pair whose first manager has a tier.
func newPairWithTier(t *testing.T) *pair {
	return newPairWith(t, equals, func(i int, c *Config) {
		if i == 0 {
			c.Tier = &testTier{}
		}
	})
}

// spill moves a computed sequence to the first manager's tier.
func (p *pair) spill(seq msg.SeqID, tokens int) {
	p.t.Helper()
	require.Empty(p.t, p.round(0, &msg.KVRound{Spill: []msg.Spill{{Seq: seq, Tokens: tokens}}}).Kept)
	require.Equal(p.t, []msg.SeqID{seq}, next[*msg.KVMoved](p).Spilled)
}

// requireArrived continues a sequence at the second manager, which has all its tokens then, and the first one nothing.
func (p *pair) requireArrived(seq msg.SeqID, tokens []int32) {
	p.t.Helper()
	p.imports(seq, "a", tokens)
	next[*msg.Imported](p)
	n, first := p.cached(seq+100, "a", tokens)
	require.Equal(p.t, len(tokens)-1, n)
	require.Equal(p.t, []byte{byte(seq), 0, byte(seq), 1, byte(seq), 2}, first)
	require.Eventually(p.t, func() bool { return p.managers[0].Stats().Spilled == 0 }, 20*time.Second, time.Millisecond)
	p.clean(0)
}

func TestASequenceIsCopiedFromTheTier(t *testing.T) {
	p := newPairWithTier(t)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.spill(1, 59)
	p.runs(2, "b", prompt(500, 150)) // all of the pool: nothing of the first one is left there
	require.Equal(t, 59, p.prefetch(1, "a", tokens))
	p.round(0, &msg.KVRound{Release: []msg.SeqID{1}})
	p.requireArrived(1, tokens)
}

// TestASequenceThatIsSpilledWhileItIsCopiedArrives: it leaves when its last slab is in the tier alone.
func TestASequenceThatIsSpilledWhileItIsCopiedArrives(t *testing.T) {
	p := newPairWithTier(t)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	require.Equal(t, 48, p.prefetch(1, "a", tokens))
	p.spill(1, 59)
	p.runs(2, "b", prompt(500, 150))
	p.round(0, &msg.KVRound{Release: []msg.SeqID{1}})
	p.requireArrived(1, tokens)
}

// TestASequenceThatIsOnItsWayToTheTierArrives: it leaves while the disk hangs, and its last slab is in the pool alone.
func TestASequenceThatIsOnItsWayToTheTierArrives(t *testing.T) {
	held := make(chan struct{})
	p := newPairWith(t, equals, func(i int, c *Config) {
		if i == 0 {
			c.Tier = &testTier{write: func() error { <-held; return nil }}
		}
	})
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	require.Equal(t, 48, p.prefetch(1, "a", tokens))
	require.Empty(t, p.round(0, &msg.KVRound{Spill: []msg.Spill{{Seq: 1, Tokens: 59}}}).Kept)
	p.round(0, &msg.KVRound{Release: []msg.SeqID{1}})
	p.requireArrived(1, tokens)
	close(held)
}

// TestATierIsFreeWhenNobodyComesForASequence: another worker has copied a part, and died.
func TestATierIsFreeWhenNobodyComesForASequence(t *testing.T) {
	p := newPairWithTier(t)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.prefetch(1, "a", tokens)
	p.spill(1, 59)
	p.round(0, &msg.KVRound{Release: []msg.SeqID{1}})
	require.Equal(t, 4, p.managers[0].Stats().Spilled)
	require.Eventually(t, func() bool { return p.managers[0].Stats().Spilled == 0 }, 20*time.Second, time.Millisecond)
}
