package kv

import (
	"bytes"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
)

// TestASnapshotIsLentAndCommitted: a prompt begins where the worker says that a copy of the state is, and not where it says nothing.
func TestASnapshotIsLentAndCommitted(t *testing.T) {
	m := newTestManagerOf(t, Config{Slabs: 40, KV: kvmgr.NewSpec(16, kvmgr.Full{}, kvmgr.State{Slabs: 2, Every: 32})})
	tokens := prompt(100, 90)
	reserve := func(seq msg.SeqID, tokens []int32) *msg.KVRound {
		n := len(tokens)
		return &msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: n + 10, Promise: n + 10, Lease: n, Known: tokens, Space: "a"}}}
	}
	r := m.round(reserve(1, tokens))
	require.Len(t, r.Granted, 1)
	first := r.Granted[0].Slabs
	require.Len(t, first, 2+6, "its state first")
	require.Zero(t, r.Granted[0].CopyTokens)
	r = m.round(&msg.KVRound{Lend: []msg.Lend{{Seq: 1, Tokens: 32}, {Seq: 9, Tokens: 16}}})
	require.Len(t, r.Lent, 2)
	require.Equal(t, msg.Lent{Seq: 9, Tokens: 16}, r.Lent[1], "which nobody knows")
	lent := r.Lent[0].Slabs
	require.Len(t, lent, 2)
	m.round(&msg.KVRound{Commit: []msg.Commit{{Seq: 1, Tokens: tokens[:32], State: true}}, Lend: []msg.Lend{{Seq: 1, Tokens: 64}}})
	m.round(&msg.KVRound{Commit: []msg.Commit{{Seq: 1, Tokens: tokens[:64]}}})
	r = m.round(reserve(2, append(tokens[:40:40], 1, 2, 3)))
	require.Len(t, r.Granted, 1)
	g := r.Granted[0]
	require.Equal(t, 32, g.Computed)
	require.Equal(t, lent, g.CopyFrom)
	require.Equal(t, g.Slabs[:2], g.CopyTo)
	require.Equal(t, 16, g.CopyTokens)
	require.Equal(t, first[2:4], g.Slabs[2:4])
	require.Zero(t, g.Branch, "32 tokens are few")
	m.round(&msg.KVRound{Commit: []msg.Commit{{Seq: 1, Tokens: tokens, Tail: true, State: true}}, Release: []msg.SeqID{1}})
	r = m.round(reserve(3, append(tokens[:90:90], 1)))
	require.Equal(t, 90, r.Granted[0].Computed)
	require.Equal(t, first[:2], r.Granted[0].CopyFrom[:2], "the state of the first sequence, which has ended")
	m.round(&msg.KVRound{Release: []msg.SeqID{2, 3}})
	s, err := m.State(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "ok", s.Check)
	require.Equal(t, 40, s.Stats.Free)
	require.Equal(t, 6+4, s.Stats.Cached)
}

// stateful makes sequences keep a state of two slabs.
func stateful(c *Config) {
	c.Slabs, c.KV = testSlabs, kvmgr.NewSpec(16, kvmgr.Full{}, kvmgr.State{Slabs: 2, Every: 32})
}

func newStatefulPair(t *testing.T) *pair {
	return newPairWith(t, equals, func(_ int, c *Config) { stateful(c) })
}

// snapshot keeps the state of a sequence of the first manager after its first tokens. Its slabs hold a mark.
func (p *pair) snapshot(seq msg.SeqID, tokens []int32, mark byte) {
	p.t.Helper()
	r := p.round(0, &msg.KVRound{Lend: []msg.Lend{{Seq: seq, Tokens: len(tokens)}}})
	p.marks(0, r.Lent[0].Slabs, mark)
	p.system.Root.Send(p.managers[0].PID(), &msg.KVCopied{Copies: 1})
	p.round(0, &msg.KVRound{Commit: []msg.Commit{{Seq: seq, Tokens: tokens, State: true}}})
}

// marks writes a state to slabs.
func (p *pair) marks(at int, slabs []int32, mark byte) {
	p.t.Helper()
	require.Len(p.t, slabs, 2)
	for i, id := range slabs {
		p.memories[at].slabs[id] = [testBytes]byte{mark, byte(i)}
	}
}

// retires is the end of a sequence of the first manager: its state is offered too.
func (p *pair) retires(seq msg.SeqID, tokens []int32, mark byte) {
	p.t.Helper()
	state, err := p.managers[0].State(p.t.Context(), false)
	require.NoError(p.t, err)
	for _, r := range state.Regions {
		if r.Seq == kvmgr.Seq(seq) {
			p.marks(0, []int32{r.Slabs[0].First, r.Slabs[0].First + 1}, mark)
		}
	}
	p.round(0, &msg.KVRound{Commit: []msg.Commit{{Seq: seq, Tokens: tokens, Tail: true, State: true}}, Release: []msg.SeqID{seq}})
}

