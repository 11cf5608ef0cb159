package simulate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/roofline"
	"github.com/millrace/millrace/lab/simulate"
)

// BenchmarkThousandWorkers simulates 20 requests for each of 1,000 workers, at
// the load of docs/simulation.md.
func BenchmarkThousandWorkers(b *testing.B) {
	p, err := roofline.PaperModel{Name: "llama-2-7b"}.Program()
	require.NoError(b, err)
	found, _, err := sim.Find("max-1100")
	require.NoError(b, err)
	w := simulate.Workload{
		Requests: 20000, QPS: 5000, Seed: 1,
		Prompt: simulate.LogNormal{Mean: 161, Sigma: 1, Max: 2048}, Output: simulate.LogNormal{Mean: 338, Sigma: 0.8, Max: 2048},
	}
	tokens := 0
	for b.Loop() {
		c := fleet(b)
		c.Program, c.Device, c.Slabs, c.Workers = p, found, 3543, 1000
		c.Sched.MaxBatchSize, c.Sched.MaxBatchTokens, c.Sched.MaxWaiting = 64, 512, 512
		tokens += run(b, c, w).OutputTokens
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tokens), "ns/token")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*w.Requests), "us/request")
}
