package family

// glm4v is the text model of GLM-4.1V.
var glm4v = family{
	class: "Glm4vForConditionalGeneration", also: []string{"Glm46VForConditionalGeneration"}, bare: "Glm4vTextModel", kind: "glm4v_text",
	spell:  glm4vSpell,
	config: glm4vConfig,

	models:   "the text of GLM-4.1V and GLM-4.6V-Flash",
	features: "as GLM-4-0414",
}

// glm4vMoe is the text model of GLM-4.5V.
var glm4vMoe = family{
	class: "Glm4vMoeForConditionalGeneration", also: []string{"Glm46VForConditionalGeneration"}, bare: "Glm4vMoeTextModel",
	kind: "glm4v_moe_text", spell: glm4vMoeSpell,
	config: glm4MoeConfig,

	models:   "the text of GLM-4.5V and GLM-4.6V",
	features: "as GLM-4.5",
}

// glm4vSpell takes text_config for the whole, and sets the defaults of Glm4vTextConfig.
func glm4vSpell(f *fields) {
	f.liftText()
	delete(f.members, "head_dim") // the class computes it
	f.sizes(151552, 4096, 13696, 40, 32)
	f.defaults(map[string]any{
		"num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
	})
}

// glm4vConfig: source is transformers, modeling_glm4v.py. The three positions of a token of text are the same.
func glm4vConfig(f *fields, c *Config) plan {
	p := glm4Config(f, c)
	c.QKVBias = true
	return p
}

// glm4vMoeSpell sets the defaults of Glm4vMoeTextConfig. Source of the model is transformers, modeling_glm4v_moe.py.
func glm4vMoeSpell(f *fields) {
	f.liftText()
	f.sizes(151424, 4096, 10944, 46, 96)
	f.defaults(map[string]any{
		"max_position_embeddings": 65536, "attention_bias": true, "moe_intermediate_size": 1408, "num_experts_per_tok": 8,
		"n_routed_experts": 128,
	})
	glm4MoeSpell(f)
	f.set("use_qk_norm", false) // the class has no norms of heads
}
