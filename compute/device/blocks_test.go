package device_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// table is a checkpoint of one tensor.
type table weights.Tensor

func (x table) Tensor(string) (weights.Tensor, bool)   { return weights.Tensor(x), true }
func (x table) Reserved(string) (weights.Tensor, bool) { return weights.Tensor(x), true }
func (x table) Use([]string)                           {}
func (x table) Forget([]string) error                  { return nil }

// TestBlocksAreTheValuesOfTheirTypesFormulae compares every type of blocks with gguf-py, which made the file: as rows of a token table.
func TestBlocksAreTheValuesOfTheirTypesFormulae(t *testing.T) {
	file, err := weights.OpenFile(quantized + "blocks.safetensors")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	types := weights.BlockTypes()
	require.Len(t, types, 22)
	for name, dtype := range types {
		t.Run(name, func(t *testing.T) {
			blocks, ok := file.Tensor(name + ".blocks")
			require.True(t, ok)
			values, ok := file.Tensor(name + ".values")
			require.True(t, ok)
			rows, width := int(values.Shape[0]), int(values.Shape[1])
			want := numbers(values)

			x := table{DType: dtype, Type: name, Shape: []int64{int64(width), int64(width)}}
			for len(x.Data) < int(dtype.Bytes(int64(width*width))) { // as many rows as a vocabulary of the width has
				x.Data = append(x.Data, blocks.Data...)
			}
			embed := model.Op{Kind: model.OpEmbed, In: model.None, Out: 0, Weight: 0, Bias: model.None, Types: model.None, EmbedScale: 1,
				Layer: model.None}
			selected := model.Op{Kind: model.OpSelectRows, In: 0, Out: 1, Weight: model.None, Bias: model.None, Layer: model.None}
			p := &model.Program{
				Ops:     []model.Op{embed, selected},
				Slots:   []model.Slot{{Type: model.SlotF32, Width: width}, {Type: model.SlotF32, Width: width}},
				Tensors: []model.Tensor{{Name: "table", Shape: x.Shape, Blocks: name}}, Vocab: width, Hidden: width, Layers: 1,
				KVHeads: 1, HeadDim: 16, MaxPositions: rows,
			}
			tokens := make([]int32, rows)
			for i := range tokens {
				tokens[i] = int32(i)
			}
			for _, backend := range []string{"ref", "cpu"} {
				got := open(t, backend, "", p, x, rows).run(t, tokens)
				for row := range got {
					for i, v := range got[row] {
						require.InDelta(t, want[row*width+i], float64(weights.F16.Round(v)), 0, "%s: row %d, element %d", backend, row, i)
					}
				}
			}
		})
	}
}

// TestBlocksOfAFileStayAsTheyAre: on every variant of the CPU backend the logits are near those of ref, whose weights are the same
// numbers and whose rows become the same codes, and do not depend on how the tokens are cut into steps.
func TestBlocksOfAFileStayAsTheyAre(t *testing.T) {
	for _, name := range []string{"tiny-q8_0.gguf", "tiny-q4_0.gguf", "tiny-q4_k_m.gguf", "awq", "gptq-v2", "gptq-4-act", "fp8",
		"fp8-128", "ct-fp8", "bnb-nf4", "bnb-int8", "ct-nvfp4", "ct-mxfp4", "bitnet", "bitnet-online"} {
		t.Run(name, func(t *testing.T) {
			_, p, w := openModel(t, quantized+name)
			for i := range p.Ops {
				if op := &p.Ops[i]; op.Kind == model.OpLinear && (op.Layer != model.None || strings.HasSuffix(name, ".gguf")) {
					require.Equal(t, model.Weights{Type: model.WeightsBlocks}, op.Weights, op.Name)
				}
			}
			want, _ := expectedLogits(t, name)
			tokens := quantizedTokens(len(want), p.Vocab)
			ref := open(t, "ref", "", p, w, len(tokens)).run(t, tokens)
			requireClose(t, want, ref, 0.04*largest(want))
			for _, o := range variants(t, "cpu") {
				s := openWith(t, o, p, w, len(tokens))
				whole := s.run(t, tokens)
				off := distance(ref, whole)
				t.Logf("%s is %.2g away from ref", o.ISA, off)
				require.LessOrEqual(t, off, allowed, o.ISA)
				requireClose(t, want, whole, 0.04*largest(want))
				s.restart()
				for i := range tokens {
					requireSameBits(t, whole[i], s.run(t, tokens[i:i+1])[0], i)
				}
			}
		})
	}
}

