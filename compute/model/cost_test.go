package model_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
)

// small is a Mistral of 1 layer: hidden 8, 4 heads and 2 KV heads of 6, MLP 20,
// vocabulary 32, window 3.
func small(t *testing.T) *model.Program {
	t.Helper()
	cfg, err := family.ParseConfig("config.json", []byte(`{"architectures": ["MistralForCausalLM"], "vocab_size": 32, "hidden_size": 8,
		"intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
		"head_dim": 6, "sliding_window": 3, "tie_word_embeddings": true}`))
	require.NoError(t, err)
	p, err := family.Build(cfg, nil)
	require.NoError(t, err)
	return p
}

func TestCostsOfEachOpByHand(t *testing.T) {
	p := small(t)
	sizes := model.Sizes{Weight: 2, Operand: 2, KV: 2}
	// Five rows after two: positions 2..6 see min(3, position+1) = 3 keys each,
	// 7 keys in all. Two of them become logits.
	costs := model.Costs(p, model.Work{Rows: 5, Past: 2, Outputs: 2}, sizes)
	require.Equal(t, []model.Cost{
		/* embed       */ {WeightBytes: 5 * 8 * 2, ActivationBytes: 5 * 8 * 4},
		/* attn.norm   */ {WeightBytes: 8 * 4, ActivationBytes: 5 * 8 * (4 + 2), Flops: 5 * 8 * 4},
		/* attn.qkv    */ {WeightBytes: 48 * 8 * 2, ActivationBytes: 5 * (8*2 + 48*4), Flops: 5 * 2 * 48 * 8},
		/* rope_store  */ {KVBytes: 5 * 2 * 12 * 2, ActivationBytes: 5 * (24*2 + 12*2) * 4, Flops: 5 * 3 * 6 * 6},
		/* attention   */ {KVBytes: 7 * 2 * 12 * 2, ActivationBytes: 5 * (24*4 + 24*2), Flops: 5 * 3 * 4 * (4*6 + 1)},
		/* select_rows */ {ActivationBytes: 2 * 2 * 8 * 4},
		/* select_rows */ {ActivationBytes: 2 * 2 * 24 * 2},
		/* attn.out    */ {WeightBytes: 8 * 24 * 2, ActivationBytes: 2 * (24*2 + 2*8*4), Flops: 2 * (2*8*24 + 8)},
		/* mlp.norm    */ {WeightBytes: 8 * 4, ActivationBytes: 2 * 8 * (4 + 2), Flops: 2 * 8 * 4},
		/* mlp.gate_up */ {WeightBytes: 40 * 8 * 2, ActivationBytes: 2 * (8*2 + 20*2), Flops: 2 * 2 * 40 * 8},
		/* mlp.down    */ {WeightBytes: 8 * 20 * 2, ActivationBytes: 2 * (20*2 + 2*8*4), Flops: 2 * (2*8*20 + 8)},
		/* final.norm  */ {WeightBytes: 8 * 4, ActivationBytes: 2 * 8 * (4 + 2), Flops: 2 * 8 * 4},
		/* logits      */ {WeightBytes: 32 * 8 * 2, ActivationBytes: 2 * (8*2 + 32*4), Flops: 2 * 2 * 32 * 8},
	}, costs)
	require.EqualValues(t, 2*(32*8+8*3+48*8+8*24+40*8+8*20), p.WeightBytes(sizes), "the tied table counts once")
	require.EqualValues(t, 2*2*6*2, p.KVBytesPerToken(sizes))
}
