package family

// gemma4Unified is the text model of Gemma 4 without inputs of layers and experts.
var gemma4Unified = family{
	class: "Gemma4UnifiedForCausalLM", also: []string{"Gemma4UnifiedForConditionalGeneration"}, bare: "Gemma4UnifiedTextModel",
	kind: "gemma4_unified_text", spell: gemma4UnifiedSpell,
	config: gemma4Config,

	models:   "the text of Gemma 4 12B",
	features: "as Gemma 4, without inputs of layers and experts",
}

// gemma4UnifiedSpell sets the defaults of Gemma4UnifiedTextConfig.
func gemma4UnifiedSpell(f *fields) {
	f.liftText()
	f.defaults(map[string]any{"sliding_window": 1024, "max_position_embeddings": 262144})
	f.set("hidden_size_per_layer_input", 0)
	f.set("enable_moe_block", false)
	gemma4Spell(f)
}
