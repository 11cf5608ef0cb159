package family

import "github.com/millrace/millrace/compute/model"

// glm is GLM-4: Llama with biases on q, k and v, gate and up in one tensor, and half of a head rotated.
var glm = family{
	class: "GlmForCausalLM", bare: "GlmModel", kind: "glm",
	spell:  glmSpell,
	config: glmConfig,
	gguf: &ggufForm{ // q, k and v are one tensor in files of checkpoints with ChatGLM's own code
		name: "chatglm", partial: true,
		parts: map[string]string{"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
		spell: glmGGUF,
	},

	models:   "GLM-4 9B, GLM-Edge",
	features: "+ biases on q, k, v, fused gate/up, `partial_rotary_factor` with pairs (2i, 2i+1)",
}

// glm4 is GLM-4-0414: GLM-4 with norms after each block too.
var glm4 = family{
	class: "Glm4ForCausalLM", bare: "Glm4Model", kind: "glm4",
	spell:  glmSpell,
	config: glm4Config,
	gguf: &ggufForm{
		name: "glm4", partial: true,
		parts: map[string]string{
			"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm", "ffn_up": "mlp.gate_up_proj",
		},
	},

	models:   "GLM-4-0414, GLM-Z1",
	features: "GLM-4 with RMS norms after each block too",
}

// glmSpell sets the defaults of GlmConfig and Glm4Config.
func glmSpell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7,
		"partial_rotary_factor": 0.5,
	})
}

func glmConfig(f *fields, c *Config) plan { return glmPlan(f, c) }

func glm4Config(f *fields, c *Config) plan {
	p := glmPlan(f, c)
	p.norms = layerNorms{
		attention: "input_layernorm", attended: "post_self_attn_layernorm",
		mlp: "post_attention_layernorm", mlpDone: "post_mlp_layernorm",
	}
	return p
}

func glmPlan(f *fields, c *Config) llamaPlan {
	rotary := partialDecoder(f, c, 0)
	c.QKVBias = f.flag(true, "attention_bias")
	return llamaPlan{rotary: rotary, interleaved: true, fused: f.flag(false, ggufFused), fusedMLP: true}
}

// ggufFused says whether q, k and v are one tensor, which no config.json has.
const ggufFused = "gguf.fused_qkv"

func glmGGUF(f *fields) {
	f.set(ggufFused, f.inLayers("attn_qkv.weight"))
	f.set("attention_bias", f.flag(false, "attention_bias") || f.inLayers("attn_qkv.bias"))
}

// glm4Moe is GLM-4.5: GLM-4's attention with a mixture of experts that are chosen within groups, after some plain layers.
var glm4Moe = family{
	class: "Glm4MoeForCausalLM", bare: "Glm4MoeModel", kind: "glm4_moe",
	spell:  glm4MoeSpell,
	config: glm4MoeConfig,
	gguf: &ggufForm{
		name: "glm4moe", partial: true,
		parts: map[string]string{"post_attention_norm": "post_attention_layernorm"},
		keys:  mixtureKeys,
		spell: glm4MoeGGUF,
	},

	models:   "GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7",
	features: "+ RMS norms of q and k (`use_qk_norm`), half of a head rotated, experts: sigmoid with a bias, groups, a shared one, plain layers first",
}

// glm4MoeSpell sets the defaults of Glm4MoeConfig.
func glm4MoeSpell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
		"n_shared_experts": 1, "first_k_dense_replace": 1,
	})
}

func glm4MoeConfig(f *fields, c *Config) plan {
	rotary := partialDecoder(f, c, 0)
	c.QKVBias = f.flag(false, "attention_bias")
	c.QKNorm = f.flag(false, "use_qk_norm")
	return llamaPlan{rotary: rotary, experts: glm4Experts(f, c)}
}

// glm4Experts reads the experts of GLM-4.5, and of the classes that took them from it or from DeepSeek-V3.
func glm4Experts(f *fields, c *Config) *experts {
	e := readExperts(f, []string{"n_routed_experts", "num_local_experts"}, []string{"num_experts_per_tok"},
		[]string{"moe_intermediate_size"})
	e.routing.Scores, e.routing.Normalize = model.RouteSigmoid, f.flag(true, "norm_topk_prob")
	e.routing.Scale = float32(f.number(1, 1e-6, 1e6, "routed_scaling_factor"))
	e.routing.Groups, e.routing.TopGroups = f.integer(1, 1, maxExperts, "n_group"), f.integer(1, 1, maxExperts, "topk_group")
	e.shared = e.intermediate * f.integer(1, 0, maxExperts, "n_shared_experts")
	for i := range min(f.integer(1, 0, maxLayers, "first_k_dense_replace"), c.Layers) {
		e.dense = append(e.dense, i)
	}
	e.names.bias, e.names.shared = "gate.e_score_correction_bias", "mlp.shared_experts."
	return e
}

// glm4MoeGGUF: files of Solar Open, whose layers are those of GLM-4.5 with all of a head rotated, have this architecture too.
func glm4MoeGGUF(f *fields) {
	f.mixture(gatingSigmoid)
	_, norms := f.tensors.Describe("model.layers.0.self_attn.q_norm.weight")
	f.set("use_qk_norm", norms)
}
