package family

// ministral3 is Mistral whose queries grow with the position.
var ministral3 = family{
	class: "Ministral3ForCausalLM", also: []string{"Mistral3ForConditionalGeneration"}, bare: "Ministral3Model", kind: "ministral3",
	spell:  ministral3Spell,
	config: ministral3Config,
	gguf: &ggufForm{
		name: "mistral3", interleaved: true,
		keys: map[string]string{
			"attention.temperature_scale": "gguf.temperature_scale", "attention.temperature_length": "gguf.temperature_length",
			"rope.scaling.yarn_log_multiplier": "gguf.yarn_log_multiplier",
		},
		spell: ministral3GGUF,
	},

	models:   "Ministral 3, also the text of models with images",
	features: "as Mistral, factors of queries by `llama_4_scaling_beta`",
}

// ministral3Spell sets the defaults of Ministral3Config.
func ministral3Spell(f *fields) {
	f.liftText()
	f.defaults(map[string]any{"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5})
	if !f.has("rope_parameters") && !f.has("rope_scaling") {
		f.set("rope_parameters", map[string]any{
			"rope_type": "yarn", "rope_theta": 1e6, "factor": 16, "original_max_position_embeddings": 16384, "mscale": 1,
			"mscale_all_dim": 1, "llama_4_scaling_beta": 0.1,
		})
	}
}

// ministral3Config: source is transformers, modeling_ministral3.py.
func ministral3Config(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	c.windows(f, 0, 0)
	return llamaPlan{temperature: yarnTemperature(f, c)}
}

// yarnTemperature is that of rope_parameters' llama_4_scaling_beta; nil: there is none.
func yarnTemperature(f *fields, c *Config) *temperature {
	if beta := f.ropeObject().number(0, 0, 100, "llama_4_scaling_beta"); beta > 0 {
		return &temperature{beta: beta, tokens: c.Rope.OriginalPositions}
	}
	return nil
}

// ministral3GGUF: Mistral Small 3.1 has this architecture too, with neither YaRN nor factors of queries.
func ministral3GGUF(f *fields) {
	if factor := f.number(0, 0, 100, "gguf.yarn_log_multiplier"); factor > 0 && f.has("rope_scaling") {
		r := f.ropeObject()
		r.set("mscale", factor)
		r.set("mscale_all_dim", factor)
		f.set("rope_scaling", r.members)
	}
	f.temperatureGGUF()
}
