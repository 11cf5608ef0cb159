package family

import "math"

// gemma is Gemma 1 and CodeGemma: Llama with a scaled embedding and weights of norms that are added to one.
var gemma = family{
	class: "GemmaForCausalLM", also: []string{"GemmaForSequenceClassification"}, bare: "GemmaModel", kind: "gemma",
	spell:   gemmaSpell,
	config:  gemmaConfig,
	tensors: gemmaNorms,
	gguf:    &ggufForm{name: "gemma"}, // whose norms are sums already

	models:   "Gemma 1, CodeGemma",
	features: "+ scaled embedding, gated GELU",
}

// gemmaSpell sets the defaults of GemmaConfig. Its first configurations have "gelu" for the approximation by tanh.
func gemmaSpell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192, "hidden_act": "gelu_pytorch_tanh",
		"tie_word_embeddings": true,
	})
	if f.text("", "hidden_act") == "gelu" {
		f.set("hidden_act", "gelu_pytorch_tanh")
	}
}

func gemmaConfig(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	c.MLPBias = false
	f.without("use_bidirectional_attention")
	p.embedScale, p.embedScaleRounded = float32(math.Sqrt(float64(c.Hidden))), true
	return p
}
