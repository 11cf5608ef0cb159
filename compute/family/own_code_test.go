package family

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/weights"
)

// TestClassesBesideTheirCheckpointsHaveTheirOwnDefaults, as their code has them.
func TestClassesBesideTheirCheckpointsHaveTheirOwnDefaults(t *testing.T) {
	type defaults struct {
		Intermediate, Positions              int
		Eps                                  float32
		TieEmbeddings, QKV, OutBias, MLPBias bool
	}
	for class, want := range map[string]defaults{
		"InternLM2ForCausalLM": {Intermediate: 104, Positions: 2048, Eps: 1e-6, QKV: true, OutBias: true},
		"ExaoneForCausalLM":    {Intermediate: 104, Positions: 2048, Eps: 1e-5, TieEmbeddings: true},
		"MiniCPMForCausalLM":   {Intermediate: 104, Positions: 2048, Eps: 4e-6, TieEmbeddings: true}, // residuals are divided by 1 / 2
		"QWenLMHeadModel":      {Intermediate: 52, Positions: 2048, Eps: 1e-6, QKV: true},
		"XverseForCausalLM":    {Intermediate: 104, Positions: 8192, Eps: 1e-6},
	} {
		t.Run(class, func(t *testing.T) {
			c, err := parse(t, plain(class, object{"head_dim": 40, "seq_length": 2048}))
			require.NoError(t, err)
			require.Equal(t, []int{32, 8}, []int{c.HeadDim, c.KVHeads}, "hidden / heads, as many KV heads")
			require.InDelta(t, 10000, c.Rope.Theta, 0)
			require.Equal(t, want, defaults{c.Intermediate, c.MaxPositions, c.Eps, c.TieEmbeddings, c.QKVBias, c.OutBias, c.MLPBias})
		})
	}
	c, p := llamaPlanOf(t, "OrionForCausalLM", object{"num_attention_heads": 40, "hidden_size": 320})
	require.Equal(t, []int{40, 8, 4096}, []int{c.KVHeads, c.HeadDim, c.MaxPositions})
	require.True(t, p.layerNorm)
	c, err := parse(t, plain("ExaoneForCausalLM", object{"intermediate_size": "absent", "num_layers": 3}))
	require.NoError(t, err)
	require.Equal(t, []int{1024, 3}, []int{c.Intermediate, c.Layers})
}

func TestClassesBesideTheirCheckpointsRefuseWhatTheyDoNotHave(t *testing.T) {
	requireFault(t, "MiniCPMForCausalLM", "num_experts: found 8, expected 0", object{"num_experts": 8})
	requireFault(t, "MiniCPMForCausalLM", "sparse_config.dense_len: found 1, expected an integer in 2..",
		object{"sparse_config": object{"dense_len": 1}})
	requireFault(t, "QWenLMHeadModel", "seq_length: found nothing, expected an integer in 1..", nil)
	for member, v := range map[string]any{"kv_channels": 16, "rotary_pct": 0.5, "scale_attn_weights": false, "intermediate_size": 105} {
		requireFault(t, "QWenLMHeadModel", member+": found ", object{member: v, "seq_length": 128})
	}
	c, err := parse(t, plain("MiniCPMForCausalLM", object{"sparse_config": object{"topk": 64}, "max_position_embeddings": 65536}))
	require.NoError(t, err)
	require.Equal(t, 8191, c.MaxPositions)
	require.NotEmpty(t, c.Shortened)
}

// TestGGUFOfMiniCPMHasLlamaCppsFactors where old files have none, and that of Qwen 1 the length that no published model goes below.
func TestGGUFOfMiniCPMHasLlamaCppsFactors(t *testing.T) {
	read := func(kind string, keys weights.Metadata) *Config {
		f, err := ggufFields("a.gguf", ggufOf(kind, keys), ggufTables())
		require.NoError(t, err)
		c, err := parseConfig(f)
		require.NoError(t, err)
		return c
	}
	p := read("minicpm", nil).plan.(granitePlan)
	require.InDelta(t, 12/(1.4/math.Sqrt2), p.embedScale, 1e-5)
	require.InDelta(t, 48.0/256, p.logitsScaling, 1e-7)
	p = read("minicpm", weights.Metadata{"embedding_scale": 2.0, "residual_scale": 0.5, "logit_scale": 3.0}).plan.(granitePlan)
	require.InDelta(t, 4, p.embedScale, 0)
	require.InDelta(t, 3, p.logitsScaling, 0)

	c := read("qwen", weights.Metadata{"context_length": int64(8192)})
	require.Equal(t, 2048, c.MaxPositions)
	require.NotEmpty(t, c.Shortened)
}

// TestBaichuanHasALiBiWithoutPositions of a rotary embedding, and Baichuan 2 a head with normalized rows.
func TestBaichuanHasALiBiWithoutPositions(t *testing.T) {
	read := func(changes object) (*Config, baichuanPlan) {
		c, err := parse(t, plain("BaiChuanForCausalLM", changes))
		require.NoError(t, err)
		return c, c.plan.(baichuanPlan)
	}
	c, p := read(object{"max_position_embeddings": 4096, "model_max_length": 2048, "rope_theta": 5})
	require.Equal(t, []any{4096, 32, false, false}, []any{c.MaxPositions, p.rotary, p.alibi, p.normedHead})
	require.InDelta(t, 10000, c.Rope.Theta, 0)
	c, p = read(object{"model_max_length": 2048, "num_hidden_layers": 40})
	require.Equal(t, []any{2048, 0, true, false}, []any{c.MaxPositions, p.rotary, p.alibi, p.normedHead})
	_, p = read(object{"model_max_length": 2048, "vocab_size": 125696})
	require.True(t, p.normedHead)

	const class = "BaichuanForCausalLM"
	requireFault(t, class, "max_position_embeddings: found nothing, expected an integer", nil)
	requireFault(t, class, "num_hidden_layers: found 40, expected another number",
		object{"max_position_embeddings": 4096, "num_hidden_layers": 40})
	requireFault(t, class, "tie_word_embeddings: found true, expected false",
		object{"model_max_length": 2048, "z_loss_weight": 0, "tie_word_embeddings": true})
	f, err := ggufFields("a.gguf", ggufOf("baichuan", weights.Metadata{"block_count": int64(40)}), ggufTables())
	require.NoError(t, err)
	_, err = parseConfig(f)
	require.ErrorContains(t, err, "a.gguf: baichuan.block_count: found 40, expected another number")
}

// TestTheHeadOfBaichuan2IsNormalized: the logits of the fixture are those of its rows divided by their lengths.
func TestTheHeadOfBaichuan2IsNormalized(t *testing.T) {
	c, err := LoadConfig("../../testdata/models/baichuan2-13b")
	require.NoError(t, err)
	w, err := OpenWeights(c)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	head, ok := w.Tensor("lm_head.weight")
	require.True(t, ok)
	require.Equal(t, weights.F32, head.DType)
	for row := range c.Vocab {
		squares := 0.0
		for i := range c.Hidden {
			v := float64(math.Float32frombits(binary.LittleEndian.Uint32(head.Data[4*(row*c.Hidden+i):])))
			squares += v * v
		}
		require.InDelta(t, 1, squares, 1e-6)
	}
}