// changed is a checkpoint with another version of a tensor.
type changed struct {
	device.Tensors
	other weights.Tensor
}

func (c changed) Reserved(name string) (weights.Tensor, bool) {
	if name == c.other.Name {
		return c.other, true
	}
	return c.Tensors.Reserved(name)
}

// TestPartsThatDoNotGoTogetherAreRefused: one kernel multiplies the parts of an op, and gathers a row for all of them.
func TestPartsThatDoNotGoTogetherAreRefused(t *testing.T) {
	_, p, w := openModel(t, quantized+"gptq-4-act")
	i := slices.IndexFunc(p.Ops, func(op model.Op) bool { return len(op.Parts) == 3 })
	require.Equal(t, model.Weights{Type: model.WeightsBlocks}, p.Ops[i].Weights)
	_, _, floats := openModel(t, quantized+"fp8-128")
	for want, c := range map[string]struct {
		part   int
		change func(x weights.Tensor) weights.Tensor
	}{
		"part 1: weight (tensor 3) has other columns than the first part": {1, func(x weights.Tensor) weights.Tensor {
			x.Order = slices.Concat(x.Order[4:8], x.Order[:4], x.Order[8:])
			return x
		}},
		"part 2: weight (tensor 4) has other columns than the first part": {2, func(x weights.Tensor) weights.Tensor {
			x.Order = nil
			return x
		}},
		"order is 256, expected 0 to 255": {0, func(x weights.Tensor) weights.Tensor {
			x.Order = slices.Concat([]byte{0, 1, 0, 0}, x.Order[4:])
			return x
		}},
		"part 1: weight (tensor 3) is of blocks of FP8, which do not go with Q4_Z32": {1, func(x weights.Tensor) weights.Tensor {
			other, ok := floats.Tensor(x.Name)
			require.True(t, ok)
			return other
		}},
		"part 1: weight (tensor 3) is F16, expected blocks": {1, func(x weights.Tensor) weights.Tensor {
			x.DType, x.Data = weights.F16, make([]byte, 2*x.Shape[0]*x.Shape[1])
			return x
		}},
	} {
		x, ok := w.Tensor(p.Tensors[p.Ops[i].Parts[c.part].Weight].Name)
		require.True(t, ok)
		for _, backend := range []string{"ref", "cpu"} {
			d, err := device.Open(options(t, backend, ""))
			require.NoError(t, err)
			_, err = d.Load(p, changed{w, c.change(x)}, device.Limits{MaxRows: 4, MaxOutputs: 4})
			require.ErrorContains(t, err, want, backend)
			require.ErrorIs(t, err, device.ErrInvalid)
			d.Close()
		}
	}
}

// TestADeviceWithoutBlocksSaysSo: with 16 bits the model runs there.
func TestADeviceWithoutBlocksSaysSo(t *testing.T) {
	for _, backend := range device.Optional() {
		t.Run(backend, func(t *testing.T) {
			if !tested(t, backend) {
				t.Skip("NOT TESTED: see above")
			}
			_, p, w := openModel(t, quantized+"tiny-q4_k_m.gguf")
			d, err := device.Open(options(t, backend, ""))
			require.NoError(t, err)
			t.Cleanup(d.Close)
			info, err := d.Info()
			require.NoError(t, err)
			require.False(t, info.KeepsBlocks)
			_, err = d.Load(p, w, device.Limits{MaxRows: 4, MaxOutputs: 4})
			require.ErrorIs(t, err, device.ErrUnsupported)
			require.ErrorContains(t, err, "weights of blocks, expected another type")
			require.NoError(t, p.SetWeights(model.WeightPlan{}.WithoutBlocks()))
			tokens := []int32{1, 2, 3}
			want := open(t, "ref", "", p, w, len(tokens)).run(t, tokens)
			require.Less(t, distance(want, open(t, backend, "", p, w, len(tokens)).run(t, tokens)), 0.04)
		})
	}
}
