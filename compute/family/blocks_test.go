package family

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

// blockJSON is a configuration with what the classes of layer norms require, and nothing else.
func blockJSON(class string, changes object) object {
	return with(object{
		"architectures": []string{class}, "vocab_size": 131, "hidden_size": 256, "intermediate_size": 104,
		"num_hidden_layers": 2, "num_attention_heads": 8,
	}, changes)
}

func TestStarcoder2Defaults(t *testing.T) {
	c, err := parse(t, blockJSON("Starcoder2ForCausalLM", nil))
	require.NoError(t, err)
	require.Equal(t, []int{8, 2, 32, 4096}, []int{c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions})
	require.InDelta(t, 1e-5, c.Eps, 1e-12)
	require.Equal(t, model.ActGELUTanh, c.Activation)
	require.True(t, c.TieEmbeddings && c.QKVBias && c.OutBias && c.MLPBias)
	require.Nil(t, c.Windows)
	require.Equal(t, 10000.0, c.Rope.Theta)
	_, err = parse(t, blockJSON("Starcoder2ForCausalLM", object{"partial_rotary_factor": 0.5}))
	require.ErrorContains(t, err, "partial_rotary_factor: found 0.5, expected 1")
}

func TestGPTNeoXDefaults(t *testing.T) {
	rotary := func(changes object) int {
		c, err := parse(t, blockJSON("GPTNeoXForCausalLM", changes))
		require.NoError(t, err)
		return c.plan.(gptneoxPlan).rotary
	}
	c, err := parse(t, blockJSON("GPTNeoXForCausalLM", nil))
	require.NoError(t, err)
	require.Equal(t, []int{8, 8, 32, 2048}, []int{c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions})
	require.Equal(t, model.ActGELUErf, c.Activation)
	require.True(t, c.QKVBias && c.OutBias && c.MLPBias && c.plan.(gptneoxPlan).parallel)
	require.False(t, c.TieEmbeddings)
	require.Equal(t, 8, rotary(nil))
	require.Equal(t, 32, rotary(object{"rotary_pct": 1}))
	require.Equal(t, 16, rotary(object{"rotary_pct": 1, "rope_parameters": object{"partial_rotary_factor": 0.5}}))
	require.Equal(t, 8, rotary(object{"partial_rotary_factor": 0.5}), "of other classes")
	c, err = parse(t, blockJSON("GPTNeoXForCausalLM", object{"num_key_value_heads": 2}))
	require.NoError(t, err)
	require.Equal(t, 8, c.KVHeads, "of other classes")
	_, err = parse(t, blockJSON("GPTNeoXForCausalLM", object{"rotary_pct": 0.1}))
	require.ErrorContains(t, err, "rotary_pct: found 0.1, expected one that rotates an even number of the 32 elements of a head")
}

func TestPhiDefaults(t *testing.T) {
	c, err := parse(t, blockJSON("PhiForCausalLM", nil))
	require.NoError(t, err)
	require.Equal(t, []int{8, 8, 32, 2048}, []int{c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions})
	require.Equal(t, 16, c.plan.(blockPlan).rotary)
	require.Equal(t, model.ActGELUTanh, c.Activation)
	require.True(t, c.QKVBias && c.OutBias && c.MLPBias)
	require.False(t, c.TieEmbeddings)
	_, err = parse(t, blockJSON("PhiForCausalLM", object{"qk_layernorm": true}))
	require.ErrorContains(t, err, "qk_layernorm: found true, expected false")
	_, err = parse(t, blockJSON("PhiModel", nil))
	require.ErrorContains(t, err, "architectures: found PhiModel", "its output layer has a bias")
}

