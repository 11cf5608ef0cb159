package family

// helium is Llama whose rotary embedding turns neighbors.
var helium = family{
	class: "HeliumForCausalLM", bare: "HeliumModel", kind: "helium",
	spell:  heliumSpell,
	config: heliumConfig,

	models:   "Helium 1",
	features: "+ rotary embedding of pairs (2i, 2i+1)",
}

// heliumSpell sets the defaults of HeliumConfig.
func heliumSpell(f *fields) {
	f.defaults(map[string]any{"num_key_value_heads": 20, "head_dim": 128, "max_position_embeddings": 4096, "rope_theta": 100000,
		"rms_norm_eps": 1e-8})
}

func heliumConfig(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	c.OutBias = false // HeliumAttention's output has none
	p.interleaved = true
	return p
}
