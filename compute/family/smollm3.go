package family

// smollm3 is Llama with layers that have no rotary embedding.
var smollm3 = family{
	class: "SmolLM3ForCausalLM", bare: "SmolLM3Model", kind: "smollm3",
	spell:  smollm3Spell,
	config: smollm3Config,
	gguf:   &ggufForm{name: "smollm3", interleaved: true}, // llama.cpp knows which layers have no rotary embedding: the class's default

	models:   "SmolLM3",
	features: "+ layers without rotary embedding by `no_rope_layers` or `no_rope_layer_interval`, sliding window in these with `use_sliding_window`",
}

// smollm3Spell sets the defaults of SmolLM3Config.
func smollm3Spell(f *fields) {
	f.defaults(map[string]any{"num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6, "tie_word_embeddings": true})
}

func smollm3Config(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	p.unrotated = smollm3Unrotated(f, c.Layers)
	if f.err != nil || !f.flag(false, "use_sliding_window") {
		return p
	}
	types := make([]string, c.Layers)
	for i, has := range p.unrotated {
		types[i] = full
		if has {
			types[i] = sliding
		}
	}
	f.defaults(map[string]any{"layer_types": types})
	c.windows(f, 0, 0)
	return p
}

// smollm3Unrotated are the layers without a rotary embedding: those with 0 in no_rope_layers, or one in no_rope_layer_interval.
func smollm3Unrotated(f *fields, layers int) []bool {
	unrotated := make([]bool, layers)
	rotated := f.bits("no_rope_layers", layers)
	interval := f.integer(4, 1, maxLayers, "no_rope_layer_interval")
	for i := range unrotated {
		unrotated[i] = (i+1)%interval == 0
		if rotated != nil {
			unrotated[i] = !rotated[i]
		}
	}
	return unrotated
}
