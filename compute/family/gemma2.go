package family

import "math"

// gemma2 is Gemma 2: Gemma 1 with norms after each block too, sliding windows, and caps on scores and logits.
var gemma2 = family{
	class: "Gemma2ForCausalLM", also: []string{"Gemma2ForSequenceClassification"}, bare: "Gemma2Model", kind: "gemma2",
	spell:   gemma2Spell,
	config:  gemma2Config,
	tensors: gemmaNorms,
	gguf: &ggufForm{
		name:  "gemma2",
		parts: sandwichParts,
		keys: map[string]string{
			"attention.sliding_window": "sliding_window", "attn_logit_softcapping": "attn_logit_softcapping",
			"final_logit_softcapping": "final_logit_softcapping",
		},
		spell: gemma2GGUF,
	},

	models:   "Gemma 2",
	features: "RMS norms before and after each block, scaled embedding, gated GELU, sliding windows by `layer_types` or in every other layer, `attn_logit_softcapping`, `final_logit_softcapping`",
}

// vaultGemma is Gemma 2 without the norms after the blocks.
var vaultGemma = family{
	class: "VaultGemmaForCausalLM", bare: "VaultGemmaModel", kind: "vaultgemma",
	spell:   gemma2Spell,
	config:  vaultGemmaConfig,
	tensors: gemmaNorms,

	models:   "VaultGemma 1B",
	features: "as Gemma 2, RMS norms before each block only",
}

// gemma2Spell sets the defaults of Gemma2Config. A cap of null is none; without the member there is one.
func gemma2Spell(f *fields) {
	f.sizes(256000, 2304, 9216, 26, 8)
	f.defaults(map[string]any{
		"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192, "sliding_window": 4096, "tie_word_embeddings": true,
		"query_pre_attn_scalar": 256,
	})
	f.missing(map[string]any{"attn_logit_softcapping": 50, "final_logit_softcapping": 30})
	gemmaActivation(f)
	f.patternTypes(2)
}

// gemma2Config: source is transformers, modeling_gemma2.py.
func gemma2Config(f *fields, c *Config) plan { return gemma2Plan(f, c) }

// vaultGemmaConfig: source is transformers, modeling_vaultgemma.py.
func vaultGemmaConfig(f *fields, c *Config) plan {
	p := gemma2Plan(f, c)
	p.norms = layerNorms{attention: "input_layernorm", mlp: "pre_feedforward_layernorm"}
	return p
}

// sandwichNorms are before and after each block.
var sandwichNorms = layerNorms{
	attention: "input_layernorm", attended: "post_attention_layernorm", mlp: "pre_feedforward_layernorm",
	mlpDone: "post_feedforward_layernorm",
}

func gemma2Plan(f *fields, c *Config) llamaPlan {
	llamaSizes(f, c, 0, 0)
	c.attentionBias(f, false)
	f.without("use_bidirectional_attention")
	c.windows(f, 0, 0)
	return llamaPlan{
		norms:             sandwichNorms,
		embedScale:        float32(math.Sqrt(float64(c.Hidden))),
		embedScaleRounded: true,
		attentionScale:    float32(1 / math.Sqrt(f.number(0, 1, maxWidth, "query_pre_attn_scalar"))),
		softcap:           float32(f.number(0, 1e-3, 1e6, "attn_logit_softcapping")),
		finalSoftcap:      float32(f.number(0, 1e-3, 1e6, "final_logit_softcapping")),
	}
}

// gemma2GGUF sets what llama.cpp knows by the model's size.
func gemma2GGUF(f *fields) {
	scalar := f.integer(0, 1, maxHeadDim, "head_dim")
	if layers := f.size(maxLayers, "num_hidden_layers"); layers == 46 { // 27B
		scalar = f.size(maxWidth, "hidden_size") / max(f.size(maxHeads, "num_attention_heads"), 1)
	}
	f.set("query_pre_attn_scalar", scalar)
}
