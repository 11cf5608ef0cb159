package family

// dots1 is dots.llm1: Qwen3's attention, with experts chosen as those of GLM-4.5.
var dots1 = family{
	class: "Dots1ForCausalLM", bare: "Dots1Model", kind: "dots1",
	spell:  dots1Spell,
	config: dots1Config,
	gguf:   &ggufForm{name: "dots1", keys: mixtureKeys, spell: dots1GGUF},

	models:   "dots.llm1",
	features: "RMS norm over each head of q and k, experts as GLM-4.5, sliding windows from layer `max_window_layers` on, or by `layer_types`",
}

// solarOpen is Llama's attention with the experts of GLM-4.5.
var solarOpen = family{
	class: "SolarOpenForCausalLM", bare: "SolarOpenModel", kind: "solar_open",
	spell:  solarOpenSpell,
	config: solarOpenConfig,

	models:   "Solar Open 100B",
	features: "Llama with experts as GLM-4.5 in all layers",
}

// dots1Spell sets the defaults of Dots1Config. A window of null is none; without the member there is one.
func dots1Spell(f *fields) {
	f.missing(map[string]any{"sliding_window": 4096})
	f.defaults(map[string]any{
		"max_position_embeddings": 2048, "first_k_dense_replace": 0, "n_shared_experts": 0, "norm_topk_prob": false,
	})
}

// dots1Config: source is transformers, modeling_dots1.py.
func dots1Config(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	c.QKNorm = true
	c.attentionBias(f, false)
	c.windows(f, f.integer(62, 0, maxLayers, "max_window_layers"), 0)
	return llamaPlan{experts: glm4Experts(f, c)}
}

// solarOpenSpell sets the defaults of SolarOpenConfig.
func solarOpenSpell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 1e6, "rms_norm_eps": 1e-5,
		"moe_intermediate_size": 1280, "n_routed_experts": 128, "num_experts_per_tok": 8,
	})
	f.set("first_k_dense_replace", 0)
	f.members["intermediate_size"] = f.members["moe_intermediate_size"] // no layer is plain
}

// solarOpenConfig: source is transformers, modeling_solar_open.py.
func solarOpenConfig(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	c.QKVBias = f.flag(false, "attention_bias")
	return llamaPlan{experts: glm4Experts(f, c)}
}

// dots1GGUF: no published model has a window.
func dots1GGUF(f *fields) {
	f.members["sliding_window"] = []byte("null")
	f.mixture(gatingSigmoid)
}
