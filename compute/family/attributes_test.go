package family

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

// plain is a configuration with what the classes of Llama's form require, and nothing else.
func plain(class string, changes object) object {
	return with(object{
		"architectures": []string{class}, "vocab_size": 131, "hidden_size": 256, "intermediate_size": 104,
		"num_hidden_layers": 4, "num_attention_heads": 8,
	}, changes)
}

func llamaPlanOf(t *testing.T, class string, changes object) (*Config, llamaPlan) {
	t.Helper()
	c, err := parse(t, plain(class, changes))
	require.NoError(t, err)
	return c, c.plan.(llamaPlan)
}

func requireFault(t *testing.T, class, want string, changes object) {
	t.Helper()
	_, err := parse(t, plain(class, changes))
	require.ErrorContains(t, err, want)
}

func TestOLMoDefaults(t *testing.T) {
	for _, class := range []string{"Olmo2ForCausalLM", "Olmo3ForCausalLM"} {
		c, p := llamaPlanOf(t, class, nil)
		require.Equal(t, []int{8, 32, 2048}, []int{c.KVHeads, c.HeadDim, c.MaxPositions})
		require.InDelta(t, 1e-5, c.Eps, 1e-12)
		require.True(t, p.wideNorms)
		require.Equal(t, layerNorms{attended: "post_attention_layernorm", mlpDone: "post_feedforward_layernorm"}, p.norms)
	}
	c, p := llamaPlanOf(t, "Olmo3ForCausalLM", object{"rope_scaling": object{"rope_type": "linear", "factor": 2}})
	require.Equal(t, []int{4096, 4096, 4096, 0}, c.Windows)
	require.Equal(t, Rope{Type: "default", Theta: 500000}, *p.local)
	require.Equal(t, []any{"linear", 500000.0}, []any{c.Rope.Type, c.Rope.Theta}, "of layers without a window")

	c, p = llamaPlanOf(t, "OlmoeForCausalLM", object{"intermediate_size": "absent"})
	require.Equal(t, []int{4096, 64, 8, 2048}, []int{c.MaxPositions, p.experts.routing.Experts, p.experts.routing.TopK,
		p.experts.intermediate})
	require.False(t, p.experts.routing.Normalize)
	requireFault(t, "OlmoeForCausalLM", "clip_qkv: found 8, expected null", object{"clip_qkv": 8})

	c, err := parse(t, plain("OlmoForCausalLM", object{"clip_qkv": 8}))
	require.NoError(t, err)
	require.True(t, c.plan.(blockPlan).bareNorms)
	require.Equal(t, float32(8), c.plan.(blockPlan).clip)
}

func TestGemma2Defaults(t *testing.T) {
	c, p := llamaPlanOf(t, "Gemma2ForCausalLM", object{"num_hidden_layers": 3})
	require.Equal(t, []int{4096, 0, 4096}, c.Windows)
	require.Equal(t, []int{4, 256, 8192}, []int{c.KVHeads, c.HeadDim, c.MaxPositions})
	require.Equal(t, []float32{50, 30, 1.0 / 16, 16}, []float32{p.softcap, p.finalSoftcap, p.attentionScale, p.embedScale})
	require.Equal(t, model.ActGELUTanh, c.Activation)
	require.True(t, c.TieEmbeddings)
	_, p = llamaPlanOf(t, "Gemma2ForCausalLM", object{"attn_logit_softcapping": nil, "final_logit_softcapping": nil})
	require.Equal(t, []float32{0, 0}, []float32{p.softcap, p.finalSoftcap})
	requireFault(t, "Gemma2ForCausalLM", "final_logit_softcapping: found 0", object{"final_logit_softcapping": 0})
}

