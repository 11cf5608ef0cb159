package family

// phi3 is Phi-3, Phi-3.5 and Phi-4-mini: Llama with q, k and v in one tensor, gate and up in another, and part of a head rotated.
var phi3 = family{
	class: "Phi3ForCausalLM", also: []string{"Phi3ForSequenceClassification"}, bare: "Phi3Model", kind: "phi3",
	config: phi3Config,
	gguf: &ggufForm{
		name: "phi3", partial: true,
		parts: map[string]string{"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
		keys:  map[string]string{"attention.sliding_window": "sliding_window"},
	},

	models:   "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
	features: "+ fused q/k/v and gate/up, `partial_rotary_factor`, `longrope`, sliding window",
}

func phi3Config(f *fields, c *Config) plan {
	rotary := partialDecoder(f, c, 4096)
	if !f.has("rms_norm_eps") {
		c.Eps = 1e-5 // Phi3Config's default
	}
	c.windows(f, 0, 0)
	return llamaPlan{rotary: rotary, fused: true, fusedMLP: true}
}
