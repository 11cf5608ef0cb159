package family

// mistral is Llama with a sliding window in every layer.
var mistral = family{
	class: "MistralForCausalLM", bare: "MistralModel", kind: "mistral",
	config: mistralConfig,

	models:   "Mistral 7B",
	features: "+ sliding window in every layer, or `layer_types`",
}

func mistralConfig(f *fields, c *Config) plan {
	llamaSizes(f, c, 8, 4096*32)
	missing := 4096 // MistralConfig's default; a null in the file means none
	if _, present := f.members["sliding_window"]; present {
		missing = 0
	}
	c.windows(f, 0, missing)
	return llamaPlan{}
}
