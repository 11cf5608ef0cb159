package weights

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFP8KeepsItsCodesAndScales: those of 128 columns of BF16, as DeepSeek's and Qwen's checkpoints have them. A NaN among the codes makes
// its block one.
func TestFP8KeepsItsCodesAndScales(t *testing.T) {
	codes := make([]byte, 256*256)
	for i := range codes {
		codes[i] = byte(i*7+i/256) &^ 1 // no NaN
	}
	codes[200*256+130] = 0xff
	scales := []byte{0x80, 0x3f, 0x00, 0x40, 0x40, 0x40, 0x80, 0x40} // 1, 2, 3, 4
	c := &Checkpoint{tensors: map[string]Tensor{
		"x.weight":           {Type: "F8_E4M3", Shape: []int64{256, 256}, Data: codes},
		"x.weight_scale_inv": {DType: BF16, Type: "BF16", Shape: []int64{2, 2}, Data: scales},
	}}
	d, err := c.scaledLayer(&Quantization{Block: []int{128, 128}}, "x")
	require.NoError(t, err)
	require.NoError(t, c.derive([]*derived{d}))
	got, ok := c.Tensor("x.weight")
	require.True(t, ok)
	require.Equal(t, "FP8", got.Type)
	require.Len(t, got.Data, 256*2*132)
	for row := range 256 {
		for block := range 2 {
			at := got.Data[(row*2+block)*132:][:132]
			require.Equal(t, codes[row*256+block*128:][:128], at[4:])
			scale := float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
			if row == 200 && block == 1 {
				require.True(t, math.IsNaN(scale))
				continue
			}
			require.InDelta(t, float64(1+row/128*2+block), scale, 0)
		}
	}
	require.NoError(t, c.Close())
}

// TestInputsOfUnequalGroupsStayWhereTheyAre: no order of theirs has whole groups.
func TestInputsOfUnequalGroupsStayWhereTheyAre(t *testing.T) {
	s := &scaled{
		out: 1, in: 64, rows: 1, columns: 32, across: 2, low: 0, high: 15, group: make([]int32, 64),
		scale: func(int) float32 { return 1 }, zero: func(int, int) float32 { return 3 },
		values: func(to []float32, _ int) {
			for k := range to {
				to[k] = float32(k % 16)
			}
		},
	}
	for k := range s.group {
		s.group[k] = int32(k % 2)
	}
	d := s.derive("x", "GPTQ", "f")
	require.Equal(t, "Q4_Z32", d.DType.String())
	for k := range 64 {
		require.Equal(t, uint32(k%32*2+k/32), binary.LittleEndian.Uint32(d.Order[4*k:]))
	}
	s.group[0] = 1
	d = s.derive("x", "GPTQ", "f")
	require.Equal(t, F16, d.DType)
	require.Empty(t, d.Order)
}