// beginsAt says how many tokens a sequence finds at the second manager, and the mark of the state after them.
func (p *pair) beginsAt(seq msg.SeqID, tokens []int32) (n int, mark byte) {
	p.t.Helper()
	r := p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: len(tokens) + 10, Promise: len(tokens) + 10, Lease: len(tokens),
		Known: tokens, Space: "a"}}})
	require.Len(p.t, r.Granted, 1)
	g := r.Granted[0]
	p.clean(1)
	if g.Computed == 0 {
		require.Empty(p.t, g.CopyFrom)
		return 0, 0
	}
	require.Equal(p.t, g.Slabs[:2], g.CopyTo[:2])
	for i, id := range g.CopyFrom[:2] {
		require.Equal(p.t, byte(i), p.memories[1].slabs[id][1])
		mark = p.memories[1].slabs[id][0]
	}
	require.Equal(p.t, mark, p.memories[1].slabs[g.CopyFrom[0]][0])
	for i := range g.Computed / 16 { // of the tokens, whose places follow those of the state
		require.Equal(p.t, byte(2+i), p.memories[1].slabs[g.Slabs[2+i]][1])
	}
	return g.Computed, mark
}

func TestAStateFollowsItsSequence(t *testing.T) {
	p := newStatefulPair(t)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens[:40])
	require.Equal(t, 32, p.prefetch(1, "a", tokens[:40]), "the state is of no token that others begin with")
	p.imports(1, "a", tokens[:40])
	p.settle() // the request waits for the end there
	p.retires(1, tokens[:39], 7)
	next[*msg.Imported](p)
	n, mark := p.beginsAt(101, tokens[:40])
	require.Equal(t, 39, n)
	require.Equal(t, byte(7), mark)
	require.Equal(t, int64(3), p.fetches.Load(), "of what the running sequence had, of the state, and of the last slab")
	p.clean(0)
}

// TestTheLastStateThatIsOfKnownTokensFollows: one of later tokens is of no use, nor one of the last known token, which is computed.
func TestTheLastStateThatIsOfKnownTokensFollows(t *testing.T) {
	for _, end := range []int{40, 41, 44} {
		p := newStatefulPair(t)
		tokens := prompt(100, 60)
		p.runs(1, "a", tokens[:45])
		p.snapshot(1, tokens[:32], 6)
		p.retires(1, tokens[:end], 7)
		p.imports(1, "a", tokens[:40])
		next[*msg.Imported](p)
		n, mark := p.beginsAt(101, tokens[:40])
		require.Equal(t, 32, n, end)
		require.Equal(t, byte(6), mark, end)
		p.clean(0)
	}
}

// TestAStateOfTheTokenThatIsComputedIsNotUsed, whoever sends it.
func TestAStateOfTheTokenThatIsComputedIsNotUsed(t *testing.T) {
	p := newStatefulPair(t)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens[:40])
	p.retires(1, tokens[:39], 7)
	p.change = func(m *msg.Slab) *msg.Slab {
		m.Have++
		return m
	}
	p.imports(1, "a", tokens[:40])
	next[*msg.Imported](p)
	n, _ := p.beginsAt(101, tokens[:40])
	require.Zero(t, n)
}

func TestWithoutAStateNothingFollows(t *testing.T) {
	p := newStatefulPair(t)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens[:45])
	p.retires(1, tokens[:44], 7)
	p.imports(1, "a", tokens[:40])
	next[*msg.Imported](p)
	n, _ := p.beginsAt(101, tokens[:40])
	require.Zero(t, n)
}

// TestAStateThatChangedOnItsWayIsNotUsed: a bit, or the tokens that a part of it is of.
func TestAStateThatChangedOnItsWayIsNotUsed(t *testing.T) {
	for _, change := range []func(*msg.Slab){
		func(m *msg.Slab) {
			m.Data = bytes.Clone(m.Data)
			m.Data[3] ^= 1
		},
		func(m *msg.Slab) { m.Have -= 7 },
		func(m *msg.Slab) { m.Have++ },
	} {
		p := newStatefulPair(t)
		tokens := prompt(100, 60)
		p.runs(1, "a", tokens)
		p.retires(1, tokens[:50], 7)
		p.change = func(m *msg.Slab) *msg.Slab {
			if m.Index == 1 {
				change(m)
			}
			return m
		}
		p.imports(1, "a", tokens)
		next[*msg.Imported](p)
		n, _ := p.beginsAt(101, tokens)
		require.Zero(t, n)
	}
}

