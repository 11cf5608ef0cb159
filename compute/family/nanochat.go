package family

import "strings"

// nanoChat is nanochat.
var nanoChat = family{
	class: "NanoChatForCausalLM", bare: "NanoChatModel", kind: "nanochat",
	spell:  nanoChatSpell,
	config: nanoChatConfig,

	models:   "nanochat d20, d32",
	features: "RMS norms without weights, also of the embedding and over each head of q and k, MLP without a gate, with the square of ReLU, `final_logit_softcapping`",
}

// nanoChatSpell sets the defaults of NanoChatConfig. A cap of null is none; without the member there is one.
func nanoChatSpell(f *fields) {
	f.missing(map[string]any{"final_logit_softcapping": 15})
	f.defaults(map[string]any{"hidden_act": "relu2"})
}

// nanoChatConfig: source is transformers, modeling_nanochat.py. Its norms of q and k come after the rotation, which leaves them as they
// are. The rotation is by the negative angle.
func nanoChatConfig(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	c.MLPBias = false
	p.bareNorms, p.embedNorm, p.plainNorms = true, true, true
	p.reversed, p.upOnly = true, true
	p.finalSoftcap = float32(f.number(0, 1e-3, 1e6, "final_logit_softcapping"))
	p.names = strings.NewReplacer("mlp.up_proj", "mlp.fc1", "mlp.down_proj", "mlp.fc2")
	return p
}
