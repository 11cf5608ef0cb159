package family

import "slices"

// sarvamMoe is Sarvam 30B: the layers of GLM-4.5 with the names of Ling 2.0.
var sarvamMoe = family{
	class: "SarvamMoEForCausalLM", kind: "sarvam_moe", saved: "Glm4MoeForCausalLM",
	spell:   sarvamMoeSpell,
	config:  sarvamMoeConfig,
	tensors: lingTensors,

	models:   "Sarvam 30B",
	features: "as GLM-4.5 with RMS norms of q and k, all of a head rotated, fused q/k/v",
}

// sarvamMLA is Sarvam 105B: DeepSeek-V3 with names of its own in config.json.
var sarvamMLA = family{
	class: "SarvamMLAForCausalLM", kind: "sarvam_mla", saved: "DeepseekV3ForCausalLM",
	spell:   sarvamMLASpell,
	config:  deepseekV3Config,
	tensors: keyTensors,

	models:   "Sarvam 105B",
	features: "as DeepSeek-V3",
}

// sarvamExperts gives the experts the names that GLM-4.5 and DeepSeek have.
func sarvamExperts(f *fields) {
	f.prefer(map[string]string{
		"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts", "num_mtp_layers": "num_nextn_predict_layers",
	})
	f.defaults(map[string]any{
		"n_routed_experts": 128, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
		"routed_scaling_factor": 2.5,
	})
}

// sarvamMoeSpell sets the defaults of SarvamMoEConfig.
func sarvamMoeSpell(f *fields) {
	sarvamExperts(f)
	f.prefer(map[string]string{"use_qkv_bias": "attention_bias"})
	f.defaults(map[string]any{
		"num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "partial_rotary_factor": 1,
		"num_experts_per_tok": 6, "moe_intermediate_size": 1024, "use_qk_norm": true, "rope_theta": 8e6,
	})
}

// sarvamMoeConfig: source is transformers, which runs its GLM-4.5.
func sarvamMoeConfig(f *fields, c *Config) plan {
	p, _ := glm4MoeConfig(f, c).(llamaPlan)
	p.fused = true
	return p
}

// sarvamMLASpell sets the defaults of SarvamMLAConfig. Its deepseek_yarn is yarn, and its head_dim is that of the latents.
func sarvamMLASpell(f *fields) {
	sarvamExperts(f)
	delete(f.members, "head_dim")
	scaling := f.object("rope_scaling")
	if slices.Contains([]string{scaling.text("", "type"), scaling.text("", "rope_type")}, "deepseek_yarn") {
		delete(scaling.members, "type")
		scaling.set("rope_type", "yarn")
		f.set("rope_scaling", scaling.members)
	}
	f.missing(map[string]any{"q_lora_rank": nil})
	f.defaults(map[string]any{
		"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 4096,
		"num_experts_per_tok": 8, "moe_intermediate_size": 2048,
	})
}
