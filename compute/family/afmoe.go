package family

import (
	"math"

	"github.com/millrace/millrace/compute/model"
)

// afmoe is Arcee's Trinity: gated attention, windows with a rotary embedding between layers that see all without one, and experts.
var afmoe = family{
	class: "AfmoeForCausalLM", bare: "AfmoeModel", kind: "afmoe",
	spell:  afmoeSpell,
	config: afmoeConfig,
	gguf: &ggufForm{
		name: "afmoe",
		parts: map[string]string{
			"attn_gate": "self_attn.gate_proj", "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_mlp_layernorm",
			"post_ffw_norm": "post_mlp_layernorm", "ffn_gate_inp": "mlp.router.gate", "exp_probs_b.bias": "mlp.expert_bias",
		},
		keys: merged(mixtureKeys, windowKeys, map[string]string{
			"expert_count": "num_experts", "expert_shared_count": "num_shared_experts", "expert_weights_scale": "route_scale",
			"expert_weights_norm": ggufNorm, "leading_dense_block_count": "num_dense_layers",
		}),
		spell: func(f *fields) {
			f.gating(gatingSigmoid)
			f.normalized()
			f.ggufTypes(4)
			f.defaults(map[string]any{"num_shared_experts": 0, "num_dense_layers": 0})
			f.set("mup_enabled", true) // as llama.cpp has it
		},
	},

	models:   "Trinity Nano, Mini and Large",
	features: "RMS norms before and after each block and over each head of q and k, a gate on the attention's result, sliding windows in most layers and no rotary embedding in the others, experts: sigmoid with a bias, shared ones, plain layers first",
}

// afmoeSpell sets the defaults of AfmoeConfig.
func afmoeSpell(f *fields) {
	f.defaults(map[string]any{
		"head_dim": 128, "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "sliding_window": 1024, "num_experts": 64,
		"num_experts_per_tok": 6, "moe_intermediate_size": 1408, "intermediate_size": 6144,
	})
	f.patternTypes(4, "global_attn_every_n_layers")
}

// afmoeConfig: source is transformers, modeling_afmoe.py.
func afmoeConfig(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	c.QKNorm = true
	c.attentionBias(f, false)
	c.windows(f, 0, 0)
	e := readExperts(f, []string{"num_experts", "num_local_experts"}, []string{"num_experts_per_tok"}, []string{"moe_intermediate_size"})
	e.names.router, e.names.bias, e.names.shared = "router.gate", "expert_bias", "mlp.shared_experts."
	e.routing.Scores, e.routing.Normalize, e.routing.Scale = model.RouteSigmoid, true, float32(f.number(1, 1e-3, 1e3, "route_scale"))
	e.shared = e.intermediate * f.integer(2, 0, maxExperts, "num_shared_experts")
	for i := range f.integer(1, 0, maxLayers, "num_dense_layers") {
		e.dense = append(e.dense, i)
	}
	p := llamaPlan{
		experts: e, attentionGate: "gate_proj", unrotated: make([]bool, c.Layers),
		norms: layerNorms{
			attention: "input_layernorm", attended: "post_attention_layernorm", mlp: "pre_mlp_layernorm", mlpDone: "post_mlp_layernorm",
		},
	}
	for i := range p.unrotated {
		p.unrotated[i] = len(c.Windows) == 0 || c.Windows[i] == 0
	}
	if f.flag(false, "mup_enabled") {
		p.embedScale = float32(math.Sqrt(float64(c.Hidden)))
	}
	return p
}
