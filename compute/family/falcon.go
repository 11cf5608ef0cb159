package family

import "github.com/millrace/millrace/compute/weights"

// falcon is Falcon with rotary embeddings.
var falcon = family{
	class: "FalconForCausalLM", bare: "FalconModel", kind: "falcon",
	spell:  falconSpell,
	config: falconConfig,
	gguf: &ggufForm{
		name: "falcon", decoder: "transformer.", layers: "h.",
		names: map[string]string{"token_embd": "word_embeddings", "output_norm": "ln_f"},
		parts: map[string]string{
			"attn_norm_2": "ln_attn", "attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense",
			"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
		},
		keys: map[string]string{
			"attention.layer_norm_epsilon": "layer_norm_epsilon", "feed_forward_length": "ffn_hidden_size",
			"attention.head_count_kv": "num_kv_heads",
		},
		spell: falconGGUF,
	},

	models:   "Falcon 7B, 40B and 180B, Falcon 2 11B",
	features: "layer norms, fused q/k/v, `multi_query`, `new_decoder_architecture` with one norm or two, attention and MLP side by side or not (`parallel_attn`), `bias`",
}

// falconSpell gives members the names that most classes have, and sets those that FalconConfig computes.
func falconSpell(f *fields) {
	if f.has("n_embed") {
		f.rename(map[string]string{"n_embed": "hidden_size"})
	}
	f.rename(map[string]string{"ffn_hidden_size": "intermediate_size", "activation": "hidden_act", "num_kv_heads": "num_key_value_heads"})
	if !f.has("intermediate_size") {
		f.set("intermediate_size", 4*f.integer(1, 1, maxWidth/4, "hidden_size"))
	}
	if !f.flag(false, "new_decoder_architecture") {
		delete(f.members, "num_key_value_heads") // a head of q has its own
		if f.flag(true, "multi_query") {
			f.set("num_key_value_heads", 1)
		}
	}
	delete(f.members, "head_dim")
}

// falconConfig: source is transformers, modeling_falcon.py. Its ALiBi, of Falcon RW only, rounds the slopes to bfloat16.
func falconConfig(f *fields, c *Config) plan {
	f.without("alibi")
	blockSizes(f, c, 0, "gelu")
	f.wholeHeads(ropeConfig(f, c, f.integer(2048, 1, maxPositions, "max_position_embeddings")))
	c.QKVBias = f.flag(false, "bias")
	c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	gguf := weights.IsGGUF(f.file)
	names := blockNames{
		decoder: "transformer.", table: "word_embeddings", norm: "ln_f",
		layers: "h.", attnNorm: "input_layernorm", fused: "self_attention.query_key_value", inOrder: gguf, out: "self_attention.dense",
		up: "mlp.dense_h_to_4h", down: "mlp.dense_4h_to_h",
	}
	grouped := f.flag(false, "new_decoder_architecture")
	parallel := f.flag(true, "parallel_attn") || grouped
	switch norms := f.integer(2, 1, 2, "num_ln_in_parallel_attn"); {
	case grouped && norms == 2:
		names.attnNorm, names.mlpNorm = "ln_attn", "ln_mlp"
		if gguf { // the name of the only norm of others
			names.mlpNorm = "input_layernorm"
		}
	case !parallel:
		names.mlpNorm = "post_attention_layernorm"
	}
	return blockPlan{names: names, rotary: c.HeadDim, parallel: parallel}
}

// falconGGUF sets what the file does not say. llama.cpp computes attention and MLP from the same input, and both of Falcon's
// architectures have the same keys in a file. The rows of its heads are in the order of the heads.
func falconGGUF(f *fields) {
	f.set("new_decoder_architecture", true)
	norms := 1
	if f.inLayers("attn_norm_2.weight") {
		norms = 2
	}
	f.set("num_ln_in_parallel_attn", norms)
}
