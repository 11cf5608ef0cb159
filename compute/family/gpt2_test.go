package family

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

// gpt2JSON is a configuration with what the classes of GPT-2's form require, and nothing else.
func gpt2JSON(class string, changes object) object {
	return with(object{"architectures": []string{class}, "vocab_size": 131, "n_embd": 256, "n_layer": 2, "n_head": 8}, changes)
}

func TestGPT2Defaults(t *testing.T) {
	c, err := parse(t, gpt2JSON("GPT2LMHeadModel", object{"num_key_value_heads": 2, "head_dim": 8}))
	require.NoError(t, err)
	require.Equal(t, []int{8, 8, 32, 1024, 1024}, []int{c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions, c.Intermediate})
	require.Equal(t, model.ActGELUTanh, c.Activation)
	require.InDelta(t, 1e-5, c.Eps, 1e-12)
	require.True(t, c.TieEmbeddings && c.QKVBias && c.OutBias && c.MLPBias && c.plan.(blockPlan).names.inOrder)
	require.Zero(t, c.plan.(blockPlan).attentionScale)
	for _, name := range []string{"scale_attn_by_inverse_layer_idx", "add_cross_attention"} {
		_, err = parse(t, gpt2JSON("GPT2LMHeadModel", object{name: true}))
		require.ErrorContains(t, err, name+": found true, expected false")
	}
	_, err = parse(t, gpt2JSON("GPT2LMHeadModel", object{"n_embd": "absent"}))
	require.ErrorContains(t, err, "hidden_size: found nothing")
	_, err = parse(t, gpt2JSON("GPT2LMHeadModel", object{"n_head": 7}))
	require.ErrorContains(t, err, "n_embd"+": found 256, expected a multiple of the 7 attention heads")
}

func TestGPTBigCodeDefaults(t *testing.T) {
	c, err := parse(t, gpt2JSON("GPTBigCodeForCausalLM", object{"scale_attn_weights": false}))
	require.NoError(t, err)
	require.Equal(t, []int{8, 1}, []int{c.Heads, c.KVHeads})
	require.False(t, c.plan.(blockPlan).names.inOrder)
	require.InDelta(t, 1, c.plan.(blockPlan).attentionScale, 0)
	c, err = parse(t, gpt2JSON("GPTBigCodeForCausalLM", object{"multi_query": false}))
	require.NoError(t, err)
	require.Equal(t, []int{8, 8}, []int{c.Heads, c.KVHeads})
}

func TestGPTNeoWindows(t *testing.T) {
	neo := func(changes object) (*Config, error) {
		return parse(t, with(object{"architectures": []string{"GPTNeoForCausalLM"}, "vocab_size": 131, "hidden_size": 256, "num_layers": 4,
			"num_heads": 8}, changes))
	}
	c, err := neo(object{"attention_types": []any{[]any{[]string{"local"}, 1}, []any{[]string{"global", "local", "global"}, 1}},
		"window_size": 7})
	require.NoError(t, err)
	require.Equal(t, []int{7, 0, 7, 0}, c.Windows)
	require.Equal(t, []int{2048, 1024}, []int{c.MaxPositions, c.Intermediate})
	require.False(t, c.QKVBias)
	require.True(t, c.OutBias && c.MLPBias && c.TieEmbeddings)
	for want, changes := range map[string]object{
		"layer_types: found 24 entries, expected one for each of 4 layers":                       {},
		"layer_types: found 0 entries, expected one for each of 4 layers":                        {"attention_types": []any{[]any{"local"}}},
		`layer_types: found "", expected full_attention or sliding_attention`:                    {"attention_types": []any{[]any{[]string{"x"}, 4}}},
		`attention_types: found "local", expected a list of types of layers and their numbers`:   {"attention_types": "local"},
		`attention_types: found ["local"], expected a list of types of layers and their numbers`: {"attention_types": []string{"local"}},
		"window_size: found 0, expected an integer in 1..16777216":                               {"window_size": 0},
	} {
		_, err = neo(changes)
		require.ErrorContains(t, err, want)
	}
}
