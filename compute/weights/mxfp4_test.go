package weights

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMXFP4BecomesTheBlocksOfGGUF: neighbors in a byte become elements i and 16 + i, after the block's exponent.
func TestMXFP4BecomesTheBlocksOfGGUF(t *testing.T) {
	codes := make([]byte, 2*3*2*16) // two experts of three rows of two blocks
	scales := make([]byte, 2*3*2)
	for i := range codes {
		codes[i] = byte(7 * i)
	}
	for i := range scales {
		scales[i] = byte(100 + i)
	}
	c := &Checkpoint{tensors: map[string]Tensor{
		"x_blocks": {Type: "U8", Shape: []int64{2, 3, 2, 16}, Data: codes, File: "f"},
		"x_scales": {Type: "U8", Shape: []int64{2, 3, 2}, Data: scales},
		"y_blocks": {Type: "U8", Shape: []int64{2, 3, 2, 16}, Data: codes},
		"y_scales": {Type: "U8", Shape: []int64{2, 3, 1}, Data: scales},
	}}
	d, err := c.mxfp4Layer(nil, "x")
	require.NoError(t, err)
	require.NoError(t, c.derive([]*derived{d}))
	got, ok := c.Tensor("x")
	require.True(t, ok)
	require.Equal(t, []int64{2, 3, 64}, got.Shape)
	require.Equal(t, "MXFP4", got.Type)
	require.True(t, got.DType.Blocks())
	require.Len(t, got.Data, 12*17)
	for block := range 12 {
		from, to := codes[block*16:], got.Data[block*17:]
		require.Equal(t, scales[block], to[0])
		for element := range 32 {
			want := from[element/2] >> (element % 2 * 4) & 15
			require.Equal(t, want, to[1+element%16]>>(element/16*4)&15)
		}
	}
	_, err = c.mxfp4Layer(nil, "y")
	require.ErrorContains(t, err, "y_blocks: found U8 [2 3 2 16] and U8 [2 3 1], expected U8 [experts, rows, blocks, 16]")
	require.NoError(t, c.Close())
}
