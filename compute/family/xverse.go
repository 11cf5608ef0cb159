package family

// xverse is XVERSE: Llama in all but its class, which is beside its checkpoints.
var xverse = family{
	class: "XverseForCausalLM", kind: "xverse",
	spell:  xverseSpell,
	config: xverseConfig,
	gguf:   &ggufForm{name: "xverse", interleaved: true},

	models:   "XVERSE 7B, 13B, 65B",
	features: "as Llama",
}

// xverseSpell sets the defaults of XverseConfig.
func xverseSpell(f *fields) { f.defaults(map[string]any{"max_position_embeddings": 8192}) }

// xverseConfig: source is modeling_xverse.py of XVERSE-13B.
func xverseConfig(f *fields, c *Config) plan {
	delete(f.members, "head_dim") // the class reads none
	llamaSizes(f, c, 0, 0)
	return llamaPlan{}
}
