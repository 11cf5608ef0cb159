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
	far := []float32{impossible(), -math.MaxFloat32, -699.9999, -700, -700.0001, math.SmallestNonzeroFloat32, -1e-30, -math.Ln2, 0}
	for isa := drawPlain; isa <= instructions; isa++ {
		for n := range 3 * drawBlock {
			memory := make([]float32, n+1)
			logits := memory[n%2:][:n]
			for i := range logits {
				if logits[i] = -float32(math.Abs(20 * rng.NormFloat64())); rng.IntN(4) == 0 {
					logits[i] = far[rng.IntN(len(far))]
				}
			}
			top, temperature := float32(0.5*rng.Float64()), float32(0.01+2*rng.Float64())
			if n%5 == 0 {
				top, temperature = 0, 1
			}
			var want []float64
			var mass, found [cutBuckets]float64
			total := 0.0
			for i, v := range logits {
				if i%drawBlock == 0 {
					want = append(want, total)
				}
				total += weight(v, top, temperature)
				mass[bucket((top-v)/temperature)] += weight(v, top, temperature)
			}
			sums := make([]float64, len(want))
			require.Equal(t, total, weightSums(isa, logits, top, temperature, sums, nil), "instructions %d, %d tokens", isa, n)
			require.Equal(t, want, append([]float64(nil), sums...))
			require.Equal(t, total, weightSums(isa, logits, top, temperature, nil, &found))
			require.Equal(t, mass, found, "the weights of buckets; instructions %d, %d tokens", isa, n)
		}
	}
}

// TestEveryWeightHasTheBitsOfTheFormula: sums round differences away.
func TestEveryWeightHasTheBitsOfTheFormula(t *testing.T) {
	for isa := drawPlain; isa <= instructions; isa++ {
		var logits [8]float32
		for x := 0.0; x < 710; x += 0.0037 {
			for i := range logits { // in each lane of a vector
				logits = [8]float32{}
				for j := range logits {
					logits[j] = impossible()
				}
				logits[i] = float32(-x)
				require.Equal(t, expNeg(float64(float32(x))), weightSums(isa, logits[:], 0, 1, nil, nil), "instructions %d, %g", isa, x)
				x += 0.0037
			}
		}
	}
}
