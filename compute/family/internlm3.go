package family

// internLM3 is Llama with names of its own for the biases.
var internLM3 = family{
	class: "InternLM3ForCausalLM", kind: "internlm3",
	spell:  internLM3Spell,
	config: llamaConfig,

	models:   "InternLM3 8B",
	features: "as Llama, `qkv_bias`, `bias`",
}

// iquestCoder is Llama.
var iquestCoder = family{
	class: "IQuestCoderForCausalLM", kind: "iquestcoder",
	spell:  iquestCoderSpell,
	config: llamaConfig,

	models:   "IQuest-Coder V1 40B",
	features: "as Llama",
}

// internLM3Spell sets the defaults of InternLM3Config.
func internLM3Spell(f *fields) {
	f.prefer(map[string]string{"qkv_bias": "attention_bias", "bias": "mlp_bias"})
	f.defaults(map[string]any{"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5})
	if f.flag(false, "attention_bias") != f.flag(false, "mlp_bias") { // as the class in transformers, whose Llama has one for q, k, v and o
		f.fault("mlp_bias", "another value than attention_bias", "the same")
	}
}

// iquestCoderSpell sets the defaults of IQuestCoderConfig.
func iquestCoderSpell(f *fields) {
	f.defaults(map[string]any{"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5})
}
