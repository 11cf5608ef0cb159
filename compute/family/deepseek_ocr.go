package family

import "fmt"

// deepseekOCR2 is the text model of DeepSeek-OCR 2: the attention of Llama, and the experts of DeepSeek-V2.
var deepseekOCR2 = family{
	class: "DeepseekOcr2ForConditionalGeneration", bare: "DeepseekOcr2TextModel", kind: "deepseek_ocr2",
	spell:  deepseekOCR2Spell,
	config: deepseekOCR2Config,
	gguf: &ggufForm{
		name:  "deepseek2-ocr",
		keys:  merged(mixtureKeys, map[string]string{"rope.dimension_count": ""}), // that of latents, which it has not
		spell: deepseekOCRGGUF,
	},

	models:   "the text of DeepSeek-OCR 2",
	features: "Llama with experts as DeepSeek-V2, plain layers by `mlp_layer_types` or `first_k_dense_replace`",
}

// deepseekOCR2Spell takes text_config for the whole, and sets the defaults of DeepseekOcr2TextConfig.
func deepseekOCR2Spell(f *fields) {
	f.liftText()
	delete(f.members, "head_dim") // the class computes it
	f.sizes(32000, 4096, 11008, 32, 32)
	f.defaults(map[string]any{
		"first_k_dense_replace": 0, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407,
		"tie_word_embeddings": true,
	})
}

// deepseekOCR2Config: source is transformers, modeling_deepseek_ocr2.py.
func deepseekOCR2Config(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	p.experts = deepseekV2Experts(f, c)
	p.experts.denseByType(f, c)
	return p
}

// deepseekOCRGGUF: as files of DeepSeek-V2, whose experts' weights are not divided by their sum.
func deepseekOCRGGUF(f *fields) {
	f.mixture(gatingSoftmax)
	f.without("norm_topk_prob")
	if n := f.integer(1, 0, maxExperts, "n_group"); n > 1 {
		f.fault("n_group", fmt.Sprint(n), "1")
	}
}
