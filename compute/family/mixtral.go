package family

import "github.com/millrace/millrace/compute/model"

// mixtral is Mistral with a mixture of experts in place of the MLP.
var mixtral = family{
	class: "MixtralForCausalLM", bare: "MixtralModel", kind: "mixtral",
	config: mixtralConfig,
	gguf: &ggufForm{
		name: "llama", interleaved: true,
		only:  func(k ggufKeys) bool { return k.some("expert_count") },
		parts: sparseMoeParts,
		keys:  map[string]string{"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
	},

	models:   "Mixtral 8x7B, 8x22B",
	features: "Mistral with experts: softmax over the chosen ones",
}

func mixtralConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{"rope_theta": 1e6, "rms_norm_eps": 1e-5})
	llamaSizes(f, c, 8, 4096*32)
	c.windows(f, 0, 0)
	e := readExperts(f, []string{"num_local_experts", "num_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	e.routing.Scores, e.routing.Normalize = model.RouteSoftmax, true
	e.names = expertNames{layer: "block_sparse_moe.", router: "gate", gate: "w1", up: "w3", down: "w2"}
	return llamaPlan{experts: e}
}
