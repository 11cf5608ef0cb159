package family

import "github.com/millrace/millrace/compute/weights"

// gptneox is GPT-NeoX and Pythia.
var gptneox = family{
	class: "GPTNeoXForCausalLM", bare: "GPTNeoXModel", kind: "gpt_neox",
	spell:  gptneoxSpell,
	config: gptneoxConfig,
	gguf: &ggufForm{
		name: "gptneox", partial: true, decoder: "gpt_neox.",
		names: map[string]string{"token_embd": "embed_in", "output_norm": "final_layer_norm"},
		parts: map[string]string{
			"attn_qkv": "attention.query_key_value", "attn_output": "attention.dense", "ffn_up": "mlp.dense_h_to_4h",
			"ffn_down": "mlp.dense_4h_to_h",
		},
		keys:  map[string]string{"attention.layer_norm_epsilon": "layer_norm_eps", "use_parallel_residual": "use_parallel_residual"},
		spell: gptneoxGGUF,
	},

	models:   "GPT-NeoX, Pythia",
	features: "layer norms, biases, fused q/k/v, part of a head rotated (`rotary_pct`), attention and MLP side by side or not (`use_parallel_residual`)",
}

// gptneoxPlan is blockPlan with the head's name of transformers 4. Source: transformers, modeling_gpt_neox.py.
type gptneoxPlan struct{ blockPlan }

func gptneoxSpell(f *fields) {
	f.rename(map[string]string{"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"})
	delete(f.members, "num_key_value_heads") // the format has none
}

func gptneoxConfig(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "gelu")
	rotary := partialRope(f, c, 2048, 0.25)
	c.QKVBias = f.flag(true, "attention_bias")
	c.OutBias, c.MLPBias = c.QKVBias, true
	names := gptneoxNames()
	names.inOrder = weights.IsGGUF(c.File)
	return gptneoxPlan{blockPlan{
		names: names, rotary: rotary, parallel: f.flag(true, "use_parallel_residual"),
	}}
}

func gptneoxNames() blockNames {
	return blockNames{
		decoder: "gpt_neox.", table: "embed_in", norm: "final_layer_norm",
		layers: "layers.", attnNorm: "input_layernorm", fused: "attention.query_key_value", out: "attention.dense",
		mlpNorm: "post_attention_layernorm", up: "mlp.dense_h_to_4h", down: "mlp.dense_4h_to_h",
	}
}

func (p gptneoxPlan) build(b *builder) {
	b.findHead("embed_out.weight")
	p.blockPlan.build(b)
}

// gptneoxGGUF gives members the names that the class reads.
func gptneoxGGUF(f *fields) {
	f.members["rotary_emb_base"], f.members["rotary_pct"] = f.members["rope_theta"], f.members["partial_rotary_factor"]
	f.set("attention_bias", f.inLayers("attn_qkv.bias"))
}
