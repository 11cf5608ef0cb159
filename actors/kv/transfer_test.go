package kv

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
)

const (
	testBytes = 8  // of a slab
	testSlabs = 40 // of a testMemory; pools have ten
)

// testMemory is the memory of a pool.
type testMemory struct {
	slabs  [testSlabs][testBytes]byte
	broken bool
	bytes  int    // of a slab; 0: testBytes
	before func() // a slab is written; nil: nothing
}

func (m *testMemory) SlabBytes() int { return cmp.Or(m.bytes, testBytes) }

func (m *testMemory) ReadSlab(slab int32, to []byte) error {
	copy(to, m.slabs[slab][:])
	return nil
}

func (m *testMemory) WriteSlab(slab int32, from []byte) error {
	if m.broken {
		return errors.New("broken")
	}
	if m.before != nil {
		m.before()
	}
	copy(m.slabs[slab][:], from)
	return nil
}

// pair is two KV managers: what the one sends to the other passes the test.
type pair struct {
	t        *testing.T
	system   *actor.ActorSystem
	memories [2]testMemory
	managers [2]*Manager
	wire     [2]*actor.PID // where the other one finds a manager
	change   func(m *msg.Slab) *msg.Slab
	fetches  atomic.Int64
	needed   atomic.Int64 // Fetch messages of no slabs
	alive    atomic.Bool  // the first manager's process
	got      chan any     // what workers and requests get
	early    []any        // of it, what nobody has waited for yet
	self     *actor.PID
}

func newPair(t *testing.T, numerics [2]string) *pair {
	return newPairWith(t, numerics, func(int, *Config) {})
}

func newPairWith(t *testing.T, numerics [2]string, configure func(int, *Config)) *pair {
	t.Helper()
	p := &pair{t: t, system: actor.NewActorSystem(), got: make(chan any, 100), change: func(m *msg.Slab) *msg.Slab { return m }}
	t.Cleanup(p.system.Shutdown)
	root := p.system.Root
	p.self = root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		switch ctx.Message().(type) {
		case *msg.KVRound, *msg.KVMoved, *msg.Imported, *msg.Prefetched, *msg.KVReady:
			p.got <- ctx.Message()
		}
	}))
	for i := range p.managers {
		var err error
		cfg := Config{
			Root: root, Slabs: 10, KV: kvmgr.NewSpec(16, kvmgr.Full{}), Broken: func(err error) { t.Error(err) },
			Metrics: metrics.New(metrics.Build{}).Model("m"),
			Memory:  &p.memories[i], SlabsOf: numerics[i], Alive: func(string) bool { return p.alive.Load() },
			Spawn: func(name string, a actor.Actor) (*actor.PID, error) {
				return root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }), fmt.Sprint(name, i))
			},
		}
		configure(i, &cfg)
		p.managers[i], err = New(cfg)
		require.NoError(t, err)
		p.wire[i] = root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) { p.pass(ctx, i) }))
	}
	return p
}

// pass takes a message to a manager, with the place of the other one as the sender.
func (p *pair) pass(ctx actor.Context, to int) {
	switch m := ctx.Message().(type) {
	case *passed:
		ctx.Respond(m)
	case *msg.Fetch:
		if m.Count > 0 {
			p.fetches.Add(1)
		} else {
			p.needed.Add(1)
		}
		m.Reply = p.wire[1-to]
		ctx.Send(p.managers[to].PID(), m)
	case *msg.Slab:
		if m = p.change(m); m != nil {
			ctx.Send(p.managers[to].PID(), m)
		}
	}
}

// passed is answered when the messages before it have been passed on.
type passed struct{}

// settle waits until the second manager's requests have been passed to the first one.
func (p *pair) settle() {
	p.t.Helper()
	p.round(1, &msg.KVRound{})
	_, err := p.system.Root.RequestFuture(p.wire[0], &passed{}, 20*time.Second).Result()
	require.NoError(p.t, err)
}

// next returns the next message of a type to a worker or request. Those of other types are for later: two managers send at once.
func next[M any](p *pair) M {
	p.t.Helper()
	isM := func(m any) bool { _, ok := m.(M); return ok }
	if i := slices.IndexFunc(p.early, isM); i >= 0 {
		m := p.early[i].(M)
		p.early = slices.Delete(p.early, i, i+1)
		return m
	}
	for {
		select {
		case m := <-p.got:
			if got, ok := m.(M); ok {
				return got
			}
			if _, freed := m.(*msg.KVReady); !freed { // room that was kept too long: it comes at any time
				p.early = append(p.early, m)
			}
		case <-time.After(20 * time.Second):
			p.t.Fatalf("no message of the type, only %v", p.early)
		}
	}
}

