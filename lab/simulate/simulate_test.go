package simulate_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/lab/roofline"
	"github.com/millrace/millrace/lab/simulate"
)

// fleet is one of Llama-2-7B on a device with round numbers.
func fleet(t testing.TB) simulate.Config {
	t.Helper()
	p, err := roofline.PaperModel{Name: "llama-2-7b"}.Program()
	require.NoError(t, err)
	return simulate.Config{
		Program: p, Device: sim.Device{Peak: sim.Peak{ID: "test", GBps: 1000, TFLOPS: 100}},
		Slabs: 2000, Workers: 3, Route: route.Default(), Seed: 5,
		SLO: simulate.SLO{TTFT: 300 * time.Millisecond, TPOT: 30 * time.Millisecond},
		Sched: sched.Config{
			MaxBatchTokens: 256, ChunkTokens: 128, MaxBatchSize: 24, MaxWaiting: 10,
			MaxSequenceTokens: p.MaxPositions, KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 32,
		},
	}
}

func workload() simulate.Workload {
	return simulate.Workload{
		Requests: 1500, QPS: 9, Seed: 3,
		Prompt: simulate.LogNormal{Mean: 161, Sigma: 1, Max: 2000}, Output: simulate.LogNormal{Mean: 101, Sigma: 0.8, Max: 2000},
	}
}

func run(t testing.TB, cfg simulate.Config, w simulate.Workload) *simulate.Report {
	t.Helper()
	var err error
	cfg.Requests, err = w.Source()
	require.NoError(t, err)
	r, err := simulate.Run(cfg)
	require.NoError(t, err)
	return r
}

func text(t *testing.T, r *simulate.Report) string {
	t.Helper()
	b, err := json.Marshal(r)
	require.NoError(t, err)
	return string(b)
}

func TestTheSameSeedGivesTheSameReport(t *testing.T) {
	first := text(t, run(t, fleet(t), workload()))
	require.Equal(t, first, text(t, run(t, fleet(t), workload())))
	other := workload()
	other.Seed++
	require.NotEqual(t, first, text(t, run(t, fleet(t), other)))
}

func TestEveryRequestEndsOnce(t *testing.T) {
	for name, change := range map[string]func(*simulate.Config, *simulate.Workload){
		"light load": func(_ *simulate.Config, w *simulate.Workload) { w.QPS = 1 },
		"overload":   func(_ *simulate.Config, w *simulate.Workload) { w.QPS = 1000 },
		"a pool that holds two": func(c *simulate.Config, w *simulate.Workload) {
			c.Slabs, w.Prompt.Max, w.Output.Max, w.QPS = 251, 1000, 1000, 3
		},
		"sequences larger than the pool": func(c *simulate.Config, _ *simulate.Workload) { c.Slabs = 40 },
		"clients that allow more":        func(_ *simulate.Config, w *simulate.Workload) { w.MaxTokens = 777 },
		"answers of one token":           func(_ *simulate.Config, w *simulate.Workload) { w.Output = simulate.LogNormal{Mean: 1, Max: 1} },
		"a ramp":                         func(c *simulate.Config, w *simulate.Workload) { c.Slices, w.From, w.QPS = 7, 0.5, 40 },
	} {
		t.Run(name, func(t *testing.T) {
			c, w := fleet(t), workload()
			change(&c, &w)
			r := run(t, c, w)
			require.Equal(t, w.Requests, r.Requests)
			require.Equal(t, w.Requests, r.Served+r.RefusedSum())
			require.LessOrEqual(t, r.Good, r.Served)
			require.LessOrEqual(t, r.Busy, 1.0)
			require.LessOrEqual(t, r.BusyBandwidth, 1.0)
			require.LessOrEqual(t, r.KVMax, 1.0)
			if w.QPS == 1000 {
				require.Positive(t, r.Refused["queue-full"])
				require.Greater(t, r.Busy, 0.8) // but for the last answers
			}
			if c.Slabs == 40 {
				require.Positive(t, r.Refused["too-long"])
			}
			sum := 0
			for _, s := range r.Slices {
				sum += s.Served + s.RefusedSum()
			}
			if c.Slices > 0 {
				require.Len(t, r.Slices, 7)
				require.Equal(t, w.Requests, sum)
			}
		})
	}
}

// One request alone: its prompt in one step, then a step for each further token.
func TestAtLightLoadLatenciesAreThoseOfTheSteps(t *testing.T) {
	c, w := fleet(t), workload()
	w.QPS, w.Requests = 0.01, 50
	w.Prompt, w.Output = simulate.LogNormal{Mean: 111, Max: 111}, simulate.LogNormal{Mean: 37, Max: 37}
	r := run(t, c, w)
	timer := sim.NewTimer(c.Program, c.Device, 256, 24)
	timer.Begin()
	timer.Add(111, 0, 1)
	prefill := timer.End().Device
	decode := 0.0
	for i := range 36 {
		timer.Begin()
		timer.Add(1, 111+i, 1)
		decode += timer.End().Device / 36
	}
	for _, q := range []float64{r.TTFT.Mean, r.TTFT.P50, r.TTFT.P99} {
		require.InEpsilon(t, prefill, q, 1e-6)
	}
	for _, q := range []float64{r.TPOT.Mean, r.TPOT.P50, r.TPOT.P99} {
		require.InEpsilon(t, decode, q, 1e-6)
	}
	require.Equal(t, 50*37, r.OutputTokens)
	require.Equal(t, 50*37, r.Steps)
	require.Equal(t, 50, r.Good)
}

