package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWeightNamesGoBothWays(t *testing.T) {
	for _, name := range WeightNames() {
		w, err := ParseWeights(name)
		require.NoError(t, err)
		require.Equal(t, name, w.String())
	}
	require.Equal(t, "bf16", Weights{}.String())
	require.Equal(t, "blocks", Weights{Type: WeightsBlocks}.String())
	w, err := ParseWeights("")
	require.NoError(t, err)
	require.Equal(t, WeightPlan{}, w)
	for _, name := range []string{"int3", "nf4-32", "nf4-128"} {
		_, err = ParseWeights(name)
		require.EqualError(t, err, `found "`+name+`", expected file, bf16, int8, int4, int4-64, int4-128, fp8, nf4`)
	}
}

func TestAPlanNamesTheOpsThatDiffer(t *testing.T) {
	program := func() *Program {
		return &Program{Ops: []Op{
			{Kind: OpLinear, Name: "attn.out", Layer: 0},
			{Kind: OpLinear, Name: "mlp.down", Layer: 0},
			{Kind: OpLinear, Name: "logits", Layer: None},
		}}
	}
	const text = "int4+attn.out=bf16+logits=nf4"
	plan, err := ParseWeights(text)
	require.NoError(t, err)
	require.Equal(t, text, plan.String())
	p := program()
	require.NoError(t, p.SetWeights(plan))
	require.Equal(t, Weights{}, p.Ops[0].Weights)
	require.Equal(t, Weights{WeightsInt4, 32}, p.Ops[1].Weights)
	require.Equal(t, Weights{WeightsNF4, 64}, p.Ops[2].Weights, "as it is named")

	plan, err = ParseWeights("int8+attn.qkv=bf16")
	require.NoError(t, err)
	require.EqualError(t, program().SetWeights(plan),
		`weights "int8+attn.qkv=bf16": found op "attn.qkv", expected one of attn.out, mlp.down, logits`)
	for text, want := range map[string]string{
		"int8+":                           "found \"\", expected OP=TYPE, such as attn.out=bf16",
		"int8+attn.out":                   "found \"attn.out\", expected OP=TYPE, such as attn.out=bf16",
		"int8+=bf16":                      "found \"=bf16\", expected OP=TYPE, such as attn.out=bf16",
		"int8+attn.out=fp4":               "attn.out: found \"fp4\", expected file, bf16, int8",
		"int8+attn.out=bf16+attn.out=fp8": "found attn.out twice",
		"+attn.out=bf16":                  "found \"\", expected file, bf16, int8",
	} {
		_, err := ParseWeights(text)
		require.ErrorContains(t, err, want, text)
	}
}

// TestBlocksStayWhereAllPartsAreOfBlocks and the plan has the file's weights, as the zero plan does.
func TestBlocksStayWhereAllPartsAreOfBlocks(t *testing.T) {
	p := &Program{
		Ops: []Op{
			{Kind: OpLinear, Name: "all", Parts: []Part{{Weight: 0}, {Weight: 1}}},
			{Kind: OpLinear, Name: "some", Parts: []Part{{Weight: 0}, {Weight: 2}}},
			{Kind: OpLinear, Name: "none", Parts: []Part{{Weight: 2}}},
		},
		Tensors: []Tensor{{Blocks: "Q4_K"}, {Blocks: "Q6_K"}, {}},
	}
	types := func(text string) (got []WeightType) {
		plan, err := ParseWeights(text)
		require.NoError(t, err)
		require.NoError(t, p.SetWeights(plan))
		for _, op := range p.Ops {
			got = append(got, op.Weights.Type)
		}
		require.NoError(t, p.SetWeights(plan.WithoutBlocks()))
		for _, op := range p.Ops {
			require.NotEqual(t, WeightsBlocks, op.Weights.Type)
		}
		return got
	}
	require.Equal(t, []WeightType{WeightsBlocks, Weights16Bit, Weights16Bit}, types("file"))
	require.Equal(t, []WeightType{Weights16Bit, Weights16Bit, Weights16Bit}, types("bf16"))
	require.Equal(t, []WeightType{WeightsBlocks, WeightsInt8, WeightsInt8}, types("int8+all=file"))
	require.Equal(t, []WeightType{Weights16Bit, Weights16Bit, WeightsInt8}, types("file+all=bf16+none=int8"))
}

