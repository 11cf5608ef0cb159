package weights_test

import (
	"math"
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

// blocksOf are the types of GGUF's blocks that keep the codes and scales of these formats. The others become F16: by act-order, or since codes less their zeros
// take more than 8 bits, or are no integers.
var blocksOf = map[string]string{
	"gptq-4": "Q5_0", "gptq-v2": "Q5_0", "awq": "Q5_0", "auto-round-gptq": "Q5_0", "auto-round-awq": "Q5_0",
	"ct-int4": "Q4_0", "ct-int3-zeros": "Q4_0", "ct-int8-rows": "Q8_0",
}

// blockValues are those of a tensor of Q4_0, Q5_0 or Q8_0.
func blockValues(t weights.Tensor) (values []float64) {
	size := int(t.DType.Bytes(32))
	for b := t.Data; len(b) > 0; b = b[size:] {
		scale := halfValue(b)
		for i := range 32 {
			half := int(b[size-16+i%16] >> (i / 16 * 4) & 15)
			switch t.DType.String() {
			case "Q4_0":
				values = append(values, scale*float64(half-8))
			case "Q5_0":
				values = append(values, scale*float64(half+16*int(b[2+i/8]>>(i%8)&1)-16))
			case "Q8_0":
				values = append(values, scale*float64(int8(b[2+i])))
			}
		}
	}
	return values
}

// halfValue is the value of an F16.
func halfValue(b []byte) float64 {
	h := uint16(b[0]) | uint16(b[1])<<8
	sign := 1 - 2*float64(h>>15)
	exponent, fraction := int(h>>10&31), float64(h&1023)
	if exponent == 0 {
		return sign * math.Ldexp(fraction, -24)
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
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
				got, ok := c.Tensor(tensor)
				require.True(t, ok)
				require.Equal(t, described.DType, got.DType)
				require.Equal(t, blocksOf[name], strings.TrimPrefix(got.DType.String(), "F16"))
				if got.DType == weights.F16 {
					require.Equal(t, w.Data, got.Data, "%s %s", tensor, got.Type)
					continue
				}
				for i, x := range blockValues(got) {
					want := halfValue(w.Data[2*i:])
					require.InDelta(t, want, x, math.Abs(want)*0x1p-10+0x1p-24, "%s %d", tensor, i)
				}
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
