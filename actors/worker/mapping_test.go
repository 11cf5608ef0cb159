package worker

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/computetest"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/tracing"
)

func newIdleLoop(t *testing.T, cfg Config) *loop {
	t.Helper()
	cfg.Runner, cfg.Tracer = computetest.NewNull(64, 4096, 1), tracing.Off()
	cfg.Sched = sched.Config{MaxBatchTokens: 64, MaxBatchSize: 8, MaxSequenceTokens: 2048, KV: kvmgr.NewSpec(16, kvmgr.Full{}),
		LeaseAheadTokens: 32}
	s, err := sched.New(cfg.Sched)
	require.NoError(t, err)
	return newLoop(cfg, s) // one that does not run
}

// TestASpillIsNotSentAfterTheEndOfItsSequence: the KV manager does not know the sequence then. Its region was unmapped in the
// round of its end.
func TestASpillIsNotSentAfterTheEndOfItsSequence(t *testing.T) {
	l := newIdleLoop(t, Config{})
	s := &sequence{gen: &msg.Generate{Seq: 7}, spilled: 30}
	l.closed(s)
	l.closed(&sequence{gen: &msg.Generate{Seq: 8}, spilled: 20})
	l.mapping.unspill(7)
	require.Equal(t, []msg.Spill{{Seq: 8, Tokens: 20}}, l.mapping.spills)
}

// TestBeamsAreBackedOnceEachHasASlab counts the tokens of each beam that mapped slabs hold.
func TestBeamsAreBackedOnceEachHasASlab(t *testing.T) {
	b := &beams{rows: compute.Beams{Prompt: 20, Responses: make([]compute.Region, 3)}}
	for slabs, tokens := range []int{0, 16, 20, 20, 20, 36, 36, 36, 52} {
		require.Equal(t, tokens, b.backed(slabs, 16), "%d slabs", slabs)
	}
}
