package sample

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The vectors are those of Random123's kat_vectors, "philox4x32 10".
func TestPhiloxMatchesThePublishedVectors(t *testing.T) {
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{
			[4]uint32{},
			[2]uint32{},
			[4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
		},
		{
			[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
			[2]uint32{0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
			[2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		require.Equal(t, c.want, philox(c.counter, c.key))
	}
}

func TestUniformIsNeverZeroNorOne(t *testing.T) {
	require.Equal(t, math.Float64bits(0x1p-53), math.Float64bits(unit(0)))
	require.Equal(t, math.Float64bits(1-0x1p-53), math.Float64bits(unit(math.MaxUint64)))
}

func TestUniformDependsOnEveryBitOfSeedAndPosition(t *testing.T) {
	seen := map[float64]bool{uniform(0, 0): true}
	for bit := range 64 {
		seen[uniform(1<<bit, 0)] = true
		seen[uniform(0, 1<<bit)] = true
	}
	require.Len(t, seen, 129)
}

func TestExpNegIsExactTo1e9(t *testing.T) {
	for x := 0.0; x < 750; x += 0.0137 {
		want := math.Exp(-x)
		if x >= 700 {
			want = 0
		}
		require.InDelta(t, want, expNeg(x), 1e-9*want, "x = %g", x)
	}
	require.InDelta(t, 1, expNeg(0), 0)
	require.InDelta(t, 1, expNeg(widen(0)), 0)
	require.InDelta(t, 1, expNeg(widen(float32(math.Copysign(0, -1)))), 0)
	require.Zero(t, expNeg(math.Inf(1)))
	require.Zero(t, expNeg(widen(float32(math.Inf(1)))))
	require.InDelta(t, 1.375, widen(1.375), 0)
}