func TestHunyuanNumbersOfExpertsMayBeLists(t *testing.T) {
	moe := object{"num_experts": []int{8, 8, 8, 8}, "moe_topk": []int{2, 2, 2, 2}, "head_dim": 32}
	c, p := llamaPlanOf(t, "HunYuanMoEV1ForCausalLM", moe)
	require.Equal(t, []int{8, 2, 104, 104}, []int{p.experts.routing.Experts, p.experts.routing.TopK, p.experts.intermediate,
		p.experts.shared})
	require.True(t, p.normLast && c.QKNorm)
	requireFault(t, "HunYuanMoEV1ForCausalLM", "moe_topk: found [2,1], expected the same number for each layer",
		with(moe, object{"moe_topk": []int{2, 1}}))
	c, _ = llamaPlanOf(t, "HunYuanDenseV1ForCausalLM", object{"head_dim": 32, "rope_scaling": object{"type": "dynamic", "alpha": 1000}})
	require.InDelta(t, 10000*math.Pow(1000, 32.0/30), c.Rope.Theta, 1)
}

func TestQueriesGrowWithThePosition(t *testing.T) {
	scales := temperature{beta: 0.5, tokens: 8}.scales(20)
	require.Equal(t, []float32{1, float32(1 + 0.5*math.Ln2), float32(1 + 0.5*math.Log(3))}, scales)
	require.Len(t, temperature{beta: 1, tokens: 8, offset: 1}.scales(15), 2)
	require.Len(t, temperature{beta: 1, tokens: 8, offset: 1}.scales(16), 3, "the last position is in the third")

	c, p := llamaPlanOf(t, "Ministral3ForCausalLM", nil)
	require.Equal(t, temperature{beta: 0.1, tokens: 16384}, *p.temperature)
	require.Equal(t, []any{"yarn", 1e6, 262144, 128, 8}, []any{c.Rope.Type, c.Rope.Theta, c.MaxPositions, c.HeadDim, c.KVHeads})
	_, p = llamaPlanOf(t, "Ministral3ForCausalLM", object{"rope_parameters": object{"rope_type": "default"}})
	require.Nil(t, p.temperature)
}

func TestLlama4Layers(t *testing.T) {
	c, p := llamaPlanOf(t, "Llama4ForCausalLM", object{"interleave_moe_layer_step": 2, "attention_chunk_size": 7})
	require.Equal(t, []int{7, 7, 7, 0}, c.Windows)
	require.Equal(t, []bool{false, false, false, true}, p.unrotated)
	require.Equal(t, []int{0, 2}, p.experts.dense)
	require.Equal(t, []int{16384, 104, 104}, []int{c.Intermediate, p.experts.intermediate, p.experts.shared})
	require.Equal(t, temperature{beta: 0.1, tokens: 8192, offset: 1, unrotated: true}, *p.temperature)
	require.True(t, p.plainNorms && p.interleaved && p.experts.weighsIn)

	c, p = llamaPlanOf(t, "Llama4ForCausalLM", object{
		"moe_layers": []int{1}, "no_rope_layers": []int{1, 0, 1, 1}, "attention_chunk_size": nil, "use_qk_norm": false,
		"attn_temperature_tuning": false,
	})
	require.Nil(t, c.Windows)
	require.Equal(t, []bool{false, true, false, false}, p.unrotated)
	require.Equal(t, []int{0, 2, 3}, p.experts.dense)
	require.Nil(t, p.temperature)
	require.False(t, p.plainNorms)
	c, _ = llamaPlanOf(t, "Llama4ForCausalLM", object{"attention_chunk_size": 7, "layer_types": []string{full, chunks, full, chunks}})
	require.Equal(t, []int{0, 7, 0, 7}, c.Windows)
}