func (p *pair) round(at int, r *msg.KVRound) *msg.KVRound {
	p.t.Helper()
	r.Reply = p.self
	p.system.Root.Send(p.managers[at].PID(), r)
	return next[*msg.KVRound](p)
}

func prompt(first, n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(first + i)
	}
	return list
}

// runs begins a sequence at the first manager and fills its slabs.
func (p *pair) runs(seq msg.SeqID, tenant string, tokens []int32) {
	p.t.Helper()
	r := p.round(0, &msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: len(tokens) + 10, Promise: len(tokens) + 10, Lease: len(tokens),
		Known: tokens, Space: tenant}}})
	require.Len(p.t, r.Granted, 1)
	for i, slab := range r.Granted[0].Slabs { // by place
		p.memories[0].slabs[slab] = [testBytes]byte{byte(seq), byte(i), 1, 2, 3}
	}
	whole := len(tokens) / 16 * 16
	p.round(0, &msg.KVRound{Commit: []msg.Commit{{Seq: seq, Tokens: tokens[:whole]}}})
}

// ends is the end of a sequence there: its last slab is offered too.
func (p *pair) ends(seq msg.SeqID, tokens []int32) {
	p.t.Helper()
	p.round(0, &msg.KVRound{Commit: []msg.Commit{{Seq: seq, Tokens: tokens[:len(tokens)-1], Tail: true}}, Release: []msg.SeqID{seq}})
}

func (p *pair) source(seq msg.SeqID) msg.Source { return msg.Source{KV: p.wire[0], Seq: seq} }

func (p *pair) prefetch(seq msg.SeqID, tenant string, tokens []int32) int {
	p.t.Helper()
	p.system.Root.Send(p.managers[1].PID(), &msg.Prefetch{Reply: p.self, Source: p.source(seq), Space: tenant, Tokens: tokens})
	m := next[*msg.Prefetched](p)
	require.Equal(p.t, seq, m.Seq)
	return m.Tokens
}

func (p *pair) imports(seq msg.SeqID, tenant string, tokens []int32) {
	source := p.source(seq)
	g := &msg.Generate{Seq: seq + 100, Prompt: tokens[:10], Generated: tokens[10:], Tenant: tenant, Source: &source}
	p.system.Root.Send(p.managers[1].PID(), &msg.Import{Reply: p.self, Generate: g})
}

// cached says how many tokens a sequence finds at the second manager, and what is in their slabs.
func (p *pair) cached(seq msg.SeqID, tenant string, tokens []int32) (n int, first []byte) {
	p.t.Helper()
	r := p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: len(tokens) + 10, Promise: len(tokens) + 10, Lease: len(tokens),
		Known: tokens, Space: tenant}}})
	require.Len(p.t, r.Granted, 1)
	for i := range r.Granted[0].Computed/16 - r.Granted[0].First {
		first = append(first, p.memories[1].slabs[r.Granted[0].Slabs[i]][:2]...)
	}
	p.clean(1)
	return r.Granted[0].Computed, first
}

func (p *pair) clean(at int) {
	p.t.Helper()
	state, err := p.managers[at].State(p.t.Context(), false)
	require.NoError(p.t, err)
	require.Equal(p.t, "ok", state.Check)
	require.Empty(p.t, state.Imports)
}

var equals = [2]string{"n layout", "n layout"}

func TestSlabsFollowTheirSequence(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens[:40])
	require.Equal(t, 32, p.prefetch(1, "a", tokens[:40]), "the last slab is still written")
	p.imports(1, "a", tokens[:40])
	p.settle() // the request waits for the end there
	p.ends(1, tokens[:40])
	require.Equal(t, msg.SeqID(101), next[*msg.Imported](p).Generate.Seq)
	n, first := p.cached(101, "a", tokens[:40])
	require.Equal(t, 39, n, "all but the last one, of which nobody has computed keys")
	require.Equal(t, []byte{1, 0, 1, 1}, first)
	n, _ = p.cached(102, "b", tokens[:40])
	require.Zero(t, n, "another tenant's")
	p.clean(0)
}

func TestASlabThatChangedOnItsWayIsNotUsed(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.change = func(m *msg.Slab) *msg.Slab {
		if m.Index == 1 {
			m.Data = bytes.Clone(m.Data)
			m.Data[3] ^= 1
		}
		return m
	}
	require.Equal(t, 16, p.prefetch(1, "a", tokens))
	n, _ := p.cached(101, "a", tokens)
	require.Equal(t, 16, n)
}

