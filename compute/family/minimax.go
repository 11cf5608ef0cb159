package family

import "github.com/millrace/millrace/compute/model"

// minimaxM2 is Llama with norms over all of q and of k, and a mixture of experts.
var minimaxM2 = family{
	class: "MiniMaxM2ForCausalLM", bare: "MiniMaxM2Model", kind: "minimax_m2",
	spell:  minimaxM2Spell,
	config: minimaxM2Config,
	gguf: &ggufForm{
		name: "minimax-m2", partial: true,
		parts: sparseMoeParts,
		keys: map[string]string{
			"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "intermediate_size",
			"feed_forward_length": "", "expert_gating_func": ggufGating,
		},
		spell: func(f *fields) { f.gating(gatingSigmoid) },
	},

	models:   "MiniMax-M2, MiniMax-M2.1",
	features: "RMS norms over all heads of q and k together, part of a head rotated (`rotary_dim`), experts: sigmoid with a bias",
}

// minimaxM2Spell sets the defaults of MiniMaxM2Config.
func minimaxM2Spell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 196608, "rope_theta": 5e6, "num_local_experts": 256, "num_experts_per_tok": 8,
	})
	if rotary := f.integer(0, 1, maxHeadDim, "rotary_dim"); rotary > 0 {
		f.defaults(map[string]any{"partial_rotary_factor": float64(rotary) / float64(f.integer(128, 1, maxHeadDim, "head_dim"))})
	}
}

// minimaxM2Config: source is transformers, modeling_minimax_m2.py.
func minimaxM2Config(f *fields, c *Config) plan {
	rotary := partialDecoder(f, c, 0)
	e := readExperts(f, []string{"num_local_experts", "num_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	e.routing.Scores, e.routing.Normalize = model.RouteSigmoid, true
	e.names = expertNames{layer: "block_sparse_moe.", router: "gate", bias: "e_score_correction_bias", gate: "w1", up: "w3", down: "w2"}
	return llamaPlan{rotary: rotary, wideNorms: true, experts: e}
}