// TestTheSlabsOfAnotherStateAreNotUsed: the source gave back what it had sent a part of, and has an earlier state.
func TestTheSlabsOfAnotherStateAreNotUsed(t *testing.T) {
	p := newStatefulPair(t)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.retires(1, tokens[:50], 7)
	p.change = func(m *msg.Slab) *msg.Slab {
		if m.Index == 2+3 {
			m.Have = 49
		}
		return m
	}
	p.imports(1, "a", tokens)
	next[*msg.Imported](p)
	n, _ := p.beginsAt(101, tokens)
	require.Zero(t, n, "the last slab has too few tokens for it")
}

// inherits continues a sequence of the first manager, which is dead, at the second one.
func (h *heirs) inherits(seq msg.SeqID, tokens []int32) (n int, mark byte) {
	h.t.Helper()
	source := msg.Source{KV: actor.NewPID(node(0), msg.KVActor), Seq: seq, Dead: true, Complete: true}
	g := &msg.Generate{Seq: seq + 100, Prompt: tokens[:10], Generated: tokens[10:], Tenant: "a", Source: &source}
	h.system.Root.Send(h.managers[1].PID(), &msg.Import{Reply: h.self, Generate: g})
	imported := next[*msg.Imported](h.pair)
	n, mark = h.beginsAt(seq+100, tokens)
	require.Equal(h.t, n > 0, imported.Adopted)
	return n, mark
}

// TestAStateThatWasKeptIsAdopted, and not the one that a step may have begun to change.
func TestAStateThatWasKeptIsAdopted(t *testing.T) {
	h := newHeirsWith(t, equals, stateful)
	tokens := prompt(100, 60)
	h.runs(1, "a", tokens[:40])
	h.snapshot(1, tokens[:32], 6)
	h.runs(2, "a", prompt(500, 60)) // keeps none
	h.die(0)
	n, mark := h.inherits(1, tokens[:40])
	require.Equal(t, 32, n)
	require.Equal(t, byte(6), mark)
	n, _ = h.inherits(2, prompt(500, 60))
	require.Zero(t, n)
}

// TestTheNextTurnFindsTheStateOfADeadWorker: its answer ended inside a slab.
func TestTheNextTurnFindsTheStateOfADeadWorker(t *testing.T) {
	h := newHeirsWith(t, equals, stateful)
	tokens := prompt(100, 60)
	h.runs(1, "a", tokens)
	h.retires(1, tokens[:55], 7)
	h.die(0)
	h.beginsAnew(8, "a", append(tokens[:55:55], 1, 2, 3))
	n, mark := h.beginsAt(8, append(tokens[:55:55], 1, 2, 3))
	require.Equal(t, 55, n)
	require.Equal(t, byte(7), mark)
}

// TestSlabsThatWereLentAreNotAdopted: the copy of a state may not be there.
func TestSlabsThatWereLentAreNotAdopted(t *testing.T) {
	h := newHeirsWith(t, equals, stateful)
	tokens := prompt(100, 60)
	h.runs(1, "a", tokens[:20])
	h.snapshot(1, tokens[:16], 5)
	h.round(0, &msg.KVRound{Extend: []msg.Extend{{Seq: 1, UpTo: 30, Promise: 30}}})
	r := h.round(0, &msg.KVRound{Commit: []msg.Commit{{Seq: 1, Tokens: tokens[:30]}}, Lend: []msg.Lend{{Seq: 1, Tokens: 32}}})
	require.Len(t, r.Lent[0].Slabs, 2)
	h.die(0)
	n, mark := h.inherits(1, tokens[:34])
	require.Equal(t, 16, n)
	require.Equal(t, byte(5), mark)
}

// TestASequenceThatLeftKeepsItsSlabsUntilTheyAreCopied: others need all of the source's memory.
func TestASequenceThatLeftKeepsItsSlabsUntilTheyAreCopied(t *testing.T) {
	p := newStatefulPair(t)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	require.Equal(t, 48, p.prefetch(1, "a", tokens))
	p.retires(1, tokens[:59], 7)
	large := func(seq msg.SeqID) *msg.KVRound {
		return p.round(0, &msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: 38 * 16, Promise: 38 * 16, Lease: 38 * 16,
			Known: prompt(900, 30), Space: "b"}}})
	}
	require.Len(t, large(5).Denied, 1)
	p.imports(1, "a", tokens)
	next[*msg.Imported](p)
	n, mark := p.beginsAt(101, tokens)
	require.Equal(t, 59, n)
	require.Equal(t, byte(7), mark)
	p.settle() // the second manager needs nothing more
	require.Len(t, large(6).Granted, 1)
}

// TestASequenceThatLeftKeepsItsSlabsBriefly, if nobody copies them.
func TestASequenceThatLeftKeepsItsSlabsBriefly(t *testing.T) {
	p := newStatefulPair(t)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	require.Equal(t, 48, p.prefetch(1, "a", tokens))
	p.retires(1, tokens[:59], 7)
	require.Eventually(t, func() bool { return p.managers[0].Stats().Regions == 0 }, 20*time.Second, time.Millisecond)
	p.clean(0)
}
