package family

import "slices"

// laraMini is Qwen3-Next with sliding windows, and without gates of attention and of the shared MLP.
var laraMini = family{
	class: "LaraMiniForCausalLM", bare: "LaraMiniModel", kind: "lara_mini",
	spell:  laraMiniSpell,
	config: laraMiniConfig,

	models: "Lara 4 Mini",
	features: "gated delta nets, and GQA with RMS norm over each head of q and k, by `layer_types`: with a sliding window, or without a rotary embedding; experts: softmax, `norm_topk_prob`, " +
		"a shared one",
}

// laraMiniSpell sets the defaults of LaraMiniConfig.
func laraMiniSpell(f *fields) {
	f.sizes(151936, 1024, 5632, 34, 16)
	f.defaults(map[string]any{
		"num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 131072, "sliding_window": 512, "linear_num_key_heads": 8,
		"linear_num_value_heads": 16, "num_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "norm_topk_prob": true,
		"tie_word_embeddings": true,
	})
	types := slices.Repeat([]string{linearAttention, sliding, linearAttention, full, sliding}, f.size(maxLayers, "num_hidden_layers")/5+1)
	f.defaults(map[string]any{"layer_types": types[:f.size(maxLayers, "num_hidden_layers")]})
}

// laraMiniConfig: source is transformers, modeling_lara_mini.py.
func laraMiniConfig(f *fields, c *Config) plan {
	types := f.texts("layer_types")
	decoderSizes(f, c, 0)
	d := readDeltaNet(f)
	d.whole = true
	p := llamaPlan{mixer: d, experts: qwenMoe(f, c)}
	f.wholeHeads(c.readRope(f, f.ropeObject(), f.integer(131072, 1, maxPositions, "max_position_embeddings")))
	c.QKNorm = true
	c.attentionBias(f, false)
	p.experts.shared = f.integer(512, 1, maxWidth, "shared_expert_intermediate_size")
	p.recurrent = make([]bool, len(types))
	for i, t := range types {
		if p.recurrent[i] = t == linearAttention; p.recurrent[i] {
			types[i] = full
		}
	}
	if f.err == nil {
		c.Windows = layerTypeWindows(f, types, f.integer(0, 1, maxPositions, "sliding_window"), c.Layers)
	}
	p.unrotated = c.fullLayers()
	return p
}
