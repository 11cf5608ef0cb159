// Package metricstest reads metrics inside tests. It must not know what a series means.
package metricstest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// Sum adds up the counters, or gauges, of a name that a collector has now; a test fails
// where it has none.
func Sum(t testing.TB, c prometheus.Collector, name string) (sum float64) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(c))
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() // the one that it is not is zero
		}
		return sum
	}
	require.Fail(t, "no series "+name)
	return 0
}
