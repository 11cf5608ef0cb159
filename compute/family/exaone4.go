package family

// exaone4 is EXAONE 4: Llama with norms after the blocks instead of before them, and over each head of q and k.
var exaone4 = family{
	class: "Exaone4ForCausalLM", bare: "Exaone4Model", kind: "exaone4",
	spell:  exaone4Spell,
	config: exaone4Config,
	gguf:   &ggufForm{name: "exaone4", parts: sandwichParts, keys: windowKeys, spell: exaone4GGUF},

	models:   "EXAONE 4.0",
	features: "RMS norms after each block and over each head of q and k, sliding windows by `layer_types` or `sliding_window_pattern`, no rotary embedding in the other layers then",
}

// exaone4Spell sets the defaults of Exaone4Config. A window of null is none; without the member there is one.
func exaone4Spell(f *fields) {
	f.defaults(map[string]any{"num_key_value_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5})
	f.missing(map[string]any{"sliding_window": 4096})
	if f.has("sliding_window") && !f.has("layer_types") {
		f.patternTypes(4, "sliding_window_pattern")
	}
}

// exaoneMoe is K-EXAONE: the attention of EXAONE 4 with norms before the blocks, and the experts of GLM-4.5.
var exaoneMoe = family{
	class: "ExaoneMoeForCausalLM", bare: "ExaoneMoeModel", kind: "exaone_moe",
	spell:  exaoneMoeSpell,
	config: exaoneMoeConfig,
	gguf: &ggufForm{
		name:  "exaone-moe",
		parts: map[string]string{"exp_probs_b.bias": "mlp.e_score_correction_bias"},
		keys: merged(mixtureKeys, windowKeys, map[string]string{"expert_count": "num_experts",
			"expert_shared_count": "num_shared_experts"}),
		spell: exaoneMoeGGUF,
	},

	models:   "K-EXAONE 236B A23B",
	features: "attention as EXAONE 4.0, experts as GLM-4.5, plain layers by `mlp_layer_types` or `first_k_dense_replace`",
}

// exaoneMoeSpell gives members the names of GLM-4.5, and sets the defaults of ExaoneMoeConfig.
func exaoneMoeSpell(f *fields) {
	exaone4Spell(f)
	f.rename(map[string]string{"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"})
	f.defaults(map[string]any{"n_routed_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 1024,
		"routed_scaling_factor": 2.5})
}

// exaoneMoeConfig: source is transformers, modeling_exaone_moe.py.
func exaoneMoeConfig(f *fields, c *Config) plan {
	p := exaone4Plan(f, c)
	p.norms = layerNorms{}
	p.experts = glm4Experts(f, c)
	p.experts.names.bias = "e_score_correction_bias"
	p.experts.denseByType(f, c)
	return p
}

func exaone4Config(f *fields, c *Config) plan { return exaone4Plan(f, c) }

func exaone4Plan(f *fields, c *Config) llamaPlan {
	llamaSizes(f, c, 0, 0)
	c.QKNorm = true
	c.windows(f, 0, 0)
	return llamaPlan{norms: layerNorms{attended: "post_attention_layernorm", mlpDone: "post_feedforward_layernorm"},
		unrotated: c.fullLayers()}
}

// exaone4GGUF: three of four layers have the window, if there is one.
func exaone4GGUF(f *fields) {
	if !f.has("sliding_window") {
		f.members["sliding_window"] = []byte("null")
		return
	}
	f.ggufTypes(4)
}

func exaoneMoeGGUF(f *fields) {
	exaone4GGUF(f)
	f.mixture(gatingSigmoid)
	f.defaults(map[string]any{"num_shared_experts": 0})
}
