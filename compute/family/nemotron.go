package family

import (
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// nemotron is Nemotron-4 and Minitron.
var nemotron = family{
	class: "NemotronForCausalLM", bare: "NemotronModel", kind: "nemotron",
	spell:   nemotronSpell,
	config:  nemotronConfig,
	tensors: nemotronNorms,
	gguf: &ggufForm{ // whose norms are sums already
		name: "nemotron", partial: true, keys: map[string]string{"attention.layer_norm_epsilon": "norm_eps"},
	},

	models:   "Nemotron-4 340B, Minitron 4B, 8B",
	features: "layer norms of 1 + weight, GQA, `partial_rotary_factor`, MLP without a gate, with the square of ReLU",
}

// persimmon is Persimmon.
var persimmon = family{
	class: "PersimmonForCausalLM", bare: "PersimmonModel", kind: "persimmon",
	spell:  persimmonSpell,
	config: persimmonConfig,

	models:   "Persimmon 8B",
	features: "layer norms, also over each head of q and k (`qk_layernorm`), fused q/k/v, `partial_rotary_factor`, MLP without a gate, with the square of ReLU",
}

func nemotronSpell(f *fields) {
	f.rename(map[string]string{"norm_eps": "layer_norm_eps"})
}

// nemotronConfig: source is transformers, modeling_nemotron.py.
func nemotronConfig(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "relu2")
	rotary := partialRope(f, c, 4096, 0.5)
	c.attentionBias(f, false)
	c.MLPBias = f.flag(false, "mlp_bias")
	names := llamaNames()
	names.up, names.down = "mlp.up_proj", "mlp.down_proj"
	return blockPlan{names: names, rotary: rotary}
}

// nemotronNorms adds one to the weights of the norms, as NemotronLayerNorm1P does.
func nemotronNorms(_ *Config, w *weights.Checkpoint) error {
	return onePlus(w, func(name string) bool {
		return strings.HasSuffix(name, "norm.weight")
	})
}

// persimmonSpell: a head of q has its own keys and values.
func persimmonSpell(f *fields) {
	delete(f.members, "num_key_value_heads")
	delete(f.members, "head_dim")
}

// persimmonConfig: source is transformers, modeling_persimmon.py.
func persimmonConfig(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "relu2")
	rotary := partialRope(f, c, 16384, 0.5)
	c.QKVBias, c.OutBias, c.MLPBias = true, true, true
	names := llamaNames()
	names.norm, names.fused, names.out = "final_layernorm", "self_attn.query_key_value", "self_attn.dense"
	names.up, names.down = "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"
	return blockPlan{names: names, rotary: rotary, qkNorms: f.flag(true, "qk_layernorm")}
}
