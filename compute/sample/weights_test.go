package sample

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWeightsHaveTheBitsOfTheFormula on each instruction set of this processor, at any length and place in memory.
func TestWeightsHaveTheBitsOfTheFormula(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	far := []float32{
		impossible(), -math.MaxFloat32, -31.1915, -31.1916, -31.1917, -31.2, math.SmallestNonzeroFloat32, -1e-30, -math.Ln2, 0,
		float32(math.NaN()),
	}
	for isa := drawPlain; isa <= instructions; isa++ {
		for n := range 3 * drawBlock {
			memory := make([]float32, n+1)
			logits := memory[n%2:][:n]
			for i := range logits {
				if logits[i] = -float32(math.Abs(20 * rng.NormFloat64())); rng.IntN(4) == 0 {
					logits[i] = far[rng.IntN(len(far))]
				}
			}
			top, perNat := float32(0.5*rng.Float64()), inverse(float32(0.01+2*rng.Float64()))
			if n%5 == 0 {
				top, perNat = 0, 1
			}
			var want []uint64
			var mass, found [cutBuckets]uint64
			total := uint64(0)
			for i, v := range logits {
				if i%drawBlock == 0 {
					want = append(want, total)
				}
				distance := (top - v) * perNat
				total += weigh(distance)
				if distance == distance {
					mass[bucket(distance)] += weigh(distance)
				}
			}
			sums := make([]uint64, len(want))
			require.Equal(t, total, weightSums(isa, logits, top, perNat, sums, nil), "instructions %d, %d tokens", isa, n)
			require.Equal(t, want, append([]uint64(nil), sums...))
			require.Equal(t, total, weightSums(isa, logits, top, perNat, nil, &found))
			require.Equal(t, mass, found, "the weights of buckets; instructions %d, %d tokens", isa, n)
		}
	}
}

// TestEveryWeightIsTheExponential: to 1e-6 of itself and the unit in which it is counted.
func TestEveryWeightIsTheExponential(t *testing.T) {
	require.EqualValues(t, whole, weigh(0))
	require.EqualValues(t, whole, weigh(float32(math.Copysign(0, -1))))
	require.Zero(t, weigh(float32(math.Inf(1))))
	require.Zero(t, weigh(float32(math.NaN())))
	last := weigh(0)
	for x := float32(0); x < 40; x += 0.00037 {
		want, w := math.Exp(-float64(x))*whole, weigh(x)
		require.InDelta(t, want, float64(w), 1+4e-7*want*(1+float64(x)), "x = %g", x)
		require.LessOrEqual(t, float64(w), float64(last)*(1+2e-7), "a farther token weighs more, x = %g", x)
		last = w
	}
}

func TestTheInverseOfASmallTemperatureIsFinite(t *testing.T) {
	for _, temperature := range []float32{math.SmallestNonzeroFloat32, 1e-38, 1e-30, 0.5, 2, math.MaxFloat32} {
		perNat := inverse(temperature)
		require.EqualValues(t, whole, weigh(0*perNat), "temperature %g", temperature)
		require.Zero(t, weigh(float32(math.Inf(1))*perNat), "temperature %g", temperature)
	}
}
