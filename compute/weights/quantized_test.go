package weights

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const quantized = "../../testdata/quantized/"

func TestHalfPrecisionRoundsToNearestEven(t *testing.T) {
	for h := range 1 << 16 {
		f := halfToFloat(uint16(h))
		if math.IsNaN(float64(f)) {
			require.True(t, math.IsNaN(float64(halfToFloat(floatToHalf(f)))))
			continue
		}
		require.Equal(t, uint16(h), floatToHalf(f), "%#x", h)
		if h&0x7fff < 0x7bff { // between it and the next one, away from zero
			next := halfToFloat(uint16(h + 1))
			middle := float32((float64(f) + float64(next)) / 2)
			require.Equal(t, uint16(h+h&1), floatToHalf(middle), "after %#x", h)
			require.Equal(t, uint16(h), floatToHalf(math.Nextafter32(middle, f)), "after %#x", h)
			require.Equal(t, uint16(h+1), floatToHalf(math.Nextafter32(middle, next)), "after %#x", h)
		}
	}
	require.Equal(t, uint16(0x7bff), floatToHalf(65519.996), "the largest")
	require.Equal(t, uint16(0x7c00), floatToHalf(65520), "beyond it")
	require.Equal(t, uint16(0xfc00), floatToHalf(float32(math.Inf(-1))))
}

