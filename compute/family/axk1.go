package family

// axk1 is DeepSeek-V3 with a norm of what the experts give.
var axk1 = family{
	class: "AXK1ForCausalLM", bare: "AXK1Model", kind: "axk1",
	spell:   axk1Spell,
	config:  axk1Config,
	tensors: keyTensors,

	models:   "A.X K1",
	features: "as DeepSeek-V3, an RMS norm after the experts, plain layers by `mlp_layer_types`, or `first_k_dense_replace` and `moe_layer_freq`",
}

// axk1Spell sets the defaults of AXK1Config.
func axk1Spell(f *fields) {
	f.latentDefaults(1536, map[string]any{
		"intermediate_size": 18432, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
		"max_position_embeddings": 32768, "n_routed_experts": 192, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 8,
		"topk_group": 4, "routed_scaling_factor": 2.5,
	})
	if f.has("mlp_layer_types") {
		return
	}
	first, every := f.integer(1, 0, maxLayers, "first_k_dense_replace"), f.integer(1, 1, maxLayers, "moe_layer_freq")
	types := make([]string, f.size(maxLayers, "num_hidden_layers"))
	for i := range types {
		types[i] = "dense"
		if i >= first && i%every == 0 {
			types[i] = "sparse"
		}
	}
	f.set("mlp_layer_types", types)
}

// axk1Config: source is transformers, modeling_axk1.py.
func axk1Config(f *fields, c *Config) plan {
	p := deepseekV3Config(f, c).(llamaPlan)
	p.experts.dense, p.experts.biasIfThere = f.denseLayers(c), true
	p.norms = layerNorms{attention: "input_layernorm", mlp: "post_attention_layernorm", mixed: "post_mlp_layernorm"}
	return p
}
