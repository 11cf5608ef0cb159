package kv

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
)

// newStatefulDiskWorker is a diskWorker whose sequences keep states of two slabs. sole: its slabs of tokens hold nothing.
func newStatefulDiskWorker(t *testing.T, sole bool) *diskWorker {
	w := &diskWorker{t: t, dir: t.TempDir(), change: func(s Store) Store { return s },
		states: []kvmgr.Group{kvmgr.State{Slabs: 2, Every: 32, Sole: sole}}}
	w.start()
	t.Cleanup(func() { w.closes() })
	return w
}

// keeps is a sequence from its begin to its end. Its tokens, and its states after whole of them and after all but the last one, which are
// kept, are marked. It returns the tokens that it did not compute.
func (w *diskWorker) keeps(seq msg.SeqID, tokens []int32, whole int) int {
	w.t.Helper()
	g := w.reserve(seq, "a", tokens)
	sole := w.states[0].(kvmgr.State).Sole
	mark := func(n int) byte { return byte(n) + byte(tokens[0]) }
	if g.CopyTokens > 0 { // without a copy the sequence has the slabs of the state, or there is no state
		for i, to := range g.CopyTo {
			w.memory.slabs[to] = w.memory.slabs[g.CopyFrom[i]]
		}
		w.root.Send(w.PID(), &msg.KVCopied{Copies: 1})
	}
	for i, slab := range g.Slabs {
		want := [testBytes]byte{mark(g.Computed), byte(i), 7}
		at := i - 2
		if at >= 0 {
			want = [testBytes]byte{byte(tokens[0]), byte(at), 1, 2, 3}
		}
		switch {
		case g.Computed == 0 || at >= 0 && (sole || at >= (g.Computed+15)/16):
		default:
			require.Equal(w.t, want, w.memory.slabs[slab], "place %d of %d tokens", i, g.Computed)
		}
		w.memory.slabs[slab] = want
	}
	if whole > 0 {
		r := w.round(&msg.KVRound{Lend: []msg.Lend{{Seq: seq, Tokens: whole}}})
		for i, slab := range r.Lent[0].Slabs {
			w.memory.slabs[slab] = [testBytes]byte{mark(whole), byte(i), 7}
		}
		w.root.Send(w.PID(), &msg.KVCopied{Copies: 1})
		w.round(&msg.KVRound{Commit: []msg.Commit{{Seq: seq, Tokens: tokens[:whole], State: true}}})
	}
	n := len(tokens) - 1
	for i, slab := range g.Slabs[:2] {
		w.memory.slabs[slab] = [testBytes]byte{mark(n), byte(i), 7}
	}
	w.round(&msg.KVRound{Commit: []msg.Commit{{Seq: seq, Tokens: tokens[:n], Tail: true, State: true}}, Release: []msg.SeqID{seq}})
	return g.Computed
}

func TestAStateReturnsAfterARestart(t *testing.T) {
	for _, sole := range []bool{false, true} {
		w := newStatefulDiskWorker(t, sole)
		tokens := prompt(100, 61)
		require.Zero(t, w.keeps(1, tokens, 32))
		w.restart()
		stored := 4 + 2*2 // slabs of 60 tokens, and of the states after 32 and 60
		if sole {
			stored = 2 * 2
		}
		require.Equal(t, stored, w.store.Stats().Slabs)
		require.Equal(t, 60, w.keeps(2, append(tokens[:60:60], 1, 2, 3), 0), "the next turn")
		require.Equal(t, 60, w.keeps(3, append(tokens[:60:60], 5, 6, 7), 0), "it is in memory now")
		w.restart()
		require.Equal(t, 62, w.keeps(4, append(tokens[:60:60], 1, 2, 9), 0))
		w.restart()
		require.Equal(t, 32, w.keeps(5, append(tokens[:50:50], 1, 2, 3), 0), "where the state after the first slabs is")
		w.restart()
		require.Zero(t, w.keeps(6, append(tokens[:31:31], 1, 2, 3), 0))
		w.restart()
		require.Zero(t, w.reserve(7, "b", tokens).Computed, "another tenant's")
		w.round(&msg.KVRound{Release: []msg.SeqID{7}})
		require.Zero(t, w.state().Stats.Regions)
		require.Empty(t, w.log.String())
	}
}

