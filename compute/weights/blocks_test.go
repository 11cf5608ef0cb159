package weights

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBlocksAreTheValuesOfTheTypesFormulae compares every type that has a decoder with gguf-py.
func TestBlocksAreTheValuesOfTheTypesFormulae(t *testing.T) {
	require.Len(t, grids, gridsEnd)
	file, err := OpenFile(quantized + "blocks.safetensors")
	require.NoError(t, err)
	defer file.Close()
	for _, b := range blockTypes {
		if b.decode == nil {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			blocks, ok := file.Tensor(b.name + ".blocks")
			require.True(t, ok)
			values, ok := file.Tensor(b.name + ".values")
			require.True(t, ok)
			require.Equal(t, b.bytes, blocks.Shape[1])
			require.Equal(t, b.elements, values.Shape[1])
			got := make([]byte, len(values.Data))
			decodeRow(b, got, blocks.Data)
			for i := range len(got) / 2 {
				require.InDelta(t, readHalf(values.Data[2*i:]), readHalf(got[2*i:]), 0, "element %d", i)
			}
		})
	}
}
