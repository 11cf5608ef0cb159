package family

import "github.com/millrace/millrace/compute/model"

// graniteMoe is Granite 3 with a mixture of experts.
var graniteMoe = family{
	class: "GraniteMoeForCausalLM", bare: "GraniteMoeModel", kind: "granitemoe",
	spell:   graniteSpell,
	config:  graniteMoeConfig,
	tensors: graniteTensors,
	gguf: &ggufForm{
		name: "granitemoe", interleaved: true,
		only:  func(k ggufKeys) bool { return !k.some("expert_shared_feed_forward_length") },
		parts: graniteExpertParts, keys: graniteExpertKeys, tensors: graniteTensors,
	},

	models:   "Granite 3 1B A400M, 3B A800M",
	features: "Granite 3 with experts: softmax over the chosen ones",
}

// graniteMoeShared is graniteMoe with a shared MLP.
var graniteMoeShared = family{
	class: "GraniteMoeSharedForCausalLM", bare: "GraniteMoeSharedModel", kind: "granitemoeshared",
	spell:   graniteSpell,
	config:  graniteMoeSharedConfig,
	tensors: graniteTensors,
	gguf: &ggufForm{
		name: "granitemoe", interleaved: true,
		only:  func(k ggufKeys) bool { return k.some("expert_shared_feed_forward_length") },
		parts: graniteExpertParts, keys: graniteExpertKeys, tensors: graniteTensors,
	},

	models:   "Granite 4 previews without Mamba",
	features: "+ a shared expert",
}

// graniteMoeConfig: source is transformers, modeling_granitemoe.py.
func graniteMoeConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{"num_local_experts": 8, "num_experts_per_tok": 2})
	p := graniteConfig(f, c).(granitePlan)
	p.experts = graniteExperts(f)
	return p
}

func graniteMoeSharedConfig(f *fields, c *Config) plan {
	p := graniteMoeConfig(f, c).(granitePlan)
	p.experts.shared = f.integer(0, 0, maxWidth, "shared_intermediate_size")
	return p
}

// graniteExperts are the experts of all Granites.
func graniteExperts(f *fields) *experts {
	e := readExperts(f, []string{"num_local_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	e.routing.Scores = model.RouteSoftmaxChosen
	e.names = expertNames{
		layer: "block_sparse_moe.", router: "router.layer", fused: "input_linear.weight", gate: "gate_linear", up: "up_linear",
		down: "output_linear", shared: "shared_mlp.", sharedFused: "input_linear", sharedDown: "output_linear",
	}
	return e
}
