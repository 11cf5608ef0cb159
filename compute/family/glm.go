package family

// glm is GLM-4: Llama with biases on q, k and v, gate and up in one tensor, and half of a head rotated.
var glm = family{
	class: "GlmForCausalLM", bare: "GlmModel", kind: "glm",
	spell:  glmSpell,
	config: glmConfig,

	models:   "GLM-4 9B, GLM-Edge",
	features: "+ biases on q, k, v, fused gate/up, `partial_rotary_factor` with pairs (2i, 2i+1)",
}

// glm4 is GLM-4-0414: GLM-4 with norms after each block too.
var glm4 = family{
	class: "Glm4ForCausalLM", bare: "Glm4Model", kind: "glm4",
	spell:  glmSpell,
	config: glm4Config,

	models:   "GLM-4-0414, GLM-Z1",
	features: "GLM-4 with RMS norms after each block too",
}

// glmSpell sets the defaults of GlmConfig and Glm4Config.
func glmSpell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5,
	})
}

func glmConfig(f *fields, c *Config) plan { return glmPlan(f, c) }

func glm4Config(f *fields, c *Config) plan {
	p := glmPlan(f, c)
	p.norms = layerNorms{
		attention: "input_layernorm", attended: "post_self_attn_layernorm",
		mlp: "post_attention_layernorm", mlpDone: "post_mlp_layernorm",
	}
	return p
}

func glmPlan(f *fields, c *Config) llamaPlan {
	rotary := partialDecoder(f, c, 0)
	c.QKVBias = f.flag(true, "attention_bias")
	return llamaPlan{rotary: rotary, interleaved: true, fusedMLP: true}
}
