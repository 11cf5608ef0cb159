package kv

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
)

// These managers are of a model whose tokens see 20 tokens: six slabs live at once.
const testWindow = 20

// TestOnlyTheLastWindowOfADeadWorkerIsAdopted: another sequence has overwritten the slabs before it.
func TestOnlyTheLastWindowOfADeadWorkerIsAdopted(t *testing.T) {
	kv := kvmgr.NewSpec(16, kvmgr.Window{Tokens: testWindow, Live: kvmgr.LiveSlabs(testWindow, 32, 16)})
	h := newHeirsWith(t, equals, func(c *Config) { c.KV = kv })
	tokens := prompt(100, 90)
	h.runs(1, "a", tokens)
	r := h.round(0, &msg.KVRound{Extend: []msg.Extend{{Seq: 1, UpTo: 100, Promise: 100, From: kv.FirstKept(90)}}})
	require.Len(t, r.Granted[0].Slabs, 1)
	cached := func(n int) { // counted after the answer
		require.Eventually(t, func() bool { return h.managers[0].Stats().Cached == n }, 5*time.Second, time.Millisecond, "%d slabs", n)
	}
	cached(3)
	h.runs(2, "a", prompt(1000, 90)) // six slabs: the ones that are free, and those before the window
	cached(0)
	h.die(0)
	n, first := h.adopt(1, "a", true, tokens)
	require.Equal(t, 89, n)
	require.Equal(t, []byte{1, 4}, first, "token 89 sees slabs 4 and 5, the second one is not full")
}

func TestOnlyTheLastWindowReturnsFromTheDisk(t *testing.T) {
	w := &diskWorker{t: t, dir: t.TempDir(), window: testWindow, change: func(s Store) Store { return s }}
	w.start()
	t.Cleanup(func() { w.closes() })
	tokens := prompt(100, 90)
	require.Zero(t, w.runs(1, "a", tokens))
	w.restart()
	require.Equal(t, 5, w.store.Stats().Slabs)
	require.Equal(t, 80, w.runs(2, "a", tokens))
	require.InDelta(t, 3, w.counts()[0], 0, "slabs 2 to 4")
	require.Equal(t, 89, w.runs(3, "a", tokens), "it is in memory now")
	require.Empty(t, w.log.String())
}
