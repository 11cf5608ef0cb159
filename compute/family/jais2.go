package family

// jais2 is Llama with layer norms, biases, and an MLP without a gate.
var jais2 = family{
	class: "Jais2ForCausalLM", bare: "Jais2Model", kind: "jais2",
	spell:  jais2Spell,
	config: jais2Config,
	gguf: &ggufForm{
		name: "jais2", keys: map[string]string{"attention.layer_norm_epsilon": "layer_norm_eps"},
	},

	models:   "Jais 2",
	features: "layer norms, biases, MLP without a gate, with the square of ReLU",
}

// jais2Spell sets the defaults of Jais2Config.
func jais2Spell(f *fields) { f.defaults(map[string]any{"max_position_embeddings": 8192}) }

// jais2Config: source is transformers, modeling_jais2.py.
func jais2Config(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "relu2")
	f.wholeHeads(ropeConfig(f, c, f.integer(0, 1, maxPositions, "max_position_embeddings")))
	c.attentionBias(f, true)
	c.MLPBias = f.flag(true, "mlp_bias")
	names := llamaNames()
	names.up, names.down = "mlp.up_proj", "mlp.down_proj"
	return blockPlan{names: names, rotary: c.HeadDim}
}
