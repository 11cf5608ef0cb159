package family

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// cohere2Moe is Command-A with experts.
var cohere2Moe = family{
	class: "Cohere2MoeForCausalLM", bare: "Cohere2MoeModel", kind: "cohere2_moe",
	spell:   cohere2MoeSpell,
	config:  cohere2MoeConfig,
	tensors: cohere2MoeTensors,
	gguf: &ggufForm{
		name: "cohere2moe", tensors: cohere2MoeTensors,
		keys: merged(cohereKeys, windowKeys, map[string]string{
			"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "intermediate_size",
			"feed_forward_length": "prefix_dense_intermediate_size", "leading_dense_block_count": "first_k_dense_replace",
			"expert_weights_norm": "norm_topk_prob", "expert_gating_func": ggufGating, "expert_shared_count": "num_shared_experts",
			"expert_shared_feed_forward_length": "gguf.shared",
		}),
		spell: cohere2MoeGGUF,
	},

	models: "Command-A with experts",
	features: "as Command-R7B, RMS norms with `rms_norm_eps`, experts by `mlp_layer_types` or after `first_k_dense_replace` layers: softmax over the chosen ones, or sigmoid " +
		"(`expert_selection_fn`), shared ones, added or averaged (`shared_expert_combination_strategy`)",
}

// cohere2MoeSpell sets the defaults of Cohere2MoeConfig.
func cohere2MoeSpell(f *fields) {
	f.defaults(map[string]any{
		"head_dim": 128, "sliding_window": 4096, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true,
		"prefix_dense_sliding_window_pattern": 1,
	})
	layers := f.size(maxLayers, "num_hidden_layers")
	first := min(f.integer(0, 0, maxLayers, "first_k_dense_replace"), layers)
	prefix, pattern := f.integer(1, 1, maxLayers, "prefix_dense_sliding_window_pattern"),
		f.integer(4, 1, maxLayers, "sliding_window_pattern")
	types, mlps := make([]string, layers), make([]string, layers)
	for i := range types {
		place, every := i-first, pattern
		mlps[i] = "sparse"
		if i < first {
			place, every = i, prefix
			mlps[i] = "dense"
		}
		types[i] = sliding
		if (place+1)%every == 0 {
			types[i] = full
		}
	}
	f.defaults(map[string]any{"layer_types": types, "mlp_layer_types": mlps})
}

// cohere2MoeConfig: source is transformers, modeling_cohere2_moe.py.
func cohere2MoeConfig(f *fields, c *Config) plan {
	p := cohere2Config(f, c).(blockPlan)
	if p.rmsNorms = f.has("rms_norm_eps"); p.rmsNorms {
		c.Eps = float32(f.number(0, 1e-12, 0.1, "rms_norm_eps"))
	}
	e := readExperts(f, []string{"num_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	e.names.shared = "mlp.shared_experts."
	e.shared = e.intermediate * f.integer(0, 0, maxExperts, "num_shared_experts")
	e.dense = f.denseLayers(c)
	switch method := f.text("softmax", "expert_selection_fn"); method {
	case "softmax":
		e.routing.Scores = model.RouteSoftmaxChosen
	case "sigmoid":
		e.routing.Scores, e.routing.Normalize = model.RouteSigmoid, f.flag(true, "norm_topk_prob")
	default:
		f.fault("expert_selection_fn", fmt.Sprintf("%.40q", method), "softmax or sigmoid")
	}
	switch strategy := f.text("average", "shared_expert_combination_strategy"); {
	case strategy != "average" && strategy != "sum":
		f.fault("shared_expert_combination_strategy", fmt.Sprintf("%.40q", strategy), "average or sum")
	case strategy == "average" && e.shared > 0:
		e.routing.Scale = 0.5 // the other half is in the weights of the shared MLP
	}
	p.experts = e
	if len(e.dense) > 0 {
		c.Intermediate = f.integer(c.Intermediate, 1, maxWidth, "prefix_dense_intermediate_size")
		if f.integer(1, 1, maxLayers, "prefix_dense_sliding_window_pattern") == 1 {
			for i := range p.unrotated {
				p.unrotated[i] = p.unrotated[i] && !slices.Contains(e.dense, i)
			}
		}
	}
	return p
}

// cohere2MoeTensors halves what shared MLPs give where it is averaged with what the experts give.
func cohere2MoeTensors(c *Config, w *weights.Checkpoint) error {
	err := cohereNorm(c, w)
	if c.plan.(blockPlan).experts.routing.Scale == 1 {
		return err
	}
	return errors.Join(err, w.Scale(func(name string) func(int64) float32 {
		if !strings.HasSuffix(name, "mlp.shared_experts.down_proj.weight") {
			return nil
		}
		return func(int64) float32 { return 0.5 }
	}))
}

// cohere2MoeGGUF: without the key of a function of the gates it is sigmoid.
func cohere2MoeGGUF(f *fields) {
	f.flaggedTypes()
	f.defaults(map[string]any{"num_shared_experts": 0, "norm_topk_prob": false, "first_k_dense_replace": 0})
	switch gating := f.integer(0, 0, 16, ggufGating); gating {
	case gatingSoftmax:
		f.set("expert_selection_fn", "softmax")
		f.must("norm_topk_prob") // which the class does not read
	case 0, gatingSigmoid:
		f.set("expert_selection_fn", "sigmoid")
	default:
		f.fault(ggufGating, fmt.Sprint(gating), "1 or 2")
	}
	shared := f.size(maxWidth, "intermediate_size") * f.integer(0, 0, maxExperts, "num_shared_experts")
	if own := f.integer(shared, 0, maxWidth, "gguf.shared"); own != shared {
		f.fault("gguf.shared", fmt.Sprint(own), fmt.Sprintf("%d, the width of the shared experts", shared))
	}
}
