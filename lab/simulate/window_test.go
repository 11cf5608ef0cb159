package simulate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/lab/simulate"
)

// windowed makes the tokens of a fleet see 256 tokens, in steps of 128: a sequence has 34 slabs at once at most.
func windowed(c *simulate.Config) {
	c.Sched.MaxBatchSize, c.Sched.MaxBatchTokens = 128, 128
	c.Sched.KV = kvmgr.NewSpec(16, kvmgr.Window{Tokens: 256, Live: kvmgr.LiveSlabs(256, 2*128, 16)})
}

// TestAWindowHoldsMoreSequences: each declares 2,048 tokens, and needs a quarter of their slabs at once.
func TestAWindowHoldsMoreSequences(t *testing.T) {
	of := map[bool]*simulate.Report{}
	for _, window := range []bool{false, true} {
		c, w := declares(t)
		c.Admission, c.Slabs, w.Requests, w.QPS = simulate.Declared, 1400, 1000, 1000
		if windowed(&c); !window {
			c.Sched.KV = kvmgr.NewSpec(16, kvmgr.Full{})
		}
		of[window] = run(t, c, w)
		require.Equal(t, w.Requests, of[window].Served)
	}
	t.Logf("sequences: %.0f with all slabs, %.0f with a window", of[false].Waiting.Sequences, of[true].Waiting.Sequences)
	require.Greater(t, of[true].Waiting.Sequences, 3*of[false].Waiting.Sequences)
}

// TestEveryRequestWithAWindowEnds: in a pool that is smaller than some of them, and with hand-overs.
func TestEveryRequestWithAWindowEnds(t *testing.T) {
	for _, admission := range simulate.Admissions() {
		for _, workers := range []int{1, 3} {
			if admission == simulate.Recompute {
				continue // it keeps all slabs
			}
			c, w := declares(t)
			windowed(&c)
			c.Admission, c.Slabs, c.Workers, w.Requests, w.QPS = admission, 100, workers, 300, 1000
			c.Prefill = workers / 2
			w.Output = simulate.LogNormal{Mean: 700, Sigma: 0.3, Max: 2048}
			r := run(t, c, w)
			require.Equal(t, w.Requests, r.Served, admission)
			require.Equal(t, text(t, r), text(t, run(t, c, w)), admission)
		}
	}
}