// Answers of one token, one at a time: an M/D/1 queue, whose mean wait is
// rho / (2 mu (1 - rho)) (Pollaczek, Khinchine). An arrival sees the step that
// runs to its end, as in the queue.
func TestOneWorkerIsAnMD1Queue(t *testing.T) {
	c, w := fleet(t), workload()
	c.Workers, c.Sched.MaxBatchSize, c.Sched.MaxWaiting = 1, 1, 100000
	w.Requests = 40000
	w.Prompt, w.Output = simulate.LogNormal{Mean: 200, Max: 200}, simulate.LogNormal{Mean: 1, Max: 1}
	timer := sim.NewTimer(c.Program, c.Device, 256, 1)
	timer.Begin()
	timer.Add(200, 0, 1)
	service := timer.End().Device
	for _, rho := range []float64{0.1, 0.5, 0.8} {
		w.QPS = rho / service
		r := run(t, c, w)
		require.InEpsilon(t, service+rho*service/2/(1-rho), r.TTFT.Mean, 0.04, "rho %g", rho)
		require.InDelta(t, rho, r.Busy, 0.02)
	}
}

func TestMoreWorkersServeMore(t *testing.T) {
	c, w := fleet(t), workload()
	w.QPS, c.Sched.MaxWaiting = 1000, w.Requests
	last := 0.0
	for _, n := range []int{1, 2, 4} {
		c.Workers = n
		now := run(t, c, w).TokensPerSecond
		require.Greater(t, now, 1.5*last, "%d workers", n)
		last = now
	}
}

func TestCostIsThePriceOfTheTime(t *testing.T) {
	c := fleet(t)
	c.Price = 7
	r := run(t, c, workload())
	require.InEpsilon(t, 7*3/3600./r.TokensPerSecond*1e6, r.CostPerMillion, 1e-9)
	require.InEpsilon(t, r.ServedQPS*r.Seconds, r.Served, 1e-9)
}

func TestLengthsAndArrivalsFollowTheirDistributions(t *testing.T) {
	w := workload()
	w.Requests, w.From, w.QPS = 100000, 2, 6
	source, err := w.Source()
	require.NoError(t, err)
	var prompt, logs, squares float64
	var half, end time.Duration
	for i := range w.Requests {
		r, ok := source.Next()
		require.True(t, ok)
		require.GreaterOrEqual(t, r.At, end)
		end = r.At
		prompt += float64(r.Prompt)
		l := math.Log(float64(r.Output))
		logs, squares = logs+l, squares+l*l
		if i == w.Requests/4 {
			half = r.At
		}
	}
	_, ok := source.Next()
	require.False(t, ok)
	n := float64(w.Requests)
	require.InEpsilon(t, 161, prompt/n, 0.04)
	require.InEpsilon(t, 0.8, math.Sqrt(squares/n-logs/n*logs/n), 0.02)
	// The ramp takes n / mean rate; a quarter of the requests come until 2 t + 4 t^2 / 2 = 4 / 4.
	require.InEpsilon(t, n/4, end.Seconds(), 0.01)
	require.InEpsilon(t, (math.Sqrt(3)-1)/2, half.Seconds()/end.Seconds(), 0.02)
}

func TestBadConfigurationsSayWhatIsWrong(t *testing.T) {
	for want, change := range map[string]func(*simulate.Config, *simulate.Workload){
		"at least one worker":       func(c *simulate.Config, _ *simulate.Workload) { c.Workers = 0 },
		"gbps is 0":                 func(c *simulate.Config, _ *simulate.Workload) { c.Device.GBps = 0 },
		"slabs 0":                   func(c *simulate.Config, _ *simulate.Workload) { c.Slabs = 0 },
		"MaxBatchSize":              func(c *simulate.Config, _ *simulate.Workload) { c.Sched.MaxBatchSize = 0 },
		"0 requests":                func(_ *simulate.Config, w *simulate.Workload) { w.Requests = 0 },
		"at NaN/s":                  func(_ *simulate.Config, w *simulate.Workload) { w.QPS = math.NaN() },
		"prompt: found a mean of 0": func(_ *simulate.Config, w *simulate.Workload) { w.Prompt.Mean = 0 },
		"a sigma of 9":              func(_ *simulate.Config, w *simulate.Workload) { w.Output.Sigma = 9 },
	} {
		c, w := fleet(t), workload()
		change(&c, &w)
		var err error
		if c.Requests, err = w.Source(); err == nil {
			_, err = simulate.Run(c)
		}
		require.ErrorContains(t, err, want)
	}
	c := fleet(t)
	c.Requests = simulate.Trace{{Prompt: 1, Output: 3, MaxTokens: 2}}.Source()
	_, err := simulate.Run(c)
	require.ErrorIs(t, err, simulate.ErrConfig)
}
