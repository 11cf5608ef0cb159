package family

import (
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// qwenExpertKeys are the keys of the experts, in GGUF files.
var qwenExpertKeys = map[string]string{
	"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "moe_intermediate_size",
}

// qwenGatedKeys are those of experts and a shared MLP with a gate.
var qwenGatedKeys = merged(qwenExpertKeys, map[string]string{"expert_shared_feed_forward_length": "shared_expert_intermediate_size"})

// qwenSharedParts are the names of the shared MLP with a gate.
var qwenSharedParts = map[string]string{
	"ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
	"ffn_down_shexp": "mlp.shared_expert.down_proj", "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}

// qwen3Moe is Qwen3 with a mixture of experts in place of the MLP.
var qwen3Moe = family{
	class: "Qwen3MoeForCausalLM", also: []string{"Qwen3VLMoeForConditionalGeneration"}, bare: "Qwen3MoeModel", kind: "qwen3_moe",
	spell:   qwen3MoeSpell,
	config:  qwen3MoeConfig,
	tensors: qwen3MoeTensors,
	gguf: &ggufForm{
		name:  "qwen3moe",
		also:  []string{"qwen3vlmoe"},
		keys:  merged(qwenExpertKeys, map[string]string{"n_deepstack_layers": ""}), // of images
		spell: func(f *fields) { f.set("norm_topk_prob", true) },
	},

	models:   "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder, the text of Qwen3-VL with experts",
	features: "Qwen3 with experts: softmax, `norm_topk_prob`, `decoder_sparse_step`, `mlp_only_layers`",
}

func qwen3MoeConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{"intermediate_size": 6144})
	qwen3Config(f, c)
	return llamaPlan{experts: qwenMoe(f, c)}
}

// qwen3MoeSpell: the model with images divides by the sum of the chosen scores, whatever its configuration says.
func qwen3MoeSpell(f *fields) {
	qwenVisionSpell(500000, 1e-6)(f)
	if f.has("vision_config") {
		f.set("norm_topk_prob", true)
	}
}

// qwen3MoeTensors turns the matrices of experts whose rows are inputs, as Qwen3-VL has been published.
func qwen3MoeTensors(c *Config, w *weights.Checkpoint) error {
	return transpose(w, func(name string) bool {
		t, _ := w.Describe(name)
		rows := 2 * c.plan.(llamaPlan).experts.intermediate
		if strings.HasSuffix(name, "mlp.experts.down_proj") {
			rows = c.Hidden
		} else if !strings.HasSuffix(name, "mlp.experts.gate_up_proj") {
			return false
		}
		return len(t.Shape) == 3 && t.Shape[1] != int64(rows)
	})
}

// qwen2Moe is Qwen2 with a mixture of experts and a shared MLP with a gate.
var qwen2Moe = family{
	class: "Qwen2MoeForCausalLM", bare: "Qwen2MoeModel", kind: "qwen2_moe",
	config: qwen2MoeConfig,
	gguf: &ggufForm{
		name:  "qwen2moe",
		parts: qwenSharedParts,
		keys:  qwenGatedKeys,
		spell: func(f *fields) { f.set("norm_topk_prob", false) },
	},

	models:   "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
	features: "Qwen2 with experts and a shared one with a gate",
}

func qwen2MoeConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{"intermediate_size": 5632, "num_key_value_heads": 16})
	llamaSizes(f, c, 0, 32768)
	c.QKVBias = f.flag(true, "qkv_bias")
	// The class has a window in every second layer, which no published model uses.
	f.without("use_sliding_window")
	e := qwenMoe(f, c)
	e.shared, e.sharedGate = f.integer(5632, 1, maxWidth, "shared_expert_intermediate_size"), true
	return llamaPlan{experts: e}
}

// qwenMoe reads the experts of both.
func qwenMoe(f *fields, c *Config) *experts {
	e := readExperts(f, []string{"num_experts", "num_local_experts"}, []string{"num_experts_per_tok"}, []string{"moe_intermediate_size"})
	e.routing.Scores, e.routing.Normalize = model.RouteSoftmax, f.flag(false, "norm_topk_prob")
	e.sparse(f, c)
	return e
}
