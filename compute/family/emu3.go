package family

// emu3 is the text model of Emu3, which also answers with the tokens of images.
var emu3 = family{
	class: "Emu3ForCausalLM", also: []string{"Emu3ForConditionalGeneration"}, bare: "Emu3TextModel", kind: "emu3_text_model",
	spell:  emu3Spell,
	config: llamaConfig,

	models:   "the text of Emu3",
	features: "as Llama",
}

// emu3Spell takes text_config for the whole, and sets the defaults of Emu3TextConfig.
func emu3Spell(f *fields) {
	f.liftText()
	f.sizes(184622, 4096, 14336, 32, 32)
	f.defaults(map[string]any{
		"num_key_value_heads": 8, "max_position_embeddings": 9216, "rms_norm_eps": 1e-5,
	})
}