// TestBlocksStayWhereOneKernelMultipliesThem: not those of floats beside those of integers, nor with columns in several orders, but those
// of other experts.
func TestBlocksStayWhereOneKernelMultipliesThem(t *testing.T) {
	tensors := []Tensor{{Blocks: "Q4_K"}, {Blocks: "FP8"}, {Blocks: "FP8_32"}, {Blocks: "NF4"}, {Blocks: "Q4_Z", Order: "1"},
		{Blocks: "Q4_Z", Order: "2"}}
	keeps := func(experts int, parts ...int) bool {
		op := Op{Kind: OpLinear}
		if experts > 0 {
			op.Routed, op.Routing.Experts = RoutedEach, experts
		}
		for _, part := range parts {
			op.Parts = append(op.Parts, Part{Weight: part})
		}
		p := &Program{Ops: []Op{op}, Tensors: tensors}
		require.NoError(t, p.SetWeights(WeightPlan{}))
		return p.Ops[0].Weights.Type == WeightsBlocks
	}
	require.True(t, keeps(0, 1, 2))
	require.True(t, keeps(0, 3, 3))
	require.False(t, keeps(0, 0, 1))
	require.False(t, keeps(0, 1, 3))
	require.True(t, keeps(0, 4, 4))
	require.False(t, keeps(0, 4, 5))
	require.False(t, keeps(0, 0, 4))
	require.True(t, keeps(2, 4, 4, 5, 5))
	require.True(t, keeps(2, 4, 5))
	require.False(t, keeps(2, 4, 5, 4, 5))
}

func TestTheTextOfWeightsHasTheTypeOfMostBlocks(t *testing.T) {
	text := func(weights string, tensors ...Tensor) string {
		plan, err := ParseWeights(weights)
		require.NoError(t, err)
		return (&Program{Tensors: tensors}).WeightsText(plan)
	}
	q4, q6 := Tensor{Blocks: "Q4_K", Bytes: 30}, Tensor{Blocks: "Q6_K", Bytes: 20}
	require.Equal(t, "bf16", text("file", Tensor{}))
	require.Equal(t, "Q4_K", text("file", q6, q4, Tensor{}))
	require.Equal(t, "Q6_K+logits=bf16", text("file+logits=bf16", q6, q4, q6))
	require.Equal(t, "int8", text("int8", q4))
	require.Equal(t, "bf16", text("bf16", q4))
}

func TestOnlyLayersKeepFourBits(t *testing.T) {
	p := &Program{Ops: []Op{
		{Kind: OpNorm, Layer: 0},
		{Kind: OpLinear, Layer: 0},
		{Kind: OpLinear, Layer: None},
	}}
	require.NoError(t, p.SetWeights(WeightPlan{all: Weights{WeightsInt4, 64}}))
	require.Equal(t, Weights{}, p.Ops[0].Weights)
	require.Equal(t, Weights{WeightsInt4, 64}, p.Ops[1].Weights)
	require.Equal(t, Weights{Type: WeightsInt8}, p.Ops[2].Weights)
	require.NoError(t, p.SetWeights(WeightPlan{all: Weights{WeightsNF4, 64}}))
	require.Equal(t, Weights{WeightsNF4, 64}, p.Ops[1].Weights)
	require.Equal(t, Weights{Type: WeightsFP8}, p.Ops[2].Weights)
	require.NoError(t, p.SetWeights(WeightPlan{}))
	require.Equal(t, Weights{}, p.Ops[2].Weights)
}

// Two rows of 100: int8 and fp8 have a float32 scale for each, int4 four groups of 16 bytes
// and a bf16 scale, nf4 two of 32.
func TestQuantizedWeightsAreCountedWithTheirScales(t *testing.T) {
	require.Equal(t, int64(400), Weights{}.bytes(2, 100, 2))
	require.Equal(t, int64(208), Weights{Type: WeightsInt8}.bytes(2, 100, 2))
	require.Equal(t, int64(208), Weights{Type: WeightsFP8}.bytes(2, 100, 2))
	require.Equal(t, int64(2*2*34), Weights{WeightsNF4, 64}.bytes(2, 100, 2))
	require.Equal(t, int64(2*4*18), Weights{WeightsInt4, 32}.bytes(2, 100, 2))
	require.Equal(t, int64(2*1*66), Weights{WeightsInt4, 128}.bytes(2, 100, 2))
}
