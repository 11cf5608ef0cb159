package family

import "maps"

// deepseekV32 is DeepSeek-V3 with an indexer that chooses the keys of each query.
var deepseekV32 = family{
	class: "DeepseekV32ForCausalLM", bare: "DeepseekV32Model", kind: "deepseek_v32",
	spell:   deepseekV32Spell,
	config:  sparseLatentsConfig,
	tensors: keyTensors,
	gguf:    sparseForm("deepseek32"),

	models:   "DeepSeek-V3.2, V3.2-Speciale",
	features: "as DeepSeek-V3, sequences of up to `index_topk` tokens: an indexer chooses that many keys, which are all of them",
}

// glmMoeDsa is DeepSeek-V3.2 in the sizes of GLM.
var glmMoeDsa = family{
	class: "GlmMoeDsaForCausalLM", bare: "GlmMoeDsaModel", kind: "glm_moe_dsa",
	spell:   glmMoeDsaSpell,
	config:  sparseLatentsConfig,
	tensors: keyTensors,
	gguf:    sparseForm("glm-dsa"),

	models:   "GLM-5, GLM-5.1",
	features: "as DeepSeek-V3.2",
}

// deepseekV32Spell sets the defaults of DeepseekV32Config.
func deepseekV32Spell(f *fields) {
	f.sizes(129280, 7168, 18432, 61, 128)
	f.latentDefaults(1536, map[string]any{
		"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840,
		"n_group": 8, "topk_group": 4,
	})
	sparseLatentsSpell(f)
}

// glmMoeDsaSpell sets the defaults of GlmMoeDsaConfig.
func glmMoeDsaSpell(f *fields) {
	f.sizes(154880, 6144, 12288, 78, 64)
	f.latentDefaults(2048, map[string]any{
		"kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "max_position_embeddings": 202752,
		"rms_norm_eps": 1e-5,
	})
	sparseLatentsSpell(f)
}

// sparseLatentsSpell sets what both have.
func sparseLatentsSpell(f *fields) {
	f.prefer(map[string]string{"num_experts": "n_routed_experts"})
	f.defaults(map[string]any{
		"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "routed_scaling_factor": 2.5,
		"first_k_dense_replace": 3,
	})
	delete(f.members, "rope_interleave") // the classes rotate neighbors
}

// sparseLatentsConfig: source is transformers, modeling_deepseek_v32.py and modeling_glm_moe_dsa.py. A query meets the index_topk keys to
// which the indexer gives the highest scores. A sequence of no more tokens needs no indexer: all keys are chosen.
func sparseLatentsConfig(f *fields, c *Config) plan {
	p := latentSizes(f, c)
	p.experts = glm4Experts(f, c)
	p.experts.denseByType(f, c)
	c.shorten(f.integer(2048, 1, maxPositions, "index_topk"),
		"its indexer, which is not run, chooses index_topk keys: all of a sequence of no more tokens")
	return p
}

// sparseForm is that of GGUF files with an indexer, of which the number of keys alone is read.
func sparseForm(name string) *ggufForm {
	g := latentForm(name, nil, func(f *fields) {
		f.mixture(gatingSigmoid)
		f.mlpTypes()
		f.size(maxPositions, "index_topk")
	})
	maps.Copy(g.keys, map[string]string{
		"attention.indexer.top_k": "index_topk", "attention.indexer.head_count": "", "attention.indexer.key_length": "",
		"attention.indexer.types": "",
	})
	g.unused = []string{".indexer."}
	return g
}
