package family

// qwen3 is Llama with RMS norms over each head of q and k.
var qwen3 = family{
	class: "Qwen3ForCausalLM", also: []string{"Qwen3ForSequenceClassification", "Qwen3VLForConditionalGeneration"}, bare: "Qwen3Model",
	kind: "qwen3", spell: qwenVisionSpell(500000, 1e-6),
	config: qwen3Config,
	gguf:   &ggufForm{name: "qwen3", also: []string{"qwen3vl"}, keys: map[string]string{"n_deepstack_layers": ""}}, // of images

	models:   "Qwen3 (dense), the text of Qwen3-VL",
	features: "+ RMS norm over each head of q and k",
}

func qwen3Config(f *fields, c *Config) plan {
	if !f.has("head_dim") {
		f.members["head_dim"] = []byte("128") // Qwen3Config's default, not hidden / heads
	}
	llamaSizes(f, c, 32, 32768)
	c.QKNorm = true
	c.attentionBias(f, false)
	qwenWindows(f, c)
	return llamaPlan{}
}
