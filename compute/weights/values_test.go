package weights_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/weights"
)

const quantized = "../../testdata/quantized/"

// open opens a checkpoint of any format with the names that its family gives the tensors.
func open(t *testing.T, path string) *weights.Checkpoint {
	t.Helper()
	cfg, err := family.LoadConfig(path)
	require.NoError(t, err)
	c, err := family.OpenWeights(cfg)
	require.NoError(t, err)
	return c
}

// formats are the checkpoints whose tensors stand for known values.
var formats = map[string]string{
	"gptq-4": "gptq-4/expected", "gptq-4-act": "gptq-4-act/expected", "gptq-8": "gptq-8/expected", "gptq-v2": "gptq-v2/expected",
	"awq": "awq/expected", "auto-round-gptq": "auto-round-gptq/expected", "auto-round-awq": "auto-round-awq/expected",
	"fp8": "fp8/expected", "ct-int4": "ct-int4/expected", "ct-int3-zeros": "ct-int3-zeros/expected", "ct-int8-rows": "ct-int8-rows/expected",
	"ct-fp8": "ct-fp8/expected", "ct-nvfp4": "ct-nvfp4/expected", "ct-mxfp4": "ct-mxfp4/expected",
	"bnb-nf4": "bnb-nf4/expected", "bnb-nf4-plain": "bnb-nf4-plain/expected", "bnb-int8": "bnb-int8/expected",
}

func TestQuantizedTensorsAreTheValuesOfTheFormatsFormulae(t *testing.T) {
	for name, expected := range formats {
		t.Run(name, func(t *testing.T) {
			want, err := weights.OpenFile(quantized + expected + ".safetensors")
			require.NoError(t, err)
			defer want.Close()
			c := open(t, quantized+name)
			defer c.Close()
			compared := 0
			for _, n := range want.Names() {
				tensor, ok := strings.CutPrefix(n, "values.")
				if !ok {
					continue
				}
				compared++
				w, _ := want.Tensor(n)
				described, ok := c.Describe(tensor)
				require.True(t, ok, tensor)
				require.Nil(t, described.Data)
				require.Equal(t, w.Shape, described.Shape)
				require.Equal(t, weights.F16, described.DType)
				got, ok := c.Tensor(tensor)
				require.True(t, ok)
				require.Equal(t, w.Data, got.Data, "%s %s", tensor, got.Type)
			}
			require.Equal(t, 2, compared)
			before, _ := c.Tensor("model.layers.0.self_attn.v_proj.weight")
			first := string(before.Data[:64])
			require.NoError(t, c.Release())
			require.Equal(t, first, string(before.Data[:64]), "released tensors stay valid")
		})
	}
}

func TestOpenListsTheMatricesOfAQuantizedCheckpoint(t *testing.T) {
	plain := open(t, quantized+"tiny")
	defer plain.Close()
	for name := range formats {
		c := open(t, quantized+name)
		for _, n := range plain.Names() {
			require.Contains(t, c.Names(), n, name)
			want, _ := plain.Describe(n)
			got, _ := c.Describe(n)
			require.Equal(t, want.Shape, got.Shape, n)
		}
		require.NoError(t, c.Close())
		require.NoError(t, c.Close(), "closing twice is harmless")
	}
}
