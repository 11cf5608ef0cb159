package family

// starcoder2 is StarCoder2: Llama with layer norms, biases and an MLP without a gate.
var starcoder2 = family{
	class: "Starcoder2ForCausalLM", bare: "Starcoder2Model", kind: "starcoder2",
	config: starcoder2Config,
	gguf: &ggufForm{
		name:  "starcoder2",
		parts: map[string]string{"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
		keys:  map[string]string{"attention.layer_norm_epsilon": "layer_norm_eps"},
		spell: func(f *fields) { f.members["use_bias"] = f.members["attention_bias"] },
	},

	models:   "StarCoder2",
	features: "layer norms, biases (`use_bias`), GQA, MLP without a gate, sliding window, rotary embedding",
}

// starcoder2Config: source is transformers, modeling_starcoder2.py.
func starcoder2Config(f *fields, c *Config) plan {
	blockSizes(f, c, 2, "gelu_pytorch_tanh")
	f.wholeHeads(ropeConfig(f, c, f.integer(4096, 1, maxPositions, "max_position_embeddings")))
	c.QKVBias = f.flag(true, "use_bias")
	c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	c.windows(f, 0, 0)
	names := llamaNames()
	names.up, names.down = "mlp.c_fc", "mlp.c_proj"
	return blockPlan{names: names, rotary: c.HeadDim}
}
