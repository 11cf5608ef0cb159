package family

// phi4Multimodal is the text model of Phi-4-multimodal: Phi-3 without the adapters of images and sound.
var phi4Multimodal = family{
	class: "Phi4MultimodalForCausalLM", bare: "Phi4MultimodalModel", kind: "phi4_multimodal",
	spell:  phi4MultimodalSpell,
	config: phi3Config,

	models:   "the text of Phi-4-multimodal, as transformers writes it",
	features: "as Phi-3",
}

// phi4MultimodalSpell sets the defaults of Phi4MultimodalConfig.
func phi4MultimodalSpell(f *fields) {
	f.defaults(map[string]any{
		"vocab_size": 200064, "num_key_value_heads": 8, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
	})
}
