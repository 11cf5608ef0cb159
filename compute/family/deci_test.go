package family

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// deciBlock is one of block_configs.
func deciBlock(attention, ffn object) object { return object{"attention": attention, "ffn": ffn} }

func TestDeciHasLayersOfTheirOwn(t *testing.T) {
	group, mlp, none := object{"n_heads_in_group": 2}, object{"ffn_mult": 2.625}, object{"no_op": true}
	base := with(plain("DeciLMForCausalLM", nil), object{"num_key_value_heads": nil, "intermediate_size": nil})
	heads := base["num_attention_heads"].(int)
	c, err := parse(t, with(base, object{"num_hidden_layers": 3, "block_configs": []object{
		deciBlock(group, mlp), deciBlock(none, object{"intermediate_size": 40}), deciBlock(object{"replace_with_linear": true}, none),
	}}))
	require.NoError(t, err)
	require.Equal(t, []deciLayer{{kvHeads: heads / 2, width: 512}, {width: 40}, {linear: true}}, c.plan.(deciPlan).layers)
	require.Equal(t, [2]int{heads / 2, 512}, [2]int{c.KVHeads, c.Intermediate}, "the largest")

	c, err = parse(t, with(base, object{"num_hidden_layers": 2, "num_key_value_heads_per_layer": []int{1, 2}, "intermediate_size": 104}))
	require.NoError(t, err)
	require.Equal(t, []deciLayer{{kvHeads: 1, width: 104}, {kvHeads: 2, width: 104}}, c.plan.(deciPlan).layers)

	one := func(attention, ffn object) []object { return []object{deciBlock(attention, ffn)} }
	for want, blocks := range map[string]any{
		"attention.n_heads_in_group: found no such number, expected a divisor of": one(object{"n_heads_in_group": 5}, mlp),
		"attention.window_length: found a value, expected null or false":          one(with(group, object{"window_length": 9}), mlp),
		"ffn.replace_with_linear: found a value, expected null or false":          one(group, object{"replace_with_linear": true}),
		"ffn.ffn_mult: found no such number":                                      one(group, object{"ffn_mult": -1}),
		"[0]: found an MLP of 1073741824, expected 0 to":                          one(group, object{"intermediate_size": 1 << 30}),
		"found layers without attention, or without MLPs, alone":                  one(none, mlp),
		"found 2 layers, expected 1, num_hidden_layers":                           append(one(group, mlp), one(group, mlp)...),
		"block_configs: found 7, expected a list with an object for each layer":   7,
		"block_configs: found 0 layers, expected 1, num_hidden_layers":            nil,
	} {
		requireFault(t, "DeciLMForCausalLM", want, with(base, object{"num_hidden_layers": 1, "block_configs": blocks}))
	}
}
