package simulate_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/lab/simulate"
)

// TestGoodputHoldsAtTenTimesTheCapacity is the promise of --max-queue-wait, in virtual time and
// so to the digit. The fleet starts under the load.
func TestGoodputHoldsAtTenTimesTheCapacity(t *testing.T) {
	good := func(qps float64, wait time.Duration, requests int) *simulate.Report {
		cfg, w := fleet(t), workload()
		cfg.Sched.MaxWaiting = 512
		cfg.MaxQueueWait = wait
		cfg.SLO = simulate.SLO{TTFT: 2 * time.Second, TPOT: 100 * time.Millisecond}
		w.QPS, w.Requests = qps, requests
		return run(t, cfg, w)
	}
	capacity := good(1000, 0, 5000).ServedQPS
	best := 0.0
	for _, times := range []float64{0.9, 1, 1.5} {
		best = max(best, good(times*capacity, time.Second, int(100*times*capacity)).GoodQPS)
	}
	r := good(10*capacity, time.Second, 40000)
	t.Logf("capacity %.2f/s, best %.2f/s; at ten times the capacity %.2f/s, refused %v, TTFT p50 %.2f s, p99 %.2f s", capacity, best,
		r.GoodQPS, r.Refused, r.TTFT.P50, r.TTFT.P99)
	require.GreaterOrEqual(t, r.GoodQPS, 0.95*best)
	require.Equal(t, r.RefusedSum(), r.Refused["queue-wait"])
	require.Less(t, good(10*capacity, 0, 40000).GoodQPS, 0.2*best, "a queue without a bound serves nobody in time")
}
