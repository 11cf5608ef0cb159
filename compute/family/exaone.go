package family

// exaone is EXAONE 3.0 and 3.5: Llama with names of its own. Its class is beside its checkpoints.
var exaone = family{
	class: "ExaoneForCausalLM", kind: "exaone", saved: "LlamaForCausalLM",
	spell:  exaoneSpell,
	config: exaoneConfig,
	gguf: &ggufForm{
		name: "exaone", decoder: "transformer.", layers: "h.",
		names: map[string]string{"token_embd": "wte", "output_norm": "ln_f"},
		parts: map[string]string{
			"attn_norm": "ln_1", "attn_q": "attn.attention.q_proj", "attn_k": "attn.attention.k_proj", "attn_v": "attn.attention.v_proj",
			"attn_output": "attn.attention.out_proj", "ffn_norm": "ln_2", "ffn_gate": "mlp.c_fc_0", "ffn_up": "mlp.c_fc_1",
			"ffn_down": "mlp.c_proj",
		},
		keys: map[string]string{"attention.layer_norm_epsilon": "layer_norm_epsilon"},
	},

	models:   "EXAONE 3.0, 3.5, Deep",
	features: "as Llama",
}

// exaoneSpell gives members the names that most classes have, and sets the defaults of ExaoneConfig.
func exaoneSpell(f *fields) {
	f.prefer(map[string]string{
		"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps", "activation_function": "hidden_act",
	})
	f.sizes(102400, 2048, 4*f.integer(2048, 1, maxWidth, "hidden_size"), 32, 32)
	f.defaults(map[string]any{"rms_norm_eps": 1e-5, "tie_word_embeddings": true})
}

// exaoneConfig: source is modeling_exaone.py of EXAONE 3.5.
func exaoneConfig(f *fields, c *Config) plan {
	delete(f.members, "head_dim") // the class reads none
	llamaSizes(f, c, 0, 2048)
	return blockPlan{
		names: blockNames{
			decoder: "transformer.", table: "wte", norm: "ln_f",
			layers: "h.", attnNorm: "ln_1", attention: "attn.attention.", out: "attn.attention.out_proj",
			mlpNorm: "ln_2", gate: "mlp.c_fc_0", up: "mlp.c_fc_1", down: "mlp.c_proj",
		},
		rmsNorms: true, rotary: c.HeadDim,
	}
}
