package family

import "fmt"

// mpt is MPT.
var mpt = family{
	class: "MptForCausalLM", bare: "MptModel", kind: "mpt",
	spell:  mptSpell,
	config: mptConfig,

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
	if !f.flag(true, "no_bias") {
		f.fault("no_bias", "false", "true")
	}
	a := f.object("attn_config")
	a.without("qk_ln")
	a.without("prefix_lm")
	if !a.flag(true, "alibi") {
		a.fault("alibi", "false", "true")
	}
	if kind := a.text("multihead_attention", "attn_type"); kind != "multihead_attention" {
		a.fault("attn_type", fmt.Sprintf("%.40q", kind), "multihead_attention")
	}
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
