package family

import "github.com/millrace/millrace/compute/model"

// phimoe is Phi-3.5-MoE: Mixtral with layer norms, biases and experts chosen one after the other.
var phimoe = family{
	class: "PhimoeForCausalLM", kind: "phimoe",
	spell:  phimoeSpell,
	config: phimoeConfig,
	gguf: &ggufForm{
		name:  "phimoe",
		parts: sparseMoeParts,
		keys: map[string]string{
			"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok", "attention.sliding_window": "sliding_window",
		},
		spell: phimoeGGUF,
	},

	models:   "Phi-3.5-MoE, Phi-mini-MoE",
	features: "layer norms, `attention_bias`, `lm_head_bias`, sliding window, experts: SparseMixer",
}

// phimoeSpell sets the defaults of PhimoeConfig.
func phimoeSpell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 8, "max_position_embeddings": 131072, "rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_local_experts": 16,
		"num_experts_per_tok": 2,
	})
}

// phimoeConfig: source is transformers, modeling_phimoe.py. Its longrope has scales of its own for short and long sequences.
func phimoeConfig(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	if c.Rope.Type != "default" && f.err == nil {
		r := f.ropeObject()
		long := c.MaxPositions > c.Rope.OriginalPositions
		c.Rope.AttentionFactor = r.number(0, 1e-6, 100, map[bool]string{false: "short_mscale", true: "long_mscale"}[long])
		if c.Rope.Type != "longrope" || c.Rope.AttentionFactor == 0 {
			f.fault("rope_scaling", c.Rope.Type, "longrope with short_mscale and long_mscale")
		}
		f.adopt(r)
	}
	c.attentionBias(f, false)
	c.windows(f, 0, 0)
	e := readExperts(f, []string{"num_local_experts", "num_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	e.routing.Scores, e.routing.Jitter = model.RouteSparseMixer, float32(f.number(0.01, 0, 1, "router_jitter_noise"))
	e.names = expertNames{layer: "block_sparse_moe.", router: "gate", gate: "w1", up: "w3", down: "w2"}
	return llamaPlan{experts: e, layerNorm: true, headBias: f.flag(false, "lm_head_bias")}
}

// phimoeGGUF: the files have one scale of cosines.
func phimoeGGUF(f *fields) {
	_, bias := f.tensors.Describe("lm_head.bias")
	f.set("lm_head_bias", bias)
	if r := f.ropeObject(); r.members != nil {
		r.members["short_mscale"], r.members["long_mscale"] = r.members["attention_factor"], r.members["attention_factor"]
		f.set("rope_scaling", r.members)
	}
}
