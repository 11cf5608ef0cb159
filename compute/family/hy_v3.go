package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/model"
)

// hyV3 is Hunyuan 3: Qwen3's attention, and experts beside a shared one.
var hyV3 = family{
	class: "HYV3ForCausalLM", bare: "HYV3Model", kind: "hy_v3",
	config: hyV3Config,
	gguf: &ggufForm{
		name: "hy_v3",
		parts: map[string]string{
			"ffn_gate_inp": "mlp.router.gate", "exp_probs_b.bias": "mlp.expert_bias", "exp_probs_b": "mlp.expert_bias",
			"ffn_gate_shexp": "mlp.shared_mlp.gate_proj", "ffn_up_shexp": "mlp.shared_mlp.up_proj",
			"ffn_down_shexp": "mlp.shared_mlp.down_proj",
		},
		keys: merged(qwenExpertKeys, map[string]string{
			"expert_weights_scale": "router_scaling_factor", "expert_weights_norm": ggufNorm, "expert_gating_func": ggufGating,
			"expert_shared_feed_forward_length": "gguf.shared", "expert_shared_count": "",
			"leading_dense_block_count": "first_k_dense_replace",
		}),
		spell: hyV3GGUF,
	},

	models:   "Hunyuan 3",
	features: "RMS norm over each head of q and k, experts by `mlp_layer_types`: sigmoid with a bias, shared ones",
}

// hyV3Config: source is transformers, modeling_hy_v3.py.
func hyV3Config(f *fields, c *Config) plan {
	f.defaults(map[string]any{
		"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 11_158_840.0,
		"num_experts": 192, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
	})
	llamaSizes(f, c, 0, 0)
	c.QKNorm = true
	c.attentionBias(f, false)
	c.MLPBias = f.flag(false, "mlp_bias")
	e := readExperts(f, []string{"num_experts", "num_local_experts"}, []string{"num_experts_per_tok"}, []string{"moe_intermediate_size"})
	e.names.router, e.names.bias, e.names.shared = "router.gate", "expert_bias", "mlp.shared_mlp."
	e.routing.Scores, e.routing.Normalize, e.routing.Scale = model.RouteSigmoid, true,
		float32(f.number(2.826, 1e-3, 1e3, "router_scaling_factor"))
	e.shared = e.intermediate * f.integer(1, 0, maxExperts, "num_shared_experts")
	e.dense = f.denseLayers(c)
	return llamaPlan{experts: e}
}

// denseByType takes the layers with a plain MLP from mlp_layer_types, where they are there.
func (e *experts) denseByType(f *fields, c *Config) {
	if f.has("mlp_layer_types") {
		e.dense = f.denseLayers(c)
	}
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

// hyV3GGUF: the first layers are plain, one without the key.
func hyV3GGUF(f *fields) {
	f.gating(gatingSigmoid)
	f.normalized()
	width := f.size(maxWidth, "moe_intermediate_size")
	shared := f.integer(width, 0, maxWidth, "gguf.shared")
	f.divides("gguf.shared", shared, "expert_feed_forward_length", width)
	if f.err != nil {
		return
	}
	f.set("num_shared_experts", shared/width)
	types := make([]string, f.size(maxLayers, "num_hidden_layers"))
	for i := range types {
		types[i] = map[bool]string{false: "sparse", true: "dense"}[i < f.integer(1, 0, maxLayers, "first_k_dense_replace")]
	}
	f.set("mlp_layer_types", types)
}
