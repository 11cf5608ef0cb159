package kv

import (
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
)

// grouped makes layers be in three groups, of which two see 20 tokens. A sequence has six slabs of these at once at most.
func grouped(c *Config) {
	window := kvmgr.Window{Tokens: 20, Live: kvmgr.LiveSlabs(20, 32, 16)}
	c.Slabs, c.KV = testSlabs, kvmgr.NewSpec(16, kvmgr.Full{}, window, window)
}

// places begins a sequence at the second manager, and says which places of the first sequence's list its slabs have the contents of. All
// but the last token are computed.
func (p *pair) places(seq, first msg.SeqID, tokens []int32) (places []int) {
	p.t.Helper()
	r := p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: len(tokens) + 10, Promise: len(tokens) + 10, Lease: len(tokens),
		Known: tokens, Space: "a"}}})
	require.Len(p.t, r.Granted, 1)
	g := &r.Granted[0]
	require.Equal(p.t, len(tokens)-1, g.Computed)
	require.Zero(p.t, g.First)
	for place, id := range g.Slabs[:g.Computed/16*3] {
		if id >= 0 {
			require.Equal(p.t, []byte{byte(first), byte(place)}, p.memories[1].slabs[id][:2], "place %d", place)
			places = append(places, place)
		}
	}
	require.Equal(p.t, (g.Computed % 16), g.CopyTokens)
	require.Len(p.t, g.CopyTo, 3, "one of each group")
	for i, id := range g.CopyFrom {
		require.Equal(p.t, []byte{byte(first), byte(g.Computed/16*3 + i)}, p.memories[1].slabs[id][:2])
	}
	p.clean(1)
	return places
}

// TestSlabsOfAllGroupsFollowTheirSequence: those of the full group, and the last windows of the others.
func TestSlabsOfAllGroupsFollowTheirSequence(t *testing.T) {
	p := newPairWith(t, equals, func(_ int, c *Config) { grouped(c) })
	tokens, slabs := prompt(100, 88), 0
	p.change = func(m *msg.Slab) *msg.Slab {
		if len(m.Data) > 0 {
			slabs++
		}
		return m
	}
	p.runs(1, "a", tokens)
	require.Equal(t, 80, p.prefetch(1, "a", tokens), "the last slabs are still written")
	require.Equal(t, 5+2*2, slabs, "token 87 sees 68, and a slab more is from 52 on")
	p.imports(1, "a", tokens)
	p.settle()
	p.ends(1, tokens)
	require.Equal(t, msg.SeqID(101), next[*msg.Imported](p).Generate.Seq)
	require.Equal(t, 6+2*3, slabs)
	require.Equal(t, []int{0, 3, 6, 9, 12, 13, 14}, p.places(101, 1, tokens))
	p.clean(0)
}

func TestTheSlabsOfAllGroupsAreAdopted(t *testing.T) {
	h := newHeirsWith(t, equals, grouped)
	tokens := prompt(100, 88)
	h.runs(1, "a", tokens)
	h.die(0)
	source := msg.Source{KV: actor.NewPID(node(0), msg.KVActor), Seq: 1, Dead: true, Complete: true}
	h.system.Root.Send(h.managers[1].PID(), &msg.Import{Reply: h.self,
		Generate: &msg.Generate{Seq: 101, Prompt: tokens[:10], Generated: tokens[10:], Tenant: "a", Source: &source}})
	require.True(t, next[*msg.Imported](h.pair).Adopted)
	require.Equal(t, []int{0, 3, 6, 9, 12, 13, 14}, h.places(101, 1, tokens))
}
