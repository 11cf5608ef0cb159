package simulate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/simulate"
)

// long is a workload of long prompts for four workers.
func long(t *testing.T) (simulate.Config, simulate.Workload) {
	c, w := fleet(t), workload()
	c.Workers, c.Slabs, c.Sched.MaxWaiting = 4, 3000, 1000
	c.Sched.Predict, c.Sched.MaxBatchTokens, c.Sched.ChunkTokens = true, 512, 256
	w.Requests, w.QPS = 600, 6
	w.Prompt, w.Output = simulate.LogNormal{Mean: 1500, Sigma: 0.5, Max: 2000}, simulate.LogNormal{Mean: 100, Sigma: 0.5, Max: 2000}
	return c, w
}

// TestDecodeWorkersProtectGapsFromPrompts: the gaps at decode workers have no prompt's rows in them.
func TestDecodeWorkersProtectGapsFromPrompts(t *testing.T) {
	c, w := long(t)
	together := run(t, c, w)
	c.Prefill, c.Device.HandoverGBps = 2, 12.5
	apart := run(t, c, w)
	for _, r := range []*simulate.Report{together, apart} {
		t.Logf("%s: TTFT %+v, gap %+v, %d hand-overs", r.Division(), r.TTFT, r.Gap, r.Handovers)
		require.Equal(t, w.Requests, r.Served)
		require.Zero(t, r.Recomputed)
	}
	require.Zero(t, together.Handovers)
	require.Greater(t, apart.Handovers, 9*w.Requests/10, "short answers end before they leave")
	require.Less(t, apart.Gap.P95, 0.7*together.Gap.P95)
	require.Equal(t, text(t, apart), text(t, run(t, c, w)))
	c.Device.HandoverGBps = 1
	require.Less(t, run(t, c, w).Handovers, w.Requests/10, "copies wait for each other, and answers end meanwhile")
}

// One request alone: the gap at its hand-over is the copy of its last slabs, after at most a step and before another one.
func TestAHandOverTakesTheTimeOfItsBytes(t *testing.T) {
	c, w := long(t)
	c.Workers, c.Prefill = 2, 1
	w.Requests, w.QPS = 20, 0.05
	w.Prompt, w.Output = simulate.LogNormal{Mean: 500, Max: 500}, simulate.LogNormal{Mean: 90, Max: 90}
	timer := sim.NewTimer(c.Program, c.Device, 1, 1)
	timer.Begin()
	timer.Add(1, 550, 1)
	step := timer.End().Device
	for _, gbps := range []float64{0.5, 2} {
		c.Device.HandoverGBps = gbps
		r := run(t, c, w)
		t.Logf("%g GB/s: step %g, gap %+v", gbps, step, r.Gap)
		require.Equal(t, w.Requests, r.Handovers)
		require.InEpsilon(t, step, r.Gap.P50, 0.02)
		slab := float64(sim.SlabBytes(c.Program)) / gbps / 1e9
		require.Greater(t, r.Gap.P99, slab+step)
		require.Less(t, r.Gap.P99, 4*slab+2.1*step)
		require.Zero(t, r.Recomputed)
	}
}

// TestSequencesStayAtPrefillWorkersWithoutRoomElsewhere: and all end, whatever is given back for others, with each admission.
func TestSequencesStayAtPrefillWorkersWithoutRoomElsewhere(t *testing.T) {
	for _, admission := range []simulate.Admission{simulate.Context, simulate.Declared, simulate.Predicted, simulate.Spill} {
		for _, slabs := range []int{270, 300, 600} {
			c, w := long(t)
			c.Workers, c.Prefill, c.Slabs, c.Slots, c.Admission = 3, 2, slabs, 200, admission
			c.Device.HandoverGBps = 0.3
			w.Requests, w.QPS, w.MaxTokens = 200, 1000, 2048
			w.Prompt, w.Output = simulate.LogNormal{Mean: 300, Sigma: 1, Max: 2000}, simulate.LogNormal{Mean: 700, Sigma: 0.3, Max: 2048}
			r := run(t, c, w)
			t.Logf("%s, %d slabs: %d hand-overs, %d tokens recomputed, %+v, paused %.3f", admission, slabs, r.Handovers, r.Recomputed,
				r.Tier, r.Paused)
			require.Equal(t, w.Requests, r.Served)
			require.Positive(t, r.Handovers)
			require.Less(t, r.Handovers, w.Requests, "there is no room for all")
		}
	}
}

func TestDivisionsThatCannotServeAreRefused(t *testing.T) {
	for prefill, want := range map[int]string{4: "4 prefill workers of 4", -1: "-1 prefill workers", 1: "one with hand-over"} {
		c, w := long(t)
		c.Prefill, c.Admission = prefill, simulate.Recompute
		var err error
		c.Requests, err = w.Source()
		require.NoError(t, err)
		_, err = simulate.Run(c)
		require.ErrorIs(t, err, simulate.ErrConfig)
		require.ErrorContains(t, err, want)
	}
}
