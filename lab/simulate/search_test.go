package simulate_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/lab/simulate"
)

// upTo is a fleet whose latencies are within a second up to a rate.
func upTo(limit float64, tried *int) func(float64) (*simulate.Report, error) {
	return func(qps float64) (*simulate.Report, error) {
		*tried++
		r := &simulate.Report{}
		r.TTFT.P99 = 0.5
		if qps > limit {
			r.TTFT.P99 = 1.5
		}
		return r, nil
	}
}

func TestTheLargestRateThatHoldsIsFound(t *testing.T) {
	bound := simulate.Bound{SLO: simulate.SLO{TTFT: time.Second}, Quantile: "p99"}
	for _, limit := range []float64{0.013, 1, 1.9, 37, 4242} {
		tried := 0
		f, err := simulate.FindQPS(1, bound, upTo(limit, &tried))
		require.NoError(t, err)
		require.LessOrEqual(t, f.QPS, limit)
		require.Greater(t, f.QPS, limit/1.021)
		require.Len(t, f.Trials, tried)
		require.Less(t, tried, 30)
		require.True(t, bound.Holds(f.Best))
	}
	tried := 0
	f, err := simulate.FindQPS(1, bound, upTo(0, &tried))
	require.NoError(t, err)
	require.Zero(t, f.QPS)
	require.Nil(t, f.Best)
}

func TestABoundIsOfItsQuantileAndRefusesRefusals(t *testing.T) {
	r := &simulate.Report{}
	r.TTFT, r.TPOT = simulate.Quantiles{P50: 1, P95: 2, P99: 3}, simulate.Quantiles{P50: 0.1, P95: 0.2, P99: 0.3}
	slo := simulate.SLO{TTFT: 2500 * time.Millisecond, TPOT: 250 * time.Millisecond}
	for quantile, holds := range map[string]bool{"p50": true, "p95": true, "p99": false} {
		require.Equal(t, holds, simulate.Bound{SLO: slo, Quantile: quantile}.Holds(r), quantile)
	}
	require.False(t, simulate.Bound{SLO: simulate.SLO{TPOT: 150 * time.Millisecond}, Quantile: "p95"}.Holds(r))
	r.Refused = map[string]int{"queue-full": 1}
	require.False(t, simulate.Bound{SLO: slo, Quantile: "p50"}.Holds(r))

	_, err := simulate.FindQPS(1, simulate.Bound{Quantile: "p99"}, nil)
	require.ErrorIs(t, err, simulate.ErrConfig)
	_, err = simulate.FindQPS(1, simulate.Bound{SLO: slo, Quantile: "p999"}, nil)
	require.ErrorContains(t, err, `"p999"`)
}

func TestQuantilesAreNearestRanks(t *testing.T) {
	var values []float32
	for i := 200; i > 0; i-- {
		values = append(values, float32(i))
	}
	require.Equal(t, simulate.Quantiles{Mean: 100.5, P50: 100, P95: 190, P99: 198}, simulate.NewQuantiles(values))
	require.Equal(t, simulate.Quantiles{Mean: 7, P50: 7, P95: 7, P99: 7}, simulate.NewQuantiles([]float32{7}))
	require.Zero(t, simulate.NewQuantiles(nil))
}
