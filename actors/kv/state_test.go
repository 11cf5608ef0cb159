package kv

import (
	"testing"

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
