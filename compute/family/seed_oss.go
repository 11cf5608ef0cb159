package family

// seedOSS is Llama with biases on q, k and v.
var seedOSS = family{
	class: "SeedOssForCausalLM", bare: "SeedOssModel", kind: "seed_oss",
	spell:  seedOSSSpell,
	config: seedOSSConfig,
	gguf: &ggufForm{
		name:  "seed_oss",
		parts: map[string]string{"post_attention_norm": "post_attention_layernorm"},
		spell: func(f *fields) { f.set("attention_out_bias", f.inLayers("attn_output.bias")) },
	},

	models:   "Seed-OSS",
	features: "+ `attention_bias` on q, k, v, `attention_out_bias`",
}

// seedOSSSpell sets the defaults of SeedOssConfig.
func seedOSSSpell(f *fields) {
	f.defaults(map[string]any{"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288, "attention_bias": true})
}

func seedOSSConfig(f *fields, c *Config) plan {
	p := llamaConfig(f, c)
	c.OutBias = f.flag(false, "attention_out_bias")
	return p
}
