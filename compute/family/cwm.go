package family

// cwm is Llama with sliding windows in most layers.
var cwm = family{
	class: "CwmForCausalLM", bare: "CwmModel", kind: "cwm",
	spell:  cwmSpell,
	config: cwmConfig,

	models:   "Code World Model",
	features: "+ sliding windows by `layer_types`, or in three of four layers",
}

// cwmSpell sets the defaults of CwmConfig.
func cwmSpell(f *fields) {
	f.defaults(map[string]any{"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
		"sliding_window": 8192})
	if !f.has("rope_parameters") && !f.has("rope_scaling") {
		f.set("rope_scaling", map[string]any{
			"rope_type": "llama3", "factor": 16, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192,
		})
	}
	types := make([]string, f.integer(1, 1, maxLayers, "num_hidden_layers"))
	for i := range types {
		types[i] = sliding
		if i%4 == 0 {
			types[i] = full
		}
	}
	f.defaults(map[string]any{"layer_types": types, "rope_theta": 1e6})
}

func cwmConfig(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	c.MLPBias = f.flag(false, "mlp_bias")
	c.windows(f, 0, 0)
	return llamaPlan{}
}
