package family

// exaone4 is EXAONE 4: Llama with norms after the blocks instead of before them, and over each head of q and k.
var exaone4 = family{
	class: "Exaone4ForCausalLM", bare: "Exaone4Model", kind: "exaone4",
	spell:  exaone4Spell,
	config: exaone4Config,

	models:   "EXAONE 4.0",
	features: "RMS norms after each block and over each head of q and k, sliding windows by `layer_types` or `sliding_window_pattern`, no rotary embedding in the other layers then",
}

// exaone4Spell sets the defaults of Exaone4Config. A window of null is none; without the member there is one.
func exaone4Spell(f *fields) {
	f.defaults(map[string]any{"num_key_value_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5})
	if _, ok := f.members["sliding_window"]; !ok {
		f.set("sliding_window", 4096)
	}
	if f.has("sliding_window") && !f.has("layer_types") {
		f.patternTypes(4, "sliding_window_pattern")
	}
}

func exaone4Config(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	c.QKNorm = true
	c.windows(f, 0, 0)
	p := llamaPlan{norms: layerNorms{attended: "post_attention_layernorm", mlpDone: "post_feedforward_layernorm"}}
	for _, window := range c.Windows {
		p.unrotated = append(p.unrotated, window == 0)
	}
	return p
}
