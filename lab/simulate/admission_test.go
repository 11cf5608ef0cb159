package simulate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/simulate"
)

// declares is a workload whose clients allow 2,048 tokens and use 200, faster than a worker can serve it.
func declares(t *testing.T) (simulate.Config, simulate.Workload) {
	c, w := fleet(t), workload()
	var err error
	c.Device, _, err = sim.Find("a100-80gb")
	require.NoError(t, err)
	c.Workers, c.Slabs, c.Slots = 1, 7000, 500
	c.Sched.MaxBatchSize, c.Sched.MaxBatchTokens, c.Sched.ChunkTokens, c.Sched.MaxWaiting = 1024, 4096, 0, 10000
	w.Requests, w.QPS, w.MaxTokens = 3000, 60, 2048
	w.Output = simulate.LogNormal{Mean: 200, Sigma: 0.8, Max: 2048}
	return c, w
}

func TestPredictionHoldsTwiceTheSequencesOfDeclaredLengths(t *testing.T) {
	c, w := declares(t)
	of := map[simulate.Admission]*simulate.Report{}
	for _, c.Admission = range simulate.Admissions() {
		r := run(t, c, w)
		t.Logf("%s: %.0f tokens/s, %+v, paused %.4f, preempted %d, recomputed %d",
			c.Admission, r.TokensPerSecond, r.Waiting, r.Paused, r.Preempted, r.Recomputed)
		require.Equal(t, w.Requests, r.Served)
		require.Equal(t, c.Admission, r.Admission)
		require.LessOrEqual(t, r.Waiting.Held, r.Waiting.Reserved)
		require.Greater(t, r.Waiting.Reserved, 0.95, "requests wait although there is room")
		require.Equal(t, c.Admission == simulate.Recompute, r.Recomputed > 0)
		require.Equal(t, c.Admission == simulate.Recompute, r.Preempted > 0)
		of[c.Admission] = r
	}
	longest, declared, recompute, predicted := of[simulate.Context], of[simulate.Declared], of[simulate.Recompute], of[simulate.Predicted]
	require.InDelta(t, 7000*16/4096, longest.Waiting.Sequences, 1)
	require.Greater(t, declared.Waiting.Sequences, 1.5*longest.Waiting.Sequences)
	require.Greater(t, predicted.Waiting.Sequences, 2*declared.Waiting.Sequences)
	require.Greater(t, predicted.Waiting.Held, 0.95)
	require.Greater(t, predicted.TokensPerSecond, 1.3*declared.TokensPerSecond)
	require.Greater(t, recompute.Waiting.Held, 0.95)
	require.Greater(t, predicted.TokensPerSecond, 0.95*recompute.TokensPerSecond)
}

// A pool of a few sequences whose answers are all longer than predicted: some pause, others are preempted.
func TestEveryRequestEndsInASmallPool(t *testing.T) {
	for _, admission := range simulate.Admissions() {
		c, w := declares(t)
		c.Admission, c.Slabs, w.Requests, w.QPS = admission, 270, 300, 1000
		w.Output = simulate.LogNormal{Mean: 700, Sigma: 0.3, Max: 2048}
		r := run(t, c, w)
		require.Equal(t, w.Requests, r.Served, admission)
		require.Equal(t, admission == simulate.Predicted || admission == simulate.Spill, r.Paused > 0, admission)
		require.Equal(t, admission == simulate.Recompute, r.Recomputed > 0, admission)
		require.Equal(t, text(t, r), text(t, run(t, c, w)), admission)
	}
}

// TestATierServesMoreInASmallPoolAndComputesNothingAgain: without it, room for the longest declared answer remains unused.
func TestATierServesMoreInASmallPoolAndComputesNothingAgain(t *testing.T) {
	of := map[simulate.Admission]*simulate.Report{}
	c, w := declares(t)
	c.Slabs, w.Requests, w.QPS = 400, 600, 1000
	for _, c.Admission = range []simulate.Admission{simulate.Predicted, simulate.Spill} {
		r := run(t, c, w)
		t.Logf("%s: %.0f tokens/s, %+v, paused %.4f, %+v", c.Admission, r.TokensPerSecond, r.Waiting, r.Paused, r.Tier)
		require.Equal(t, w.Requests, r.Served)
		require.Zero(t, r.Recomputed)
		require.Zero(t, r.Preempted)
		of[c.Admission] = r
	}
	predicted, spill := of[simulate.Predicted], of[simulate.Spill]
	require.Zero(t, predicted.Tier)
	require.Positive(t, spill.Tier.Restores)
	require.Equal(t, spill.Tier.Spills, spill.Tier.Restores, "each sequence returns")
	require.GreaterOrEqual(t, spill.Tier.Slabs, spill.Tier.Spills)
	require.Greater(t, spill.TokensPerSecond, 1.15*predicted.TokensPerSecond)
	require.Greater(t, spill.Waiting.Held, 1.15*predicted.Waiting.Held)
	c.Device.SpillGBps = 0.02
	slow := run(t, c, w)
	require.Zero(t, slow.Recomputed)
	require.Less(t, slow.TokensPerSecond, 0.9*spill.TokensPerSecond, "copies take the time of their bytes")
}

func TestAnAdmissionIsAmongThoseThatExist(t *testing.T) {
	c, w := declares(t)
	c.Admission = "all"
	var err error
	c.Requests, err = w.Source()
	require.NoError(t, err)
	_, err = simulate.Run(c)
	require.ErrorIs(t, err, simulate.ErrConfig)
	require.ErrorContains(t, err, `"all"`)
	c.Admission, c.Slots = simulate.Spill, 0
	_, err = simulate.Run(c)
	require.ErrorContains(t, err, "0 slots in the tier")
}
