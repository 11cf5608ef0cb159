package family

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMPTRefusesWhatItsClassDoesNotRead(t *testing.T) {
	config := func(changes object) object {
		return with(object{"architectures": []string{"MptForCausalLM"}, "vocab_size": 131, "d_model": 48, "n_heads": 6, "n_layers": 2},
			changes)
	}
	c, err := parse(t, config(object{"attn_config": object{"alibi_bias_max": 8, "clip_qkv": 6}}))
	require.NoError(t, err)
	require.Equal(t, []int{192, 8, 2048}, []int{c.Intermediate, c.HeadDim, c.MaxPositions})
	require.True(t, c.TieEmbeddings)
	for want, changes := range map[string]object{
		"expansion_ratio: found 2, expected 4":                   {"expansion_ratio": 2},
		"logit_scale: found 2, expected null":                    {"logit_scale": 2},
		"no_bias: found false, expected true":                    {"no_bias": false},
		"attn_config.alibi_bias_max: found 16, expected 8":       {"attn_config": object{"alibi_bias_max": 16}},
		"attn_config.alibi: found false, expected true":          {"attn_config": object{"alibi": false}},
		"attn_config.qk_ln: found true, expected false":          {"attn_config": object{"qk_ln": true}},
		"attn_config.prefix_lm: found true, expected false":      {"attn_config": object{"prefix_lm": true}},
		`attn_config.attn_type: found "multiquery_attention", e`: {"attn_config": object{"attn_type": "multiquery_attention"}},
	} {
		_, err := parse(t, config(changes))
		require.ErrorContains(t, err, want)
	}
}
