package weights_test

import (
	"encoding/binary"
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
	"fp8": "fp8/expected", "fp8-128": "fp8-128/expected", "ct-int4": "ct-int4/expected", "ct-int3-zeros": "ct-int3-zeros/expected",
	"ct-int8-rows": "ct-int8-rows/expected", "ct-fp8": "ct-fp8/expected", "ct-nvfp4": "ct-nvfp4/expected", "ct-mxfp4": "ct-mxfp4/expected",
	"bnb-nf4": "bnb-nf4/expected", "bnb-nf4-plain": "bnb-nf4-plain/expected", "bnb-int8": "bnb-int8/expected",
	"bitnet": "bitnet/expected", "bitnet-divided": "bitnet-divided/expected", "bitnet-online": "bitnet-online/expected",
}

// blocksOf are the types of blocks that keep the codes and scales of these formats. The others become F16, since codes less their zeros
// take more than 8 bits.
var blocksOf = map[string]string{
	"gptq-4": "Q4_Z32", "gptq-4-act": "Q4_Z32", "gptq-v2": "Q4_Z", "awq": "Q4_Z32", "auto-round-gptq": "Q4_Z32", "auto-round-awq": "Q4_Z32",
	"ct-int4": "Q4_0", "ct-int3-zeros": "Q4_0", "ct-int8-rows": "Q8_0", "bnb-int8": "Q8_0",
	"fp8": "FP8_32", "fp8-128": "FP8", "ct-fp8": "FP8", "ct-nvfp4": "NVFP4", "ct-mxfp4": "MXFP4", "bnb-nf4": "NF4", "bnb-nf4-plain": "NF4",
	"bitnet": "TQ2_0", "bitnet-divided": "TQ2_0", "bitnet-online": "TQ2_0",
}

// half is the half byte i of packed ones, the low one first.
func half(b []byte, i int) int { return int(b[i/2] >> (i % 2 * 4) & 15) }

func floatValue(b []byte) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
}

// e4m3 is the value of a code of FP8.
func e4m3(code byte) float64 {
	sign, exponent, fraction := 1-2*float64(code>>7), int(code>>3&15), float64(code&7)
	if exponent == 0 {
		return sign * math.Ldexp(fraction, -9)
	}
	return sign * math.Ldexp(8+fraction, exponent-10)
}

var (
	nf4 = []float64{-1, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.091050036, 0, 0.0795803, 0.1609302, 0.2461123,
		0.33791524, 0.44070983, 0.562617, 0.72295684, 1}
	e2m1 = []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}
)

// ofBlocks are the elements of a block of each type, and element i of one.
var ofBlocks = map[string]struct {
	elements int
	element  func(b []byte, i int) float64
}{
	"Q4_0": {32, func(b []byte, i int) float64 { return halfValue(b) * float64(int(b[2+i%16]>>(i/16*4)&15)-8) }},
	"Q5_0": {32, func(b []byte, i int) float64 {
		return halfValue(b) * float64(int(b[6+i%16]>>(i/16*4)&15)+16*int(b[2+i/8]>>(i%8)&1)-16)
	}},
	"Q8_0":   {32, func(b []byte, i int) float64 { return halfValue(b) * float64(int8(b[2+i])) }},
	"Q4_Z":   {128, func(b []byte, i int) float64 { return halfValue(b) * float64(half(b[3:], i)-int(b[2])) }},
	"Q4_Z32": {32, func(b []byte, i int) float64 { return halfValue(b) * float64(half(b[3:], i)-int(b[2])) }},
	"FP8":    {128, func(b []byte, i int) float64 { return floatValue(b) * e4m3(b[4+i]) }},
	"FP8_32": {32, func(b []byte, i int) float64 { return floatValue(b) * e4m3(b[4+i]) }},
	"NF4":    {64, func(b []byte, i int) float64 { return floatValue(b) * nf4[half(b[4:], i^1)] }},
	"NVFP4":  {64, func(b []byte, i int) float64 { return floatValue(b) * e4m3(b[4+i/16]) * e2m1[half(b[8:], i)] }},
	"TQ2_0": {256, func(b []byte, i int) float64 {
		return halfValue(b[64:]) * float64(int(b[i/128*32+i%32]>>(i/32%4*2)&3)-1)
	}},
	"MXFP4": {32, func(b []byte, i int) float64 { return math.Ldexp(e2m1[int(b[1+i%16]>>(i/16*4)&15)], int(b[0])-127) }},
}

// blockValues are those of a matrix of blocks, by the columns that they are of.
func blockValues(t weights.Tensor) []float64 {
	of := ofBlocks[t.DType.String()]
	width, size := int(t.Shape[1]), int(t.DType.Bytes(int64(of.elements)))
	values := make([]float64, int(t.Shape[0])*width)
	for i := range values {
		to := i
		if len(t.Order) > 0 {
			to = i - i%width + int(binary.LittleEndian.Uint32(t.Order[i%width*4:]))
		}
		values[to] = of.element(t.Data[i/of.elements*size:], i%of.elements)
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