func TestStableLMDefaults(t *testing.T) {
	c, err := parse(t, blockJSON("StableLmForCausalLM", object{"num_attention_heads": 32, "head_dim": 64}))
	require.NoError(t, err)
	require.Equal(t, []int{32, 32, 8, 4096}, []int{c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions})
	require.Equal(t, 2, c.plan.(blockPlan).rotary)
	require.Equal(t, model.ActSiLU, c.Activation)
	require.False(t, c.TieEmbeddings || c.QKVBias || c.OutBias || c.MLPBias)
	require.NotEmpty(t, c.plan.(blockPlan).names.mlpNorm)
	_, err = parse(t, blockJSON("StableLmForCausalLM", object{"num_key_value_heads": 8, "qk_layernorm": true}))
	require.ErrorContains(t, err, "qk_layernorm: found true, expected false")
}

func TestCohereDefaults(t *testing.T) {
	c, err := parse(t, blockJSON("CohereForCausalLM", object{"head_dim": 16}))
	require.NoError(t, err)
	require.Equal(t, []int{8, 8, 16, 8192}, []int{c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions})
	require.Equal(t, 500000.0, c.Rope.Theta)
	require.Equal(t, model.ActSiLU, c.Activation)
	require.True(t, c.TieEmbeddings)
	require.False(t, c.QKVBias || c.OutBias || c.MLPBias)
	require.Equal(t, float32(0.0625), c.plan.(blockPlan).logitScale)
	require.Nil(t, c.Windows)
	require.False(t, c.plan.(blockPlan).qkNorms)
	c, err = parse(t, blockJSON("CohereForCausalLM", object{"use_qk_norm": true}))
	require.NoError(t, err)
	require.True(t, c.plan.(blockPlan).qkNorms)

	c, err = parse(t, blockJSON("Cohere2ForCausalLM", object{"head_dim": 16, "num_hidden_layers": 5}))
	require.NoError(t, err)
	require.Equal(t, []int{8, 8, 32, 8192}, []int{c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions})
	require.Equal(t, 10000.0, c.Rope.Theta)
	require.Equal(t, []int{4096, 4096, 4096, 0, 4096}, c.Windows)
}

func TestFalconDefaults(t *testing.T) {
	read := func(changes object) *Config {
		c, err := parse(t, blockJSON("FalconForCausalLM", with(object{"intermediate_size": "absent"}, changes)))
		require.NoError(t, err)
		return c
	}
	c := read(object{"num_kv_heads": 4})
	require.Equal(t, []int{8, 1, 32, 2048, 1024}, []int{c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions, c.Intermediate})
	require.Equal(t, model.ActGELUErf, c.Activation)
	require.True(t, c.TieEmbeddings)
	require.False(t, c.QKVBias || c.OutBias || c.MLPBias)
	require.Equal(t, 8, read(object{"multi_query": false, "num_kv_heads": 4}).KVHeads)
	require.Equal(t, 512, read(object{"n_embed": 512}).Hidden)
	require.Equal(t, 99, read(object{"ffn_hidden_size": 99}).Intermediate)

	for _, x := range []struct {
		changes           object
		kvHeads           int
		attnNorm, mlpNorm string
	}{
		{nil, 1, "input_layernorm", ""},
		{object{"parallel_attn": false}, 1, "input_layernorm", "post_attention_layernorm"},
		{object{"new_decoder_architecture": true}, 8, "ln_attn", "ln_mlp"},
		{object{"new_decoder_architecture": true, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}, 2, "input_layernorm", ""},
	} {
		c := read(x.changes)
		names := c.plan.(blockPlan).names
		require.Equal(t, x.kvHeads, c.KVHeads)
		require.Equal(t, []string{x.attnNorm, x.mlpNorm}, []string{names.attnNorm, names.mlpNorm})
	}
	_, err := parse(t, blockJSON("FalconForCausalLM", object{"alibi": true}))
	require.ErrorContains(t, err, "alibi: found true, expected false")
	_, err = parse(t, blockJSON("FalconForCausalLM", object{"activation": "mish"}))
	require.ErrorContains(t, err, "activation: found \"mish\"")
}
