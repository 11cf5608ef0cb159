package family

// gptneoxJapanese is GPT-NeoX without biases but that of the last layer's attention.
var gptneoxJapanese = family{
	class: "GPTNeoXJapaneseForCausalLM", bare: "GPTNeoXJapaneseModel", kind: "gpt_neox_japanese",
	spell:  gptneoxJapaneseSpell,
	config: gptneoxJapaneseConfig,

	models:   "GPT-NeoX Japanese 2.7B",
	features: "layer norms, fused q/k/v, a bias of the last layer's attention alone, part of a head rotated (`rotary_pct`)",
}

func gptneoxJapaneseSpell(f *fields) {
	gptneoxSpell(f)
	hidden, multiple := f.size(maxWidth, "hidden_size"), f.integer(4, 1, 1<<10, "intermediate_multiple_size")
	f.set("intermediate_size", hidden*multiple)
}

// gptneoxJapaneseConfig: source is transformers, modeling_gpt_neox_japanese.py.
func gptneoxJapaneseConfig(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "gelu")
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	p := gptneoxPlan{blockPlan{names: gptneoxNames(), rotary: partialRope(f, c, 2048, 1)}}
	p.names.decoder, p.names.lastBias = "gpt_neox_japanese.", "attention.dense_bias"
	return p
}