func TestGPTOSSDefaults(t *testing.T) {
	c, p := llamaPlanOf(t, "GptOssForCausalLM", object{"experts_per_token": 3})
	require.Equal(t, []int{8, 64, 131072}, []int{c.KVHeads, c.HeadDim, c.MaxPositions})
	require.Equal(t, []int{128, 0, 128, 0}, c.Windows)
	require.Equal(t, []any{"yarn", 150000.0, 32.0, false}, []any{c.Rope.Type, c.Rope.Theta, c.Rope.Factor, c.Rope.Truncate})
	require.True(t, p.sinks && c.QKVBias && c.OutBias && p.experts.biased && p.experts.alternate)
	require.Equal(t, []int{128, 3}, []int{p.experts.routing.Experts, p.experts.routing.TopK})
	require.Equal(t, []float32{7, 1.702}, []float32{p.experts.limit, p.experts.alpha})
}

func TestMiniMaxM2RotatesPartOfAHead(t *testing.T) {
	_, p := llamaPlanOf(t, "MiniMaxM2ForCausalLM", object{"rotary_dim": 64})
	require.Equal(t, 64, p.rotary)
	_, p = llamaPlanOf(t, "MiniMaxM2ForCausalLM", nil)
	require.Equal(t, 128, p.rotary)
	require.Equal(t, model.RouteSigmoid, p.experts.routing.Scores)
}

func TestPhimoeScalesOfLongrope(t *testing.T) {
	factors := make([]float64, 16)
	for i := range factors {
		factors[i] = 1
	}
	rope := object{"type": "longrope", "short_factor": factors, "long_factor": factors, "short_mscale": 1.25, "long_mscale": 1.5,
		"original_max_position_embeddings": 4096}
	c, p := llamaPlanOf(t, "PhimoeForCausalLM", object{"rope_scaling": rope})
	require.InDelta(t, 1.5, c.Rope.AttentionFactor, 0)
	require.InDelta(t, 0.01, p.experts.routing.Jitter, 1e-6)
	c, _ = llamaPlanOf(t, "PhimoeForCausalLM", object{"rope_scaling": rope, "max_position_embeddings": 4096})
	require.InDelta(t, 1.25, c.Rope.AttentionFactor, 0)
	requireFault(t, "PhimoeForCausalLM", "rope_scaling: found linear, expected longrope",
		object{"rope_scaling": object{"type": "linear", "factor": 2}})
}

func TestMLPsWithoutAGate(t *testing.T) {
	c, p := llamaPlanOf(t, "ArceeForCausalLM", nil)
	require.True(t, p.upOnly)
	require.Equal(t, model.ActReLU2, c.Activation)
	_, p = llamaPlanOf(t, "ApertusForCausalLM", nil)
	require.True(t, p.upOnly && p.xielu)
	_, p = llamaPlanOf(t, "ApertusForCausalLM", object{"hidden_act": "relu2"})
	require.False(t, p.xielu)
	c, err := parse(t, plain("NemotronForCausalLM", nil))
	require.NoError(t, err)
	require.Equal(t, []any{model.ActReLU2, 16, 4096}, []any{c.Activation, c.plan.(blockPlan).rotary, c.MaxPositions})
	c, err = parse(t, plain("PersimmonForCausalLM", object{"num_key_value_heads": 2}))
	require.NoError(t, err)
	require.Equal(t, []any{8, true, 16384}, []any{c.KVHeads, c.plan.(blockPlan).qkNorms, c.MaxPositions})
}

func TestKEXAONELayers(t *testing.T) {
	c, p := llamaPlanOf(t, "ExaoneMoeForCausalLM", object{"num_key_value_heads": 8, "num_experts": 16, "num_shared_experts": 2})
	require.Equal(t, []int{4096, 4096, 4096, 0}, c.Windows)
	require.Equal(t, []bool{false, false, false, true}, p.unrotated)
	require.Equal(t, []int{0}, p.experts.dense)
	require.Equal(t, []int{16, 8}, []int{p.experts.routing.Experts, p.experts.routing.TopK})
	require.Equal(t, 2048, p.experts.shared)
	require.Equal(t, layerNorms{}, p.norms)
	_, p = llamaPlanOf(t, "ExaoneMoeForCausalLM", object{"num_key_value_heads": 8, "num_experts_per_tok": 2,
		"mlp_layer_types": []string{"sparse", "dense", "sparse", "dense"}})
	require.Equal(t, []int{1, 3}, p.experts.dense)
	requireFault(t, "ExaoneMoeForCausalLM", "mlp_layer_types: found 1 entries, expected one for each of 4 layers",
		object{"num_key_value_heads": 8, "mlp_layer_types": []string{"dense"}})
}

