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
	require.EqualValues(t, 1<<11, middle(0))
	require.Equal(t, uint64(math.MaxUint64-1<<11+1), middle(math.MaxUint64))
}

func TestUniformDependsOnEveryBitOfSeedAndPosition(t *testing.T) {
	seen := map[uint64]bool{uniform(0, 0): true}
	for bit := range 64 {
		seen[uniform(1<<bit, 0)] = true
		seen[uniform(0, 1<<bit)] = true
	}
	require.Len(t, seen, 129)
}
