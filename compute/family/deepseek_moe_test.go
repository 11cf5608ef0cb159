package family

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

func TestDeepseekMoEDefaults(t *testing.T) {
	const class = "DeepseekForCausalLM"
	sizes := object{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
	c, p := llamaPlanOf(t, class, with(sizes, object{"head_dim": 16}))
	require.Equal(t, []int{32, 8, 2048, 0}, []int{c.HeadDim, c.KVHeads, c.MaxPositions, p.experts.shared})
	require.Equal(t, model.Routing{Experts: 8, TopK: 2, Groups: 1, TopGroups: 1, Scale: 1}, p.experts.routing)
	require.Empty(t, p.experts.dense)
	_, p = llamaPlanOf(t, class, with(sizes, object{"first_k_dense_replace": 1, "moe_layer_freq": 2, "norm_topk_prob": true}))
	require.Equal(t, []int{0, 1, 3}, p.experts.dense)
	require.True(t, p.experts.routing.Normalize)
	requireFault(t, class, `scoring_func: found "sigmoid", expected softmax`, with(sizes, object{"scoring_func": "sigmoid"}))
	requireFault(t, class, "routed_scaling_factor: found 2, expected 1", with(sizes, object{"routed_scaling_factor": 2}))
}
