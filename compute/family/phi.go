package family

// phi is Phi-1, Phi-1.5 and Phi-2. PhiModel is not read: the output layer has a bias.
var phi = family{
	class: "PhiForCausalLM", kind: "phi",
	config: phiConfig,

	models:   "Phi-1, Phi-1.5, Phi-2",
	features: "parallel attention and MLP, layer norms, biases, `partial_rotary_factor`, bias of the head",
}

// phiConfig: source is transformers, modeling_phi.py.
func phiConfig(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "gelu_new")
	rotary := partialRope(f, c, 2048, 0.5)
	c.QKVBias, c.OutBias, c.MLPBias = true, true, true
	f.without("qk_layernorm")
	names := llamaNames()
	names.norm, names.out, names.mlpNorm = "final_layernorm", "self_attn.dense", ""
	names.up, names.down = "mlp.fc1", "mlp.fc2"
	return blockPlan{names: names, rotary: rotary, headBias: true}
}