// TestAnEvictedStateReturns: the pool holds less than the conversations that take turns.
func TestAnEvictedStateReturns(t *testing.T) {
	w := newStatefulDiskWorker(t, false)
	for n := range 12 {
		computed := w.keeps(msg.SeqID(n+1), prompt(100+n%3*50, 90), 64)
		require.NoError(t, w.Flush())
		if n >= 3 {
			require.Equal(t, 89, computed, "turn %d", n)
		}
	}
	w.state()
}

// TestAStateThatCannotBeReadIsComputed, whichever of its slabs and of those of its tokens it is.
func TestAStateThatCannotBeReadIsComputed(t *testing.T) {
	for good := range 6 {
		w := newStatefulDiskWorker(t, false)
		tokens := prompt(100, 61)
		w.keeps(1, tokens, 0)
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
		next := append(tokens[:60:60], 1, 2, 3)
		require.Zero(t, w.keeps(2, next, 0), "%d slabs came", good)
		require.Equal(t, []float64{float64(good), float64(6 - good), 1}, w.counts())
		require.Equal(t, 62, w.keeps(3, append(next[:62:62], 5, 6), 0))
		require.Contains(t, w.log.String(), "computed again")
		require.Zero(t, w.state().Stats.Regions)
	}
}

// TestOthersWaitForTheLoadOfAState: they neither load nor compute what is on its way, and continue when it ends, or when the memory is
// lost.
func TestOthersWaitForTheLoadOfAState(t *testing.T) {
	for _, lost := range []bool{false, true} {
		w := newStatefulDiskWorker(t, false)
		tokens := prompt(100, 61)
		w.keeps(1, tokens, 0)
		held := make(chan struct{})
		w.change = func(s Store) Store { return &testStore{Store: s, read: func() error { <-held; return nil }} }
		w.restart()
		list := []msg.Reserve{
			{Seq: 2, Tokens: 70, Promise: 70, Lease: 63, Known: append(tokens[:60:60], 1, 2, 3), Space: "a"},
			{Seq: 3, Tokens: 70, Promise: 70, Lease: 63, Known: append(tokens[:60:60], 5, 6, 7), Space: "a"},
		}
		require.Equal(t, []msg.SeqID{2, 3}, parked(w.round(&msg.KVRound{Reserve: list})))
		require.Equal(t, loadAhead, w.state().Disk.Reading, "of one load")
		if want := 60; lost {
			require.Equal(t, []msg.SeqID{2, 3}, w.round(&msg.KVRound{Forget: true}).Ready)
			r := w.round(&msg.KVRound{Reserve: list[:1]})
			require.Len(t, r.Granted, 1)
			require.Zero(t, r.Granted[0].Computed)
			close(held)
		} else {
			close(held)
			require.Equal(t, []msg.SeqID{2, 3}, []msg.SeqID{get(t, w.ready), get(t, w.ready)})
			r := w.round(&msg.KVRound{Reserve: list[:1]})
			require.Len(t, r.Granted, 1)
			require.Equal(t, want, r.Granted[0].Computed)
			w.root.Send(w.PID(), &msg.KVCopied{Copies: 1})
		}
		w.round(&msg.KVRound{Release: []msg.SeqID{2}})
		require.Eventually(t, func() bool { return w.state().Stats.Regions == 0 && w.state().Disk.Reading == 0 }, 20*time.Second,
			time.Millisecond)
	}
}

// TestAStateOnADiskThatHangsIsComputed.
func TestAStateOnADiskThatHangsIsComputed(t *testing.T) {
	w := newStatefulDiskWorker(t, false)
	tokens := prompt(100, 61)
	w.keeps(1, tokens, 0)
	held := make(chan struct{})
	w.change = func(s Store) Store { return &testStore{Store: s, read: func() error { <-held; return nil }} }
	w.restart()
	require.Zero(t, w.keeps(2, append(tokens[:60:60], 1, 2, 3), 0))
	close(held)
	require.Eventually(t, func() bool { return w.state().Disk.Reading == 0 && w.state().Stats.Regions == 0 }, 20*time.Second,
		time.Millisecond)
}
