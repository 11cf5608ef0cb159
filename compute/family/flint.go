package family

import (
	"strings"

	"github.com/millrace/millrace/compute/model"
)

// flint is Qwen3 with sliding windows, a score of a key without a value for each head, and experts that are chosen by sigmoid.
var flint = family{
	class: "FlintForCausalLM", bare: "FlintModel", kind: "flint",
	spell:  flintSpell,
	config: flintConfig,

	models: "Flint",
	features: "RMS norm over each head of q and k, `sinks`, sliding windows by `layer_types` and no rotary embedding in the other layers, experts: sigmoid, " +
		"`norm_topk_prob`, a shared one, plain layers by `mlp_only_layers`",
}

// flintSpell sets the defaults of FlintConfig.
func flintSpell(f *fields) {
	f.defaults(map[string]any{
		"intermediate_size": 6144, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 262144, "sliding_window": 513,
		"num_experts": 256, "num_experts_per_tok": 6, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 1024,
		"norm_topk_prob": true, "mlp_only_layers": []int{0, 1},
	})
	types := make([]string, f.size(maxLayers, "num_hidden_layers"))
	for i := range types {
		types[i] = sliding
		if i < 2 || i%4 == 1 || i == len(types)-1 {
			types[i] = full
		}
	}
	f.defaults(map[string]any{"layer_types": types})
}

// flintConfig: source is transformers, modeling_flint.py.
func flintConfig(f *fields, c *Config) plan {
	p := exaone4Plan(f, c)
	c.attentionBias(f, false)
	p.norms, p.sinks = layerNorms{}, true
	p.names = strings.NewReplacer("self_attn.sinks", "self_attn.softmax_offset")
	p.experts = qwenMoe(f, c)
	p.experts.routing.Scores = model.RouteSigmoid
	p.experts.shared = f.size(maxWidth, "shared_expert_intermediate_size")
	return p
}
