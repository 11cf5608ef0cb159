package family

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

func TestLingDefaults(t *testing.T) {
	const ling2, ling = "BailingMoeV2ForCausalLM", "BailingMoeForCausalLM"
	sizes := object{"use_bias": false, "moe_intermediate_size": 40, "num_shared_experts": 2}
	c, p := llamaPlanOf(t, ling2, sizes)
	require.Equal(t, []int{16, 16384, 80}, []int{p.rotary, c.MaxPositions, p.experts.shared})
	require.InDelta(t, 1e-5, c.Eps, 1e-12)
	require.True(t, p.fused && c.QKNorm && p.experts.biasIfThere)
	require.Equal(t, model.Routing{Experts: 16, TopK: 2, Scores: model.RouteSigmoid, Normalize: true, Groups: 8, TopGroups: 4, Scale: 2.5},
		p.experts.routing)
	require.Empty(t, p.experts.dense)
	_, p = llamaPlanOf(t, ling2, with(sizes, object{"moe_shared_expert_intermediate_size": 56, "num_experts_per_tok": 1}))
	require.Equal(t, 112, p.experts.shared)
	require.False(t, p.experts.routing.Normalize, "one weight stays as it is")

	requireFault(t, ling2, "norm_head: found true, expected false", with(sizes, object{"norm_head": true}))

	c, err := parse(t, plain(ling, sizes))
	require.NoError(t, err)
	require.False(t, c.plan.(lingPlan).normHead)
	p = c.plan.(lingPlan).llamaPlan
	require.Equal(t, []any{0, false, ""}, []any{p.rotary, c.QKNorm, p.experts.names.bias})
	require.Equal(t, model.Routing{Experts: 16, TopK: 2, Normalize: true, Groups: 1, TopGroups: 1, Scale: 1}, p.experts.routing)

	for want, changes := range map[string]object{
		"use_bias: found nothing, expected false":                         {"use_bias": "absent"},
		"use_bias: found true, expected false":                            {"use_bias": true},
		"use_qk_norm: found false, expected true":                         {"use_qk_norm": false},
		"norm_topk_prob: found false, expected true":                      {"norm_topk_prob": false},
		"use_rmsnorm: found false, expected true":                         {"use_rmsnorm": false},
		`score_function: found "softmax", expected sigmoid`:               {"score_function": "softmax"},
		"rotary_dim: found 8, expected 16, by partial_rotary_factor":      {"rotary_dim": 8},
		"num_experts: found 0, expected an integer":                       {"num_experts": 0},
		"use_sliding_window: found true, expected false":                  {"use_sliding_window": true},
		"moe_shared_expert_intermediate_size: found 0, expected an integ": {"moe_shared_expert_intermediate_size": 0},
	} {
		requireFault(t, ling2, want, with(sizes, changes))
	}
	requireFault(t, ling, "norm_head: found true with tie_word_embeddings, expected false",
		with(sizes, object{"norm_head": true, "tie_word_embeddings": true}))
	// Ling 2.0 without the name of its class.
	requireFault(t, ling, "use_qk_norm: found true, expected false", with(sizes, object{"use_qk_norm": true}))
	requireFault(t, ling, `score_function: found "sigmoid", expected softmax`, with(sizes, object{"score_function": "sigmoid"}))
}
