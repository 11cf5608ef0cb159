package family

import "fmt"

// mpt is MPT.
var mpt = family{
	class: "MptForCausalLM", bare: "MptModel", kind: "mpt",
	spell:  mptSpell,
	config: mptConfig,
	gguf: &ggufForm{
		name: "mpt", decoder: "transformer.", layers: "blocks.",
		names: map[string]string{"token_embd": "wte", "output_norm": "norm_f"},
		parts: map[string]string{
			"attn_norm": "norm_1", "attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "ffn_norm": "norm_2", "ffn_up": "ffn.up_proj",
			"ffn_down": "ffn.down_proj",
		},
		keys: map[string]string{
			"attention.layer_norm_epsilon": "layer_norm_epsilon", "attention.max_alibi_bias": "attn_config.alibi_bias_max",
			"attention.clamp_kqv": "attn_config.clip_qkv", "feed_forward_length": "gguf.feed_forward_length",
			"attention.head_count_kv": "gguf.head_count_kv",
		},
		spell: mptGGUF,
	},

	models:   "MPT 7B, 30B",
	features: "ALiBi, layer norms without bias, fused q/k/v, `clip_qkv`, `softmax_scale`",
}

// mptSpell gives members the names that most classes have.
func mptSpell(f *fields) {
	f.prefer(map[string]string{
		"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
		"max_seq_len": "max_position_embeddings",
	})
	delete(f.members, "num_key_value_heads") // the format has none
	delete(f.members, "head_dim")
	if hidden := f.size(maxWidth, "hidden_size"); f.err == nil {
		f.set("intermediate_size", 4*hidden)
	}
}

// mptConfig: source is transformers, modeling_mpt.py, which does not read the members that are refused here.
func mptConfig(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "gelu")
	c.MaxPositions = f.integer(2048, 1, maxPositions, "max_position_embeddings")
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	if ratio := f.number(4, 0, 1e3, "expansion_ratio"); ratio != 4 {
		f.fault("expansion_ratio", fmt.Sprint(ratio), "4")
	}
	if _, raw := f.get("logit_scale"); raw != nil {
		f.fault("logit_scale", excerpt(raw), "null")
	}
	f.must("no_bias")
	a := f.object("attn_config")
	a.without("qk_ln")
	a.without("prefix_lm")
	a.must("alibi")
	a.only("attn_type", "multihead_attention")
	if most := a.number(8, 0, 1e3, "alibi_bias_max"); most != 8 {
		a.fault("alibi_bias_max", fmt.Sprint(most), "8")
	}
	p := blockPlan{
		names: blockNames{
			decoder: "transformer.", table: "wte", norm: "norm_f",
			layers: "blocks.", attnNorm: "norm_1", fused: "attn.Wqkv", inOrder: true, out: "attn.out_proj", mlpNorm: "norm_2",
			up: "ffn.up_proj", down: "ffn.down_proj",
		},
		plainNorms: true, clip: float32(a.number(0, 1e-6, 1e6, "clip_qkv")), alibi: true,
		attentionScale: float32(a.number(0, 1e-6, 1e6, "softmax_scale")),
	}
	f.adopt(a)
	return p
}

// mptGGUF refuses what some files of the architecture have, and no plan of the class: other slopes of ALiBi or none, groups of heads, and
// another width of the MLP.
func mptGGUF(f *fields) {
	heads, hidden := f.size(maxHeads, "num_attention_heads"), f.size(maxWidth, "hidden_size")
	if kv := f.integer(heads, 0, maxHeads, "gguf.head_count_kv"); kv != heads {
		f.fault("gguf.head_count_kv", fmt.Sprint(kv), fmt.Sprintf("as many as heads, %d", heads))
	}
	if width := f.integer(4*hidden, 0, maxWidth, "gguf.feed_forward_length"); width != 4*hidden {
		f.fault("gguf.feed_forward_length", fmt.Sprint(width), fmt.Sprintf("4 times embedding_length, %d", 4*hidden))
	}
	most := f.number(0, 0, 1e3, "attn_config.alibi_bias_max")
	if most != 8 {
		f.fault("attn_config.alibi_bias_max", fmt.Sprint(most), "8")
	}
	config := map[string]any{"alibi": true, "alibi_bias_max": most}
	if clip := f.number(0, 0, 1e6, "attn_config.clip_qkv"); clip > 0 {
		config["clip_qkv"] = clip
	}
	f.set("attn_config", config)
}
