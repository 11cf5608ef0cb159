package family

import (
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// gptOss is gpt-oss.
var gptOss = family{
	class: "GptOssForCausalLM", bare: "GptOssModel", kind: "gpt_oss",
	spell:   gptOssSpell,
	config:  gptOssConfig,
	tensors: gptOssExperts,
	gguf: &ggufForm{
		name: "gpt-oss",
		parts: map[string]string{"post_attention_norm": "post_attention_layernorm", "attn_sinks": "self_attn.sinks",
			"ffn_gate_inp": "mlp.router"},
		keys: map[string]string{
			"attention.sliding_window": "sliding_window", "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
			"expert_feed_forward_length": "", // as feed_forward_length
		},
		spell: gptOssGGUF,
	},

	models:   "gpt-oss 20B, 120B",
	features: "scores of a key without a value for each head (`sinks`), biases, sliding windows by `layer_types` or in every other layer, experts: softmax over the chosen ones, SwiGLU with limits, MXFP4",
}

// gptOssSpell sets the defaults of GptOssConfig.
func gptOssSpell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "rope_theta": 150000, "rms_norm_eps": 1e-5,
		"sliding_window": 128, "num_local_experts": 128, "attention_bias": true,
	})
	if !f.has("num_experts_per_tok") {
		f.set("num_experts_per_tok", f.integer(4, 1, maxExperts, "experts_per_token"))
	}
	if !f.has("rope_parameters") && !f.has("rope_scaling") {
		f.set("rope_scaling", map[string]any{"rope_type": "yarn", "factor": 32, "truncate": false,
			"original_max_position_embeddings": 4096})
	}
	f.patternTypes(2)
}

// gptOssConfig: source is transformers, modeling_gpt_oss.py.
func gptOssConfig(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	c.MLPBias = false
	c.windows(f, 0, 0)
	e := readExperts(f, []string{"num_local_experts", "num_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	e.routing.Scores = model.RouteSoftmaxChosen
	e.names.router = "router"
	e.biased, e.alternate = true, true
	e.limit, e.alpha = float32(f.number(7, 1e-3, 1e6, "swiglu_limit")), float32(f.number(1.702, -1e3, 1e3, "swiglu_alpha"))
	p.experts, p.sinks = e, true
	return p
}

// gptOssGGUF sets what has no key.
func gptOssGGUF(f *fields) {
	r := f.ropeObject()
	if r.members != nil {
		r.set("truncate", false)
		f.set("rope_scaling", r.members)
	}
}

// gptOssExperts turns the matrices of the experts, whose rows are inputs. Those of MXFP4 have their rows.
func gptOssExperts(_ *Config, w *weights.Checkpoint) error {
	return transpose(w, func(name string) bool {
		return strings.HasSuffix(name, "experts.gate_up_proj") || strings.HasSuffix(name, "experts.down_proj")
	})
}
