package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/model"
)

// hyV3 is Hunyuan 3: Qwen3's attention, and experts beside a shared one.
var hyV3 = family{
	class: "HYV3ForCausalLM", bare: "HYV3Model", kind: "hy_v3",
	config: hyV3Config,

	models:   "Hunyuan 3",
	features: "RMS norm over each head of q and k, experts by `mlp_layer_types`: sigmoid with a bias, shared ones",
}

// hyV3Config: source is transformers, modeling_hy_v3.py.
func hyV3Config(f *fields, c *Config) plan {
	f.defaults(map[string]any{
		"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 11_158_840.0, "num_experts": 192,
		"num_experts_per_tok": 8, "moe_intermediate_size": 1536,
	})
	llamaSizes(f, c, 0, 0)
	c.QKNorm = true
	c.attentionBias(f, false)
	c.MLPBias = f.flag(false, "mlp_bias")
	e := readExperts(f, []string{"num_experts", "num_local_experts"}, []string{"num_experts_per_tok"}, []string{"moe_intermediate_size"})
	e.names.router, e.names.bias, e.names.shared = "router.gate", "expert_bias", "mlp.shared_mlp."
	e.routing.Scores, e.routing.Normalize, e.routing.Scale = model.RouteSigmoid, true, float32(f.number(2.826, 1e-3, 1e3, "router_scaling_factor"))
	e.shared = e.intermediate * f.integer(1, 0, maxExperts, "num_shared_experts")
	e.dense = f.denseLayers(c)
	return llamaPlan{experts: e}
}

// denseLayers are the layers with a plain MLP by mlp_layer_types, or the first one.
func (f *fields) denseLayers(c *Config) (dense []int) {
	types := f.texts("mlp_layer_types")
	if types == nil {
		return []int{0}
	}
	if f.err == nil && len(types) != c.Layers {
		f.fault("mlp_layer_types", fmt.Sprintf("%d entries", len(types)), fmt.Sprintf("one for each of %d layers", c.Layers))
	}
	for i, t := range types {
		switch t {
		case "dense":
			dense = append(dense, i)
		case "sparse":
		default:
			f.fault("mlp_layer_types", fmt.Sprintf("%.40q", t), "dense or sparse")
		}
	}
	return dense
}
