package family

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMixturesWithTypesOfLayers(t *testing.T) {
	c, p := llamaPlanOf(t, "MellumForCausalLM", nil)
	require.Equal(t, []int{4, 128, 131072}, []int{c.KVHeads, c.HeadDim, c.MaxPositions})
	require.Equal(t, []int{0, 0, 0, 0}, c.Windows)
	require.Empty(t, p.experts.dense)
	require.InDelta(t, 500000, c.Rope.Theta, 0)

	c, p = llamaPlanOf(t, "FlintForCausalLM", object{"num_hidden_layers": 7})
	require.Equal(t, []int{0, 0, 513, 513, 513, 0, 0}, c.Windows)
	require.Equal(t, []bool{true, true, false, false, false, true, true}, p.unrotated)
	require.Equal(t, []int{0, 1}, p.experts.dense)
	require.Equal(t, 1024, p.experts.shared)

	c, err := parse(t, plain("AXK1ForCausalLM", object{"num_hidden_layers": 5, "first_k_dense_replace": 2, "moe_layer_freq": 2}))
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 3}, c.plan.(llamaPlan).experts.dense)

	c, p = llamaPlanOf(t, "MiMoV2FlashForCausalLM", object{"num_hidden_layers": 7, "num_attention_heads": 64, "sliding_window_size": 128})
	require.Equal(t, []int{0, 129, 129, 129, 129, 0, 129}, c.Windows)
	require.Equal(t, []int{0}, p.experts.dense)
	require.Equal(t, valueShapes{dim: 128, scale: 0.707}, *p.values)
	require.Equal(t, 64, p.rotary)
	require.Equal(t, []float64{5e6, 1e4}, []float64{c.Rope.Theta, p.local.Theta})

	requireFault(t, "MiMoV2FlashForCausalLM", "num_key_value_heads: found 4, expected one whose double divides the 12 attention heads",
		object{"num_attention_heads": 12})
	requireFault(t, "MiMoV2FlashForCausalLM",
		"rope_parameters.sliding_attention.partial_rotary_factor: found 0.5, expected 0.334, that of full_attention",
		object{"num_attention_heads": 64, "rope_parameters": object{full: object{}, sliding: object{"partial_rotary_factor": 0.5}}})

	c, err = parse(t, plain("Cohere2MoeForCausalLM", object{"num_hidden_layers": 6, "first_k_dense_replace": 2,
		"prefix_dense_sliding_window_pattern": 2, "sliding_window_pattern": 3}))
	require.NoError(t, err)
	require.Equal(t, []int{4096, 0, 4096, 4096, 0, 4096}, c.Windows)
	b := c.plan.(blockPlan)
	require.Equal(t, []int{0, 1}, b.experts.dense)
	require.Equal(t, []bool{false, true, false, false, true, false}, b.unrotated)
	c, err = parse(t, plain("Cohere2MoeForCausalLM", object{"first_k_dense_replace": 2}))
	require.NoError(t, err)
	require.Equal(t, []bool{false, false, false, false}, c.plan.(blockPlan).unrotated, "plain layers are rotated without a window")
	require.Equal(t, []int{0, 0, 4096, 4096}, c.Windows)
	for want, changes := range map[string]object{
		`expert_selection_fn: found "top", expected softmax or sigmoid`:            {"expert_selection_fn": "top"},
		`shared_expert_combination_strategy: found "max", expected average or sum`: {"shared_expert_combination_strategy": "max"},
	} {
		requireFault(t, "Cohere2MoeForCausalLM", want, changes)
	}
}
