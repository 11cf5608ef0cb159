package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWeightNamesGoBothWays(t *testing.T) {
	for _, name := range WeightNames() {
		w, err := ParseWeights(name)
		require.NoError(t, err)
		require.Equal(t, name, w.String())
	}
	w, err := ParseWeights("")
	require.NoError(t, err)
	require.Equal(t, Weights{}, w)
	_, err = ParseWeights("int3")
	require.EqualError(t, err, `weights "int3", expected bf16, int8, int4, int4-64, int4-128`)
}

func TestOnlyLayersKeepFourBits(t *testing.T) {
	p := &Program{Ops: []Op{
		{Kind: OpNorm, Layer: 0},
		{Kind: OpLinear, Layer: 0},
		{Kind: OpLinear, Layer: None},
	}}
	p.SetWeights(Weights{WeightsInt4, 64})
	require.Equal(t, Weights{}, p.Ops[0].Weights)
	require.Equal(t, Weights{WeightsInt4, 64}, p.Ops[1].Weights)
	require.Equal(t, Weights{Type: WeightsInt8}, p.Ops[2].Weights)
	p.SetWeights(Weights{})
	require.Equal(t, Weights{}, p.Ops[2].Weights)
}

// Two rows of 100: int8 has a float32 scale for each, int4 four groups of 16 bytes and
// a bf16 scale.
func TestQuantisedWeightsAreCountedWithTheirScales(t *testing.T) {
	require.Equal(t, int64(400), Weights{}.bytes(2, 100, 2))
	require.Equal(t, int64(208), Weights{Type: WeightsInt8}.bytes(2, 100, 2))
	require.Equal(t, int64(2*4*18), Weights{WeightsInt4, 32}.bytes(2, 100, 2))
	require.Equal(t, int64(2*1*66), Weights{WeightsInt4, 128}.bytes(2, 100, 2))
}
