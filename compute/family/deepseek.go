package family

import (
	"errors"
	"fmt"
	"math"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// deepseekV2 is attention over latents, with experts.
var deepseekV2 = family{
	class: "DeepseekV2ForCausalLM", bare: "DeepseekV2Model", kind: "deepseek_v2",
	spell:   deepseekV2Spell,
	config:  deepseekV2Config,
	tensors: keyTensors,
	gguf: latentForm("deepseek2", func(k ggufKeys) bool { return k.some("expert_count") && !sigmoidExperts(k) }, func(f *fields) {
		f.mixture(gatingSoftmax)
		if f.integer(1, 1, maxExperts, "n_group") > 1 {
			f.set("topk_method", "group_limited_greedy")
		}
	}),

	models:   "DeepSeek-V2, DeepSeek-V2-Lite, DeepSeek-Coder-V2",
	features: "latents (MLA), with or without `q_lora_rank`, experts by softmax, in groups by their best (`group_limited_greedy`), shared ones, plain layers first",
}

// deepseekV3 is DeepSeek-V2 with the experts that GLM-4.5 took from it.
var deepseekV3 = family{
	class: "DeepseekV3ForCausalLM", bare: "DeepseekV3Model", kind: "deepseek_v3",
	spell:   deepseekV3Spell,
	config:  deepseekV3Config,
	tensors: keyTensors,
	gguf: latentForm("deepseek2", func(k ggufKeys) bool { return k.some("expert_count") && sigmoidExperts(k) }, func(f *fields) {
		f.mixture(gatingSigmoid)
	}),

	models:   "DeepSeek-V3, V3.1 and R1, Kimi K2, Moonlight",
	features: "latents as DeepSeek-V2, experts as GLM-4.5",
}

// glm4MoeLite is DeepSeek-V3 in the sizes of GLM.
var glm4MoeLite = family{
	class: "Glm4MoeLiteForCausalLM", bare: "Glm4MoeLiteModel", kind: "glm4_moe_lite",
	spell:   glm4MoeLiteSpell,
	config:  glm4MoeLiteConfig,
	tensors: keyTensors,

	models:   "GLM-4.7-Flash",
	features: "as DeepSeek-V3, plain layers by `mlp_layer_types`",
}

// mistral4 is DeepSeek-V2 whose queries grow with the position, with experts that are chosen by softmax.
var mistral4 = family{
	class: "Mistral4ForCausalLM", also: []string{"Mistral3ForConditionalGeneration"}, bare: "Mistral4Model", kind: "mistral4",
	spell:   mistral4Spell,
	config:  mistral4Config,
	tensors: keyTensors,
	gguf:    latentForm("mistral4", nil, mistral4GGUF),

	models:   "Mistral Small 4, also the text of models with images",
	features: "latents as DeepSeek-V2, experts by softmax, factors of queries by `llama_4_scaling_beta`",
}

// youtu is attention over latents without experts.
var youtu = family{
	class: "YoutuForCausalLM", bare: "YoutuModel", kind: "youtu",
	spell:   youtuSpell,
	config:  youtuConfig,
	tensors: keyTensors,
	gguf:    latentForm("deepseek2", func(k ggufKeys) bool { return !k.some("expert_count") }, nil),

	models:   "Youtu-LLM-2B",
	features: "latents as DeepSeek-V2, without experts",
}

// minicpm3 is attention over latents with Granite's factors under other names.
var minicpm3 = family{
	class: "MiniCPM3ForCausalLM", bare: "MiniCPM3Model", kind: "minicpm3",
	spell:   minicpm3Spell,
	config:  minicpm3Config,
	tensors: minicpm3Tensors,
	gguf:    minicpm3Form(),

	models:   "MiniCPM3-4B",
	features: "latents as DeepSeek-V2, rotated by halves, factors of embeddings, residuals and logits (`scale_emb`, `scale_depth`, `dim_model_base`)",
}

// deepseekV2Spell sets the defaults of DeepseekV2Config.
func deepseekV2Spell(f *fields) {
	f.latentDefaults(1536, map[string]any{
		"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 2048,
		"first_k_dense_replace": 0, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407,
	})
}

// deepseekV2Config: source is transformers, modeling_deepseek_v2.py. It does not read norm_topk_prob.
func deepseekV2Config(f *fields, c *Config) plan {
	p := latentSizes(f, c)
	p.experts = deepseekV2Experts(f, c)
	return p
}

func deepseekV2Experts(f *fields, c *Config) *experts {
	e := glm4Experts(f, c)
	e.names.bias = ""
	r := &e.routing
	r.Scores, r.Normalize, r.GroupScores = model.RouteSoftmax, false, 1
	switch method := f.text("greedy", "topk_method"); method {
	case "greedy":
		r.Groups, r.TopGroups = 1, 1
	case "group_limited_greedy":
	default:
		f.fault("topk_method", fmt.Sprintf("%.40q", method), "greedy or group_limited_greedy")
	}
	return e
}

// deepseekV3Spell sets the defaults of DeepseekV3Config.
func deepseekV3Spell(f *fields) {
	f.latentDefaults(1536, map[string]any{
		"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 4096,
		"first_k_dense_replace": 3, "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 8,
		"topk_group": 4, "routed_scaling_factor": 2.5,
	})
}

// deepseekV3Config: source is transformers, modeling_deepseek_v3.py.
func deepseekV3Config(f *fields, c *Config) plan {
	p := latentSizes(f, c)
	p.experts = glm4Experts(f, c)
	return p
}

// glm4MoeLiteSpell sets the defaults of Glm4MoeLiteConfig.
func glm4MoeLiteSpell(f *fields) {
	f.latentDefaults(768, map[string]any{
		"kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "max_position_embeddings": 202752,
		"rms_norm_eps": 1e-5, "n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "routed_scaling_factor": 1.8,
	})
}

// glm4MoeLiteConfig: source is transformers, modeling_glm4_moe_lite.py.
func glm4MoeLiteConfig(f *fields, c *Config) plan {
	p := deepseekV3Config(f, c).(llamaPlan)
	p.experts.dense = f.denseLayers(c)
	return p
}

// mistral4Spell sets the defaults of Mistral4Config.
func mistral4Spell(f *fields) {
	f.liftText()
	f.latentDefaults(1024, map[string]any{
		"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 1048576,
		"first_k_dense_replace": 0, "n_routed_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 2048,
	})
	if !f.has("rope_parameters") && !f.has("rope_scaling") {
		f.set("rope_parameters", map[string]any{
			"rope_type": "yarn", "rope_theta": 1e4, "factor": 128, "original_max_position_embeddings": 8192, "mscale": 1,
			"mscale_all_dim": 1, "llama_4_scaling_beta": 0.1,
		})
	}
}

// mistral4Config: source is transformers, modeling_mistral4.py.
func mistral4Config(f *fields, c *Config) plan {
	p := latentSizes(f, c)
	p.temperature = yarnTemperature(f, c)
	p.experts = glm4Experts(f, c)
	p.experts.names.bias, p.experts.routing.Scores = "", model.RouteSoftmax
	return p
}

// youtuSpell sets the defaults of YoutuConfig.
func youtuSpell(f *fields) {
	f.latentDefaults(1536, map[string]any{
		"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 131072,
		"tie_word_embeddings": true,
	})
}

// youtuConfig: source is transformers, modeling_youtu.py.
func youtuConfig(f *fields, c *Config) plan { return latentSizes(f, c) }

// minicpm3Spell sets the defaults of MiniCPM3Config. A scale of null is none; without the member there is one.
func minicpm3Spell(f *fields) {
	f.latentDefaults(768, map[string]any{
		"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
		"tie_word_embeddings": true, "scale_emb": 12,
	})
	hidden, heads := f.size(maxWidth, "hidden_size"), f.size(maxHeads, "num_attention_heads")
	if f.err == nil {
		f.defaults(map[string]any{"v_head_dim": hidden / heads})
	}
	f.missing(map[string]any{"scale_depth": 1.4, "dim_model_base": 256})
}

// minicpm3Config: source is transformers, modeling_minicpm3.py.
func minicpm3Config(f *fields, c *Config) plan {
	p := granitePlan{llamaPlan: latentSizes(f, c)}
	p.latents.interleaved = false
	layers := math.Sqrt(float64(c.Layers))
	residual := f.number(layers, 1e-3, 1e3, "scale_depth") / layers
	base := f.integer(c.Hidden, 1, maxWidth, "dim_model_base")
	p.scaleResidual(c, residual, f.number(12, 1e-3, 1e6, "scale_emb"))
	p.logitsScaling = float32(c.Hidden) / float32(base)
	return p
}

func minicpm3Tensors(c *Config, w *weights.Checkpoint) error {
	return errors.Join(keyTensors(c, w), graniteTensors(c, w))
}