func TestSlabsOfAnotherClassAreNotUsed(t *testing.T) {
	p := newPair(t, [2]string{"n layout", "n other"})
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	require.Zero(t, p.prefetch(1, "a", tokens))
	n, _ := p.cached(101, "a", tokens)
	require.Zero(t, n)
}

func TestASequenceBeginsWithoutSlabsThatDoNotCome(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.change = func(m *msg.Slab) *msg.Slab {
		if m.Index > 0 {
			return nil // as if the process had died
		}
		return m
	}
	p.ends(1, tokens)
	p.imports(1, "a", tokens)
	next[*msg.Imported](p)
	n, _ := p.cached(101, "a", tokens)
	require.Equal(t, 16, n, "the slab that came is used")
}

// TestASequenceStaysWhereItRunsIfItsSlabsDoNotCome: its worker has its keys and values, and another one would compute them again.
func TestASequenceStaysWhereItRunsIfItsSlabsDoNotCome(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.held(tokens)
	require.Equal(t, &msg.Prefetched{Seq: 1, Tokens: 32, Full: true}, next[*msg.Prefetched](p))
}

// TestASequenceWaitsForABusySource: its worker ends it only after a long step. What waits for it is still needed.
func TestASequenceWaitsForABusySource(t *testing.T) {
	p := newPair(t, equals)
	p.alive.Store(true)
	tokens, others := prompt(100, 60), prompt(300, 60)
	p.runs(1, "a", tokens)
	p.runs(2, "a", others)
	p.imports(1, "a", tokens)
	p.imports(2, "a", others)
	time.Sleep(fetchPatience * 5 / 2) //nolint:forbidigo // a long step
	p.ends(1, tokens)
	p.ends(2, others)
	for range 2 {
		next[*msg.Imported](p)
	}
	for seq, tokens := range map[msg.SeqID][]int32{101: tokens, 102: others} {
		r := p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: 61, Promise: 61, Lease: 60, Known: tokens, Space: "a"}}})
		require.Len(t, r.Granted, 1)
		require.Equal(t, 59, r.Granted[0].Computed)
	}
	p.clean(1)
	require.Greater(t, p.needed.Load(), int64(4))
}

// TestSlabsThatWereLostOnTheirWayAreRequestedAgain, from a source that lives.
func TestSlabsThatWereLostOnTheirWayAreRequestedAgain(t *testing.T) {
	p := newPair(t, equals)
	p.alive.Store(true)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.ends(1, tokens)
	lost := 0
	p.change = func(m *msg.Slab) *msg.Slab {
		if lost < 3 && m.Index > 0 {
			lost++
			return nil
		}
		return m
	}
	p.imports(1, "a", tokens)
	next[*msg.Imported](p)
	n, _ := p.cached(101, "a", tokens)
	require.Equal(t, 59, n)
}

// TestASourceThatLivesIsNotWaitedForForEver: no slab comes from it.
func TestASourceThatLivesIsNotWaitedForForEver(t *testing.T) {
	p := newPair(t, equals)
	p.alive.Store(true)
	p.managers[1].actor.limit = 2 * fetchPatience
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	begin := time.Now()
	p.held(tokens)
	require.Equal(t, &msg.Prefetched{Seq: 1, Tokens: 32, Full: true}, next[*msg.Prefetched](p))
	require.Greater(t, time.Since(begin), 2*fetchPatience)
}

// TestASourceThatDiesIsNotWaitedFor, although it lived when the transfer began.
func TestASourceThatDiesIsNotWaitedFor(t *testing.T) {
	p := newPair(t, equals)
	p.alive.Store(true)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.imports(1, "a", tokens)
	p.settle()
	time.AfterFunc(fetchPatience, func() { p.alive.Store(false) })
	next[*msg.Imported](p)
	n, _ := p.cached(101, "a", tokens)
	require.Zero(t, n)
}

// TestASequenceWaitsForRoomWhileItsSourceLives: it would compute its tokens again elsewhere.
func TestASequenceWaitsForRoomWhileItsSourceLives(t *testing.T) {
	p := newPair(t, equals)
	p.alive.Store(true)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.ends(1, tokens)
	require.True(t, p.granted(7, 130))
	p.imports(1, "a", tokens)
	time.Sleep(fetchPatience * 3 / 2) //nolint:forbidigo // others take their time
	p.round(1, &msg.KVRound{Release: []msg.SeqID{7}})
	next[*msg.Imported](p)
	n, _ := p.cached(101, "a", tokens)
	require.Equal(t, 59, n)
}

