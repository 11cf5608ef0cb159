package family

// mellum is Qwen3 with experts, and sliding windows with a rotary embedding of their own.
var mellum = family{
	class: "MellumForCausalLM", bare: "MellumModel", kind: "mellum",
	spell:  mellumSpell,
	config: mellumConfig,
	gguf: &ggufForm{
		name: "mellum", keys: merged(qwenExpertKeys, windowKeys, map[string]string{"rope.freq_base_swa": ggufLocalBase}), spell: mellumGGUF,
	},

	models:   "Mellum 2 12B A2.5B",
	features: "Qwen3 with experts by `mlp_layer_types`: softmax, `norm_topk_prob`; sliding windows by `layer_types`, with a rotary embedding of their own",
}

// mellumSpell sets the defaults of MellumConfig.
func mellumSpell(f *fields) {
	f.prefer(map[string]string{"num_local_experts": "num_experts"})
	f.defaults(map[string]any{
		"intermediate_size": 7168, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 500000,
		"sliding_window": 1024, "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 896, "norm_topk_prob": true,
	})
	f.sameTypes("layer_types", full)
	f.sameTypes("mlp_layer_types", "sparse")
}

// mellumConfig: source is transformers, modeling_mellum.py. Layers for the prediction of several tokens are not read.
func mellumConfig(f *fields, c *Config) plan {
	decoderSizes(f, c, 0)
	c.QKNorm = true
	c.attentionBias(f, false)
	local := twoRopes(f, c, f.integer(0, 1, maxPositions, "max_position_embeddings"),
		f.number(10000, minTheta, maxTheta, ggufLocalBase))
	c.windows(f, 0, 0)
	e := qwenMoe(f, c)
	e.dense = f.denseLayers(c)
	return llamaPlan{local: &local, experts: e}
}

// mellumGGUF: layers with a window have a rotary base of their own. Where a file does not say it, they have that of the other layers.
func mellumGGUF(f *fields) {
	f.set("norm_topk_prob", true)
	f.mlpTypes()
	if !f.has("sliding_window") {
		f.members["sliding_window"] = []byte("null")
		f.sameTypes("layer_types", full)
		return
	}
	f.ggufTypes(4)
	f.defaults(map[string]any{ggufLocalBase: f.number(10000, minTheta, maxTheta, "rope_theta")})
}
