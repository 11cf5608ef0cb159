package family

import (
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// aria is the text model of Aria.
var aria = family{
	class: "AriaTextForCausalLM", also: []string{"AriaForConditionalGeneration"}, bare: "AriaTextModel", kind: "aria_text",
	spell:   ariaSpell,
	config:  ariaConfig,
	tensors: ariaExperts,

	models:   "the text of Aria",
	features: "Llama with experts: softmax over the chosen ones, shared ones",
}

// ariaSpell takes text_config for the whole, and sets the defaults of AriaTextConfig.
func ariaSpell(f *fields) {
	f.liftText()
	f.sizes(32000, 4096, 4096, 32, 32)
	f.defaults(map[string]any{"moe_num_experts": 8, "moe_topk": 2})
}

// ariaConfig: source is transformers, modeling_aria.py. Its experts are gated by SiLU whatever hidden_act says, which is refused.
func ariaConfig(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	if f.err == nil && c.Activation != model.ActSiLU {
		f.fault("hidden_act", f.text("", "hidden_act"), "silu")
	}
	e := readExperts(f, []string{"moe_num_experts"}, []string{"moe_topk"}, []string{"intermediate_size"})
	e.routing.Scores = model.RouteSoftmaxChosen
	e.shared = e.intermediate * f.integer(2, 0, maxExperts, "moe_num_shared_experts")
	e.names = expertNames{layer: "mlp.", router: "router", fused: "experts.fc1.weight", down: "experts.fc2", shared: "mlp.shared_experts."}
	p.experts = e
	return p
}

// ariaExperts turns the matrices of the experts, whose rows are inputs.
func ariaExperts(_ *Config, w *weights.Checkpoint) error {
	return transpose(w, func(name string) bool { return strings.Contains(name, "mlp.experts.fc") })
}
