package family

// bitNet is BitNet b1.58: Llama with the square of ReLU as the gate, and norms before the last projection of attention and of the MLP. Its
// checkpoints have weights of three values, which the reader of quantized layers knows.
var bitNet = family{
	class: "BitNetForCausalLM", bare: "BitNetModel", kind: "bitnet",
	spell:  bitNetSpell,
	config: bitNetConfig,

	models:   "BitNet b1.58 2B4T",
	features: "gated MLP with the square of ReLU, RMS norms before the last projections of attention and MLP; [weights of three values](#quantized-checkpoints)",
}

// bitNetSpell sets the defaults of BitNetConfig.
func bitNetSpell(f *fields) {
	f.defaults(map[string]any{"hidden_act": "relu2", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 500000})
}

// bitNetConfig: source is transformers, modeling_bitnet.py.
func bitNetConfig(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	c.MLPBias = false
	p.subNorms = true
	return p
}
