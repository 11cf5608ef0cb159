package family

// stablelm is StableLM and StableLM 2.
var stablelm = family{
	class: "StableLmForCausalLM", bare: "StableLmModel", kind: "stablelm",
	config: stablelmConfig,
	gguf: &ggufForm{
		name: "stablelm", partial: true,
		keys:  map[string]string{"attention.layer_norm_epsilon": "layer_norm_eps", "use_parallel_residual": "gguf.parallel"},
		spell: stablelmGGUF,
	},

	models:   "StableLM, StableLM 2 1.6B",
	features: "layer norms, `use_qkv_bias`, GQA, `partial_rotary_factor`, attention and MLP side by side or not (`use_parallel_residual`)",
}

// stablelmConfig: source is transformers, modeling_stablelm.py. Norms of q and k have weights for each head, which no op has.
func stablelmConfig(f *fields, c *Config) plan {
	delete(f.members, "head_dim") // StableLmAttention reads none
	blockSizes(f, c, 32, "silu")
	rotary := partialRope(f, c, 4096, 0.25)
	c.QKVBias = f.flag(false, "use_qkv_bias")
	f.without("qk_layernorm")
	names := llamaNames()
	names.gate, names.up, names.down = "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"
	if f.flag(false, "use_parallel_residual") {
		names.mlpNorm = ""
	}
	return blockPlan{names: names, rotary: rotary}
}

// stablelmGGUF: a block without a norm of its own runs beside the other, as in llama.cpp.
func stablelmGGUF(f *fields) {
	f.members["use_qkv_bias"] = f.members["attention_bias"]
	f.set("use_parallel_residual", !f.inLayers("ffn_norm.weight"))
}