// TestACopyWaitsForItsTurn has a sequence whose slabs come one by one, and another one after it, whose slabs are requested last.
func TestACopyWaitsForItsTurn(t *testing.T) {
	p := newPair(t, equals)
	p.memories[0].bytes, p.memories[1].bytes = fetchBytes, fetchBytes
	first, second := prompt(100, 69), prompt(300, 20)
	for seq, tokens := range [][]int32{first, second} {
		p.runs(msg.SeqID(seq), "a", tokens)
		p.ends(msg.SeqID(seq), tokens)
	}
	p.change = func(m *msg.Slab) *msg.Slab {
		time.Sleep(fetchPatience / 4) //nolint:forbidigo // a slow network
		return m
	}
	p.imports(0, "a", first)
	p.imports(1, "a", second)
	require.Equal(t, msg.SeqID(100), next[*msg.Imported](p).Generate.Seq)
	require.Equal(t, msg.SeqID(101), next[*msg.Imported](p).Generate.Seq)
	n, _ := p.cached(101, "a", second)
	require.Equal(t, 19, n)
}

func TestNothingIsCopiedWithoutRoom(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: 7, Tokens: 130, Promise: 130, Lease: 16}}})
	p.system.Root.Send(p.managers[1].PID(), &msg.Prefetch{Reply: p.self, Source: p.source(1), Space: "a", Tokens: tokens})
	require.Equal(t, &msg.Prefetched{Seq: 1, Full: true}, next[*msg.Prefetched](p))
	require.Zero(t, p.fetches.Load())
	p.clean(1)
}

func TestABrokenMemoryEndsACopy(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.memories[1].broken = true
	require.Zero(t, p.prefetch(1, "a", tokens))
	p.clean(1)
}

// held starts the prefetch of sequence 1 and returns its third slab, which it has kept from arriving.
func (p *pair) held(tokens []int32) *msg.Slab {
	held := make(chan *msg.Slab, 10)
	p.change = func(m *msg.Slab) *msg.Slab {
		if m.Index == 2 {
			held <- m
			return nil
		}
		return m
	}
	p.system.Root.Send(p.managers[1].PID(), &msg.Prefetch{Reply: p.self, Source: p.source(1), Space: "a", Tokens: tokens})
	return <-held
}

// A sequence that begins with tokens that are on their way waits for them until they are there or cannot come.
func TestOthersWaitForSlabsOnTheirWay(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	late := p.held(tokens)
	r := p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: 5, Tokens: 80, Promise: 80, Lease: 60, Known: tokens, Space: "a"}}})
	require.Equal(t, []msg.SeqID{5}, parked(r))
	p.system.Root.Send(p.managers[1].PID(), late)
	require.Equal(t, 48, next[*msg.Prefetched](p).Tokens)
	require.Equal(t, []msg.SeqID{5}, next[*msg.KVReady](p).Seqs)
	n, _ := p.cached(5, "a", tokens)
	require.Equal(t, 48, n)
}

func TestMemoryThatLostItsContentsForgetsCopies(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	late := p.held(tokens)
	p.system.Root.Send(p.managers[1].PID(), &msg.KVRound{Reply: p.self, Forget: true})
	next[*msg.Prefetched](p)
	next[*msg.KVRound](p)
	p.system.Root.Send(p.managers[1].PID(), late)
	n, _ := p.cached(5, "a", tokens)
	require.Zero(t, n)
}

// The worker copies slabs inside the pool after its answer: nothing may overwrite them before.
func TestACopyWaitsForTheOneInsideThePool(t *testing.T) {
	p := newPair(t, equals)
	first := prompt(500, 40)
	p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: 7, Tokens: 48, Promise: 48, Lease: 48, Known: first}}})
	p.round(1, &msg.KVRound{Commit: []msg.Commit{{Seq: 7, Tokens: first[:32]}}})
	r := p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: 8, Tokens: 48, Promise: 48, Lease: 48,
		Known: append(first[:24:24], 1, 2, 3)}}})
	require.Positive(t, r.Granted[0].CopyTokens)
	tokens := prompt(100, 40)
	p.runs(1, "a", tokens)
	p.system.Root.Send(p.managers[1].PID(), &msg.Prefetch{Reply: p.self, Source: p.source(1), Space: "a", Tokens: tokens})
	p.settle()
	require.Zero(t, p.fetches.Load())
	p.system.Root.Send(p.managers[1].PID(), &msg.KVCopied{Copies: 1})
	require.Equal(t, 32, next[*msg.Prefetched](p).Tokens)
}

func TestTheChecksumIsThatOfTheData(t *testing.T) {
	require.Equal(t, uint32(0xe3069283), crc32.Checksum([]byte("123456789"), castagnoli)) // RFC 3720's polynomial
}
