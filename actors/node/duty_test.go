package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
)

const dividedTokens = 400

// divided starts streams at a cluster with a prefill and a decode worker, and returns when the latter has made some steps.
func divided(t *testing.T) (prefill, decode *node, streams []api.Stream) {
	t.Helper()
	c := newTestNodes(t)
	gateway := c.start(nil, cluster.Gateway, cluster.Tokenize, cluster.Detok)
	prefill, decode = c.start(roomy, cluster.Prefill), c.start(roomy, cluster.Decode)
	gateway.sees(t, 2)
	paced(t, []*node{prefill, decode})
	return prefill, decode, pooled(t, gateway, []*node{prefill, decode}, 12, dividedTokens)
}

func TestSequencesMoveFromAPrefillToADecodeWorker(t *testing.T) {
	prefill, decode, streams := divided(t)
	require.Eventually(t, func() bool { return prefill.worker.InFlight() == 0 }, patience, time.Millisecond)
	require.Positive(t, decode.worker.InFlight(), "they end there")
	requirePooled(t, decode.device, streams, dividedTokens)
	for _, n := range []*node{prefill, decode} {
		require.Zero(t, n.counter(t, "millrace_recomputed_tokens_total"))
		require.Zero(t, n.counter(t, "millrace_handover_failures_total"))
		requireClean(t, n.Node, n.device)
	}
	require.GreaterOrEqual(t, decode.counter(t, "millrace_handover_tokens_total"), float64(100*len(streams)))
}

func TestNoStreamIsLostWithItsPrefillOrDecodeWorker(t *testing.T) {
	for _, victim := range []cluster.Role{cluster.Prefill, cluster.Decode} {
		t.Run(string(victim), func(t *testing.T) {
			dies, lives, streams := divided(t) // while sequences move
			if victim == cluster.Decode {
				dies, lives = lives, dies
			}
			dies.conn.Close()
			requirePooled(t, lives.device, streams, dividedTokens)
			requireClean(t, lives.Node, lives.device)
		})
	}
}

func TestAStreamThatIsCancelledWhileItMovesLeavesNothing(t *testing.T) {
	prefill, decode, streams := divided(t)
	for _, s := range streams {
		s.Close()
	}
	for _, n := range []*node{prefill, decode} {
		require.Eventually(t, func() bool { return n.worker.InFlight() == 0 }, patience, time.Millisecond)
		requireClean(t, n.Node, n.device)
	}
}
