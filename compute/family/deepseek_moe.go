package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/model"
)

// deepseekMoE is the first DeepSeek with experts: Llama's attention, and the experts that DeepSeek-V2 took from it.
var deepseekMoE = family{
	class: "DeepseekForCausalLM", kind: "deepseek",
	spell:  deepseekMoESpell,
	config: deepseekMoEConfig,
	gguf: &ggufForm{
		name: "deepseek", interleaved: true,
		keys:  mixtureKeys,
		spell: func(f *fields) { f.mixture(gatingSoftmax) },
	},

	models:   "DeepSeek-MoE 16B",
	features: "Llama with experts: softmax, `norm_topk_prob`, shared ones, plain layers first, `moe_layer_freq`",
}

// deepseekMoESpell sets the defaults of DeepseekConfig, which is beside the checkpoints. The class computes the size of a head.
func deepseekMoESpell(f *fields) {
	delete(f.members, "head_dim")
	f.defaults(map[string]any{"n_shared_experts": 0, "first_k_dense_replace": 0, "norm_topk_prob": false})
}

// deepseekMoEConfig: source is modeling_deepseek.py of the checkpoints, which has no groups and no factor of the experts.
func deepseekMoEConfig(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	c.MLPBias = false
	f.only("scoring_func", "softmax")
	e := glm4Experts(f, c)
	if scale := e.routing.Scale; scale != 1 {
		f.fault("routed_scaling_factor", fmt.Sprint(scale), "1")
	}
	e.names.bias = ""
	e.routing.Scores, e.routing.Groups, e.routing.TopGroups = model.RouteSoftmax, 1, 1
	e.routing.Normalize = e.routing.Normalize && e.routing.TopK > 1
	step := f.integer(1, 1, maxLayers, "moe_layer_freq")
	for i := len(e.dense); i < c.Layers; i++ {
		if i%step != 0 {
			e.dense = append(e.dense, i)
		}
	}
	p.experts = e
	return p
}
