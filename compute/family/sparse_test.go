package family

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIndexersBoundTheLongestSequence: up to the keys that they choose, no key is left out.
func TestIndexersBoundTheLongestSequence(t *testing.T) {
	latent := with(llamaJSON(), object{"max_position_embeddings": 4000})
	for _, class := range []string{"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"} {
		for topk, want := range map[any]int{"absent": 2048, 512: 512, 9000: 4000} {
			c, err := parse(t, with(latent, object{"architectures": []string{class}, "index_topk": topk}))
			require.NoError(t, err)
			require.Equal(t, want, c.MaxPositions, class)
			require.Equal(t, want < 4000, c.Shortened != "", class)
		}
	}
	sparse := object{"sparse_block_size": 64, "sparse_topk_blocks": 8}
	for _, config := range []object{
		{"sparse_attention_config": sparse},
		{"layer_types": []string{full, "minimax_m3_sparse", full}, "index_block_size": 64, "index_topk_blocks": 8},
	} {
		c, err := parse(t, object{"architectures": []string{"MiniMaxM3SparseForConditionalGeneration"},
			"text_config": with(latent, config)})
		require.NoError(t, err)
		require.Equal(t, 512, c.MaxPositions)
		require.Contains(t, c.Shortened, "index_topk_blocks")
	}
	c, err := parse(t, with(latent, object{"architectures": []string{"MiniMaxM3VLForCausalLM"}, "layer_types": []string{full, full, full}}))
	require.NoError(t, err)
	require.Equal(t, 4000, c.MaxPositions)
	require.Empty(t, c.Shortened)
}

// TestDeepseekV32HasPlainLayersFirst by a number, where no list says which.
func TestDeepseekV32HasPlainLayersFirst(t *testing.T) {
	dense := func(changes object) []int {
		c, err := parse(t, with(with(llamaJSON(), object{"architectures": []string{"DeepseekV32ForCausalLM"}}), changes))
		require.NoError(t, err)
		return c.plan.(llamaPlan).experts.dense
	}
	require.Equal(t, []int{0, 1, 2}, dense(nil))
	require.Equal(t, []int{0}, dense(object{"first_k_dense_replace": 1}))
	require.Equal(t, []int{1}, dense(object{"mlp_layer_types": []string{"sparse", "dense", "sparse"}}))
}
