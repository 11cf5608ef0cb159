package family

// phi is Phi-1, Phi-1.5 and Phi-2. PhiModel is not read: the output layer has a bias.
var phi = family{
	class: "PhiForCausalLM", kind: "phi",
	config: phiConfig,
	gguf: &ggufForm{
		name: "phi2", partial: true,
		names: map[string]string{"output_norm": "final_layernorm"},
		parts: map[string]string{"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
		keys:  map[string]string{"attention.layer_norm_epsilon": "layer_norm_eps"},
		spell: phiGGUF,
	},

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

// phiGGUF takes the width of the MLP from its tensor: the converter writes four times the embedding's, whatever it is.
func phiGGUF(f *fields) {
	if t, ok := f.tensors.Describe("model.layers.0.mlp.fc1.weight"); ok && len(t.Shape) == 2 {
		f.set("intermediate_size", t.Shape[0])
	}
}