func TestVaultGemmaHasNoNormsAfterBlocks(t *testing.T) {
	_, p := llamaPlanOf(t, "VaultGemmaForCausalLM", nil)
	require.Equal(t, layerNorms{attention: "input_layernorm", mlp: "pre_feedforward_layernorm"}, p.norms)
	require.InDelta(t, 50, p.softcap, 0)
	c, err := parse(t, plain("Jais2ForCausalLM", nil))
	require.NoError(t, err)
	require.Equal(t, []any{model.ActReLU2, 8192, true, true}, []any{c.Activation, c.MaxPositions, c.QKVBias, c.MLPBias})
}

func TestLatentDefaults(t *testing.T) {
	sizes := func(p llamaPlan) []int {
		l, e := p.latents, p.experts
		all := []int{l.queryRank, l.rank, l.plain, l.rotated, l.value}
		if e != nil {
			all = append(all, e.routing.Experts, e.routing.TopK, e.intermediate, e.shared, len(e.dense), e.routing.Groups,
				e.routing.TopGroups)
		}
		return all
	}
	for class, want := range map[string][]int{
		"DeepseekV2ForCausalLM":  {1536, 512, 128, 64, 128, 64, 6, 1407, 2814, 0, 1, 1},
		"DeepseekV3ForCausalLM":  {1536, 512, 128, 64, 128, 256, 8, 2048, 2048, 3, 8, 4},
		"Glm4MoeLiteForCausalLM": {768, 512, 192, 64, 256, 64, 4, 1536, 1536, 1, 1, 1},
		"Mistral4ForCausalLM":    {1024, 256, 64, 64, 128, 128, 4, 2048, 2048, 0, 1, 1},
		"YoutuForCausalLM":       {1536, 512, 128, 64, 128},
	} {
		changes := object{}
		if class == "DeepseekV2ForCausalLM" {
			changes["num_experts_per_tok"] = 6
		}
		_, p := llamaPlanOf(t, class, changes)
		require.Equal(t, want, sizes(p), class)
		changes["q_lora_rank"] = nil
		_, p = llamaPlanOf(t, class, changes)
		require.Zero(t, p.latents.queryRank, class)
	}
	c, p := llamaPlanOf(t, "Mistral4ForCausalLM", nil)
	require.Equal(t, []any{"yarn", 1048576, 8192}, []any{c.Rope.Type, c.MaxPositions, p.temperature.tokens})
	m, err := parse(t, plain("MiniCPM3ForCausalLM", nil))
	require.NoError(t, err)
	g := m.plan.(granitePlan)
	require.Equal(t, []int{768, 256, 64, 32, 32}, sizes(g.llamaPlan))
	require.InDelta(t, 12/0.7, g.embedScale, 1e-5)
	require.InDelta(t, 1e-5/0.49, m.Eps, 1e-9)
	require.InDelta(t, 1, g.logitsScaling, 0)

	requireFault(t, "DeepseekV2ForCausalLM", "topk_method: found \"noaux_tc\", expected greedy or group_limited_greedy",
		object{"num_experts_per_tok": 6, "topk_method": "noaux_tc"})
	requireFault(t, "DeepseekV3ForCausalLM", "qk_rope_head_dim: found 7, expected an even number", object{"qk_rope_head_dim": 7})
	requireFault(t, "DeepseekV3ForCausalLM", "kv_lora_rank: found 0, expected an integer in 1..", object{"kv_lora_rank": 0})
}
