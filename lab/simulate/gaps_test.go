package simulate

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuantilesOfGapsAreWithinOnePercent(t *testing.T) {
	var g gaps
	require.Zero(t, g.quantiles())
	random := rand.New(rand.NewPCG(1, 2))
	var list []float32
	for range 50000 {
		d := time.Duration(random.ExpFloat64() * 20e6)
		g.add(d)
		list = append(list, float32(d.Seconds()))
	}
	want, got := NewQuantiles(list), g.quantiles()
	require.InEpsilon(t, want.Mean, got.Mean, 1e-4)
	require.InEpsilon(t, want.P50, got.P50, 0.01)
	require.InEpsilon(t, want.P95, got.P95, 0.01)
	require.InEpsilon(t, want.P99, got.P99, 0.01)
	for _, d := range []time.Duration{0, 1, 1 << 62} {
		g.add(d)
	}
}
