package family

// orion is Orion: Llama with layer norms. Its class is beside its checkpoints.
var orion = family{
	class: "OrionForCausalLM", kind: "orion",
	spell:  orionSpell,
	config: orionConfig,
	gguf: &ggufForm{
		name: "orion",
		keys: map[string]string{"attention.layer_norm_epsilon": "rms_norm_eps", "attention.layer_norm_rms_epsilon": ""},
	},

	models:   "Orion 14B",
	features: "Llama with layer norms",
}

// orionSpell sets the defaults of OrionConfig.
func orionSpell(f *fields) {
	f.defaults(map[string]any{"num_key_value_heads": 40, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})
}

// orionConfig: source is modeling_orion.py of Orion-14B.
func orionConfig(f *fields, c *Config) plan {
	delete(f.members, "head_dim") // the class reads none
	llamaSizes(f, c, 0, 0)
	c.attentionBias(f, false)
	return llamaPlan{layerNorm: true}
}