// TestOpenFaultsOfQuantizedLayers changes a sound checkpoint.
func TestOpenFaultsOfQuantizedLayers(t *testing.T) {
	const layer = "model.layers.0.mlp.down_proj"
	type object = map[string]any
	for _, c := range []struct {
		name, from string
		config     object
		header     func(map[string]object)
		want       string
	}{
		{"method", "awq", object{"quant_method": "exl2"}, nil,
			`quantization_config.quant_method: found "exl2", expected one of auto-round, awq, bitnet, bitsandbytes, compressed-tensors, fp8, gptq`},
		{"bits", "gptq-4", object{"bits": 2}, nil, "quantization_config.bits: found 2, expected 4 or 8"},
		{"bits of awq", "awq", object{"bits": 8}, nil, "quantization_config.bits: found 8, expected 4"},
		{"bits no number", "awq", object{"bits": "four"}, nil, "quantization_config: found"},
		{"group", "gptq-4", object{"group_size": 0}, nil, "quantization_config.group_size: found 0"},
		{"layout of awq", "awq", object{"version": "gemv"}, nil, `quantization_config.version: found "gemv", expected gemm`},
		{"layout of gptq", "gptq-4", object{"checkpoint_format": "marlin"}, nil, `quantization_config.checkpoint_format: found "marlin"`},
		{"other group size", "gptq-4", object{"group_size": 64}, nil,
			".scales: found shape [8 256], expected 4 groups of 64 for 256 inputs"},
		{"other bits", "gptq-4", object{"bits": 8}, nil, ".scales: found shape [8 256], expected 4 groups of 32 for 128 inputs"},
		{"no zeros", "awq", nil, func(h map[string]object) { rename(h, layer+".qzeros", "x") },
			layer + ".qzeros: found no such tensor, expected I32"},
		{"no scales", "awq", nil, func(h map[string]object) { rename(h, layer+".scales", "x") }, layer + ".scales: found no such tensor"},
		{"words of another type", "awq", nil, func(h map[string]object) { h[layer+".qweight"]["dtype"] = "F32" },
			layer + ".qweight: found F32 [256 32], expected I32"},
		{"words of another shape", "awq", nil, func(h map[string]object) { h[layer+".qweight"]["shape"] = []int{128, 64} },
			layer + ".qweight: found shape [128 64], expected [128 32]"},
		{"zeros of another shape", "awq", nil, func(h map[string]object) { h[layer+".qzeros"]["shape"] = []int{8, 16} },
			layer + ".qzeros: found shape [8 16], expected [4 32]"},
		{"no groups with desc_act", "gptq-4-act", nil, func(h map[string]object) { rename(h, layer+".g_idx", "x") },
			layer + ".g_idx: found no such tensor, expected one, by desc_act"},
		{"groups out of range", "gptq-4-act", nil, func(h map[string]object) {
			rename(h, layer+".g_idx",
				layer+".old")
			h[layer+".g_idx"] = wordsOf(h)
		}, layer + ".g_idx: found group"},
		{"two weights", "gptq-4", nil, func(h map[string]object) { rename(h, layer+".g_idx", layer+".weight") },
			layer + ": found both, expected one of .weight and .qweight"},
		{"packing of auto-round", "auto-round-awq", object{"packing_format": "auto_round:gemv"}, nil,
			`quantization_config.packing_format: found "auto_round:gemv", expected auto_round:auto_gptq or auto_round:auto_awq`},
		{"type of fp8", "fp8", object{"fmt": "e5m2"}, nil, `quantization_config.fmt: found "e5m2", expected e4m3`},
		{"block of fp8", "fp8", object{"weight_block_size": []int{128}}, nil,
			"quantization_config.weight_block_size: found [128], expected two numbers"},
		{"other block of fp8", "fp8", object{"weight_block_size": []int{128, 128}}, nil,
			".weight_scale_inv: found shape [3 4], expected [2 2] for a weight of [256 256]"},
		{"scales of another type", "fp8", nil, func(h map[string]object) { h[layer+".weight_scale_inv"]["dtype"] = "I32" },
			layer + ".weight_scale_inv: found I32 [3 4], expected F16, BF16"},
		{"codes of another type", "ct-fp8", nil, func(h map[string]object) { h[layer+".weight"]["dtype"] = "F8_E5M2" },
			layer + ".weight: found F8_E5M2 [256 256], expected F8_E4M3"},
		{"class of bitnet", "bitnet", object{"linear_class": "linear"}, nil,
			`quantization_config.linear_class: found "linear", expected bitlinear or autobitlinear`},
		{"mode of bitnet", "bitnet", object{"quantization_mode": "later"}, nil,
			`quantization_config.quantization_mode: found "later", expected offline or online`},
		{"norms of bitnet", "bitnet", object{"use_rms_norm": true}, nil, "quantization_config.use_rms_norm: found true, expected false"},
		{"bytes of bitnet", "bitnet", nil, func(h map[string]object) { h[layer+".weight"]["dtype"] = "I8" },
			layer + ".weight: found I8 [64 256], expected U8 of two dimensions"},
		{"scale of bitnet", "bitnet", nil, func(h map[string]object) { h[layer+".weight_scale"]["dtype"] = "I16" },
			layer + ".weight_scale: found I16 [1], expected one number of F16, BF16 or F32"},
		{"words in place of weights", "bitnet-online", nil, func(h map[string]object) { h[layer+".weight"]["dtype"] = "I16" },
			layer + ".weight: found I16 [256 256], expected F16, BF16 or F32 of two dimensions"},
		{"sparse", "ct-int4", object{"sparsity_config": object{"format": "sparse-24-bitmask"}}, nil,
			`quantization_config.sparsity_config.format: found "sparse-24-bitmask", expected dense`},
		{"rotated", "ct-int4", object{"transform_config": object{"config_groups": object{"u": object{}}}}, nil,
			"quantization_config.transform_config: found 1 groups, expected none"},
		{"no shape", "ct-int4", nil, func(h map[string]object) { rename(h, layer+".weight_shape", "x") },
			layer + ".weight_shape: found no such tensor, expected I64 of two numbers"},
		{"fewer words", "ct-int4", nil, func(h map[string]object) { h[layer+".weight_packed"]["shape"] = []int{128, 64} },
			layer + ".weight_packed: found I32 [128 64], expected integers of 1 to 8 bits of a weight of [256 256]"},
		{"other zeros", "ct-int3-zeros", nil, func(h map[string]object) { h[layer+".weight_zero_point"]["shape"] = []int{2, 24} },
			layer + ".weight_zero_point: found I32 [2 24], expected I32 [24 2]"},
		{"no number for all", "ct-nvfp4", nil, func(h map[string]object) {
			h[layer+".weight_global_scale"]["shape"] = []int{1, 1, 1, 1, 1}
			h[layer+".weight_global_scale"]["dtype"] = "I32"
		}, layer + ".weight_global_scale: found I32 [1 1 1 1 1], expected one number of F32"},
		{"no scales of rows", "ct-int8-rows", nil, func(h map[string]object) { h[layer+".weight_scale"]["shape"] = []int{1, 256} },
			layer + ".weight_scale: found shape [1 256], expected [256 256] for a weight of [256 256]"},
		{"no state", "bnb-nf4", nil, func(h map[string]object) { rename(h, layer+".weight.quant_state.bitsandbytes__nf4", "x") },
			layer + ".weight.quant_state.bitsandbytes__nf4: found no such tensor"},
		{"no levels", "bnb-nf4", nil, func(h map[string]object) { rename(h, layer+".weight.quant_map", "x") },
			layer + ".weight.quant_map: found no such tensor, expected F32 [16]"},
		{"no nested scales", "bnb-nf4", nil, func(h map[string]object) { rename(h, layer+".weight.nested_absmax", "x") },
			layer + ".weight.absmax: found U8 [1024], expected 1024 numbers of F32"},
		{"rows of int8", "bnb-int8", nil, func(h map[string]object) { rename(h, layer+".SCB", "a.SCB") },
			"a.weight: found no such tensor and F32 [256]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			var config map[string]any
			raw, err := os.ReadFile(filepath.Join(quantized, c.from, "config.json"))
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(raw, &config))
			maps.Copy(config["quantization_config"].(object), c.config)
			raw, err = json.Marshal(config)
			require.NoError(t, err)
			write(t, dir, "config.json", raw)
			file, err := os.ReadFile(filepath.Join(quantized, c.from, singleFile))
			require.NoError(t, err)
			if c.header != nil {
				file = editHeader(t, file, c.header)
			}
			write(t, dir, singleFile, file)
			_, err = Open(dir)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

func rename(h map[string]map[string]any, from, to string) {
	h[to] = h[from]
	delete(h, from)
}

// wordsOf cuts 256 words of packed weights off k_proj: no group numbers.
func wordsOf(h map[string]map[string]any) map[string]any {
	const donor = "model.layers.0.self_attn.k_proj"
	offsets := h[donor+".qweight"]["data_offsets"].([]any)
	begin := offsets[0].(float64)
	h[donor+".rest"] = map[string]any{"dtype": "I32", "shape": []int{64*32 - 256}, "data_offsets": []any{begin + 1024, offsets[1]}}
	delete(h, donor+".qweight")
	return map[string]any{"dtype": "I32", "shape": []int{256}, "data_offsets": []any{begin, begin + 1024}}
}

// editHeader changes the header of a safetensors file.
func editHeader(t *testing.T, file []byte, edit func(map[string]map[string]any)) []byte {
	t.Helper()
	length := 8 + int(uint64(file[0])|uint64(file[1])<<8|uint64(file[2])<<16)
	var header map[string]map[string]any
	require.NoError(t, json.Unmarshal(file[8:length], &header))
	edit(header)
	raw, err := json.Marshal(header)
	require.NoError(t, err)
	return append(encode(string(raw), 0), file[length:]...)
}

func TestTypesRoundToTheNearestEven(t *testing.T) {
	for _, c := range []struct {
		dtype    DType
		from, to float32
	}{
		{F32, 6.928203, 6.928203}, {BF16, 6.928203, 6.9375}, {F16, 6.928203, 6.9296875}, {BF16, 1 + 1.0/256, 1},
		{BF16, 1 + 3.0/256, 1 + 1.0/64}, {BF16, -2, -2},
	} {
		require.Equal(t, c.to, c.dtype.Round(c.from), "%s of %g", c.dtype, c.from)
	}
}

// TestReplacedTensorsHaveOtherValues of each type, vectors and matrices. What has no floats stays.
func TestReplacedTensorsHaveOtherValues(t *testing.T) {
	for dtype, data := range map[DType][]byte{
		F32:  {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0},
		F16:  {0, 0x3c, 0, 0xc0},
		BF16: {0x80, 0x3f, 0, 0xc0},
	} {
		c := &Checkpoint{tensors: map[string]Tensor{
			"v": {Name: "v", DType: dtype, Shape: []int64{2}, Data: data, File: "f"},
			"m": {Name: "m", DType: dtype, Shape: []int64{1, 2}, Data: data, File: "f"},
			"o": {Name: "o", DType: Other, Shape: []int64{2}, Data: data},
		}}
		require.NoError(t, c.Replace([]string{"v", "m", "o", "absent"}, func(x float32) float32 { return 10 * x }))
		for name, shape := range map[string][]int64{"v": {2}, "m": {1, 2}} {
			got, ok := c.Tensor(name)
			require.True(t, ok)
			require.Equal(t, []float32{10, -20}, []float32{readFloat(got.Data), readFloat(got.Data[4:])}, dtype)
			got.Data = nil
			require.Equal(t, Tensor{Name: name, DType: F32, Type: "F32", Shape: shape, File: "f"}, got)
		}
		x, _ := c.Tensor("o")
		require.Equal(t, data, x.Data)
		require.Equal(t, []string{"m", "o", "v"}, c.Names())
		require.NoError(t, c.Close())
	}
}

// TestTransposedMatricesHaveTheirColumnsAsRows, and stacks of them matrix by matrix. What is no matrix of floats stays.
func TestTransposedMatricesHaveTheirColumnsAsRows(t *testing.T) {
	data := []byte{1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12}
	c := &Checkpoint{tensors: map[string]Tensor{
		"m": {Name: "m", DType: BF16, Shape: []int64{2, 6}, Data: data, File: "f"},
		"s": {Name: "s", DType: F16, Shape: []int64{2, 2, 3}, Data: data},
		"f": {Name: "f", DType: F32, Shape: []int64{3, 2}, Data: data},
		"v": {Name: "v", DType: BF16, Shape: []int64{12}, Data: data},
		"o": {Name: "o", DType: Other, Shape: []int64{2, 6}, Data: data},
	}}
	require.NoError(t, c.Transpose([]string{"m", "s", "f", "v", "o", "absent"}))
	for name, want := range map[string]Tensor{
		"m": {DType: BF16, Shape: []int64{6, 2}, Data: []byte{1, 1, 7, 7, 2, 2, 8, 8, 3, 3, 9, 9, 4, 4, 10, 10, 5, 5, 11, 11, 6, 6, 12, 12},
			File: "f"},
		"s": {DType: F16, Shape: []int64{2, 3, 2}, Data: []byte{1, 1, 4, 4, 2, 2, 5, 5, 3, 3, 6, 6, 7, 7, 10, 10, 8, 8, 11, 11, 9, 9, 12,
			12}},
		"f": {DType: F32, Shape: []int64{2, 3}, Data: []byte{1, 1, 2, 2, 5, 5, 6, 6, 9, 9, 10, 10, 3, 3, 4, 4, 7, 7, 8, 8, 11, 11, 12, 12}},
		"v": {DType: BF16, Shape: []int64{12}, Data: data},
		"o": {DType: Other, Shape: []int64{2, 6}, Data: data},
	} {
		want.Name = name
		got, ok := c.Tensor(name)
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	require.NoError(t, c.Close())
}

func TestRowsAreGatheredAndTensorsFlattenedOrSqueezed(t *testing.T) {
	data := []byte{1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6}
	c := &Checkpoint{tensors: map[string]Tensor{
		"m": {Name: "m", DType: BF16, Shape: []int64{3, 2}, Data: data, File: "f"},
		"n": {Name: "n", DType: BF16, Shape: []int64{2, 3}, Data: data}, // fewer rows
		"v": {Name: "v", DType: BF16, Shape: []int64{6}, Data: data},
		"o": {Name: "o", DType: Other, Shape: []int64{3, 2}, Data: data},
		"s": {Name: "s", DType: F16, Shape: []int64{2, 1, 3}, Data: data},
		"q": {Name: "q", DType: F16, Shape: []int64{1, 2, 1, 3}, Data: data},
	}}
	require.NoError(t, c.Gather([]string{"m", "n", "v", "o", "absent"}, []int64{2, 0, 2, 1}))
	c.Flatten([]string{"s", "o", "absent"})
	c.Squeeze([]string{"q", "o", "absent"})
	for name, want := range map[string]Tensor{
		"m": {DType: BF16, Shape: []int64{4, 2}, Data: []byte{5, 5, 6, 6, 1, 1, 2, 2, 5, 5, 6, 6, 3, 3, 4, 4}, File: "f"},
		"n": {DType: BF16, Shape: []int64{2, 3}, Data: data},
		"v": {DType: BF16, Shape: []int64{6}, Data: data},
		"o": {DType: Other, Shape: []int64{3, 2}, Data: data},
		"s": {DType: F16, Shape: []int64{6}, Data: data},
		"q": {DType: F16, Shape: []int64{2, 3}, Data: data},
	} {
		want.Name = name
		got, ok := c.Tensor(name)
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	require.NoError(t, c.Close())
}

// TestPartsOfAMatrixAreTransposed: of three rows each, the first two. The matrix itself stays, and one that is derived is made first.
func TestPartsOfAMatrixAreTransposed(t *testing.T) {
	data := []byte{1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12}
	c := &Checkpoint{tensors: map[string]Tensor{
		"m": {Name: "m", DType: BF16, Shape: []int64{6, 2}, Data: data, File: "f"},
		"t": {Name: "t", DType: BF16, Shape: []int64{2, 6}, Data: data},
		"v": {Name: "v", DType: BF16, Shape: []int64{12}, Data: data},
		"w": {Name: "w", DType: BF16, Shape: []int64{4, 3}, Data: data},
	}}
	require.NoError(t, c.Transpose([]string{"t"}))
	require.NoError(t, c.TransposeParts(map[string]string{"m": "m2", "t": "t2", "v": "v2", "w": "w2", "absent": "a2"}, 2, 2))
	want := Tensor{Name: "m2", DType: BF16, Shape: []int64{2, 2, 2}, Data: []byte{1, 1, 3, 3, 2, 2, 4, 4, 7, 7, 9, 9, 8, 8, 10, 10},
		File: "f"}
	got, _ := c.Tensor("m2")
	require.Equal(t, want, got)
	got, _ = c.Tensor("m")
	require.Equal(t, data, got.Data)
	got, _ = c.Tensor("t2") // of the rows 1 7, 2 8, 3 9, 4 10, 5 11, 6 12
	require.Equal(t, []byte{1, 1, 2, 2, 7, 7, 8, 8, 4, 4, 5, 5, 10, 10, 11, 11}, got.Data)
	got, _ = c.Tensor("w2")
	require.Equal(t, []int64{2, 3, 2}, got.Shape)
	require.Equal(t, []string{"m", "m2", "t", "t2", "v", "w", "w2"}, c.Names())
	require.NoError(t, c.Close())
}

// TestRowsOfAMatrixAreRepeated beside the matrix itself.
func TestRowsOfAMatrixAreRepeated(t *testing.T) {
	c := &Checkpoint{tensors: map[string]Tensor{
		"m": {Name: "m", DType: BF16, Shape: []int64{2, 2}, Data: []byte{1, 1, 2, 2, 3, 3, 4, 4}, File: "f"},
		"v": {Name: "v", DType: BF16, Shape: []int64{4}, Data: []byte{1, 1, 2, 2, 3, 3, 4, 4}},
	}}
	require.NoError(t, c.RepeatRows(map[string]string{"m": "m3", "v": "v3", "absent": "a3"}, 3))
	got, _ := c.Tensor("m3")
	want := Tensor{Name: "m3", DType: BF16, Shape: []int64{6, 2},
		Data: []byte{1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4, 3, 3, 4, 4}, File: "f"}
	require.Equal(t, want, got)
	require.Equal(t, []string{"m", "m3", "v"}, c.Names())
	require.NoError(t, c.Close())
}

func TestScaledRowsAreProductsInFloat32(t *testing.T) {
	halves := func(values ...float32) (data []byte) {
		for _, v := range values {
			data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(v)>>16))
		}
		return data
	}
	c := &Checkpoint{tensors: map[string]Tensor{
		"m": {Name: "m", DType: BF16, Shape: []int64{3, 2}, Data: halves(1, 2, 3, 4, 5, 6)},
		"v": {Name: "v", DType: BF16, Shape: []int64{3}, Data: halves(1, -2, 3)},
		"o": {Name: "o", DType: BF16, Shape: []int64{3}, Data: halves(1, 2, 3)},
	}}
	require.NoError(t, c.Scale(func(name string) func(int64) float32 {
		if name == "o" {
			return nil
		}
		return func(row int64) float32 { return 0.1 + float32(row) }
	}))
	for name, want := range map[string][]float32{"m": {0.1, 0.2, 1.1 * 3, 1.1 * 4, 2.1 * 5, 2.1 * 6}, "v": {0.1, -1.1 * 2, 2.1 * 3},
		"o": {1, 2, 3}} {
		got, ok := c.Tensor(name)
		require.True(t, ok)
		require.Equal(t, name != "o", got.DType == F32)
		for i, v := range want {
			require.InDelta(t, v, number(got, i), 1e-6, "%s %d", name, i)
		}
	}
	require.NoError(t, c.Close())
}
