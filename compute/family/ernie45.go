package family

// ernie45 is Llama whose rotary embedding turns neighbors.
var ernie45 = family{
	class: "Ernie4_5ForCausalLM", bare: "Ernie4_5Model", kind: "ernie4_5",
	spell:  ernie45Spell,
	config: ernie45Config,

	models:   "ERNIE 4.5 (dense)",
	features: "+ rotary embedding of pairs (2i, 2i+1), `use_bias` on all projections",
}

// ernie45Spell sets the defaults of Ernie4_5Config.
func ernie45Spell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 500000, "rms_norm_eps": 1e-5,
		"tie_word_embeddings": true,
	})
}

func ernie45Config(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	c.QKVBias = f.flag(false, "use_bias")
	c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
	return llamaPlan{interleaved: true}
}
