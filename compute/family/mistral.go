package family

// mistral is Llama with a sliding window in every layer.
var mistral = family{
	class: "MistralForCausalLM", also: []string{"MistralForSequenceClassification", "Mistral3ForConditionalGeneration"},
	bare: "MistralModel", kind: "mistral", spell: func(f *fields) { f.liftText() },
	config: mistralConfig,

	models:   "Mistral 7B, the text of Mistral Small 3.1 and 3.2",
	features: "+ sliding window in every layer, or `layer_types`",
}

// ministral is mistral under another name.
var ministral = family{
	class: "MinistralForCausalLM", bare: "MinistralModel", kind: "ministral",
	config: mistralConfig,

	models:   "Ministral 8B",
	features: "as Mistral",
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
