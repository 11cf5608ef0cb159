package family

// internlm2 is InternLM2 and 2.5: Llama with q, k and v in one tensor, by KV head. Its class is beside its checkpoints.
var internlm2 = family{
	class: "InternLM2ForCausalLM", kind: "internlm2",
	config: internlm2Config,
	gguf: &ggufForm{
		name: "internlm2", interleaved: true,
		names: map[string]string{"token_embd": "tok_embeddings"},
		parts: map[string]string{
			"attn_norm": "attention_norm", "attn_q": "attention.q_proj", "attn_k": "attention.k_proj", "attn_v": "attention.v_proj",
			"attn_output": "attention.wo", "ffn_norm": "ffn_norm", "ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3",
			"ffn_down": "feed_forward.w2",
		},
		spell: internlm2GGUF,
	},

	models:   "InternLM2, InternLM2.5",
	features: "as Llama, fused q/k/v, `bias` in attention",
}

// internlm2Config: source is modeling_internlm2.py of InternLM2.5.
func internlm2Config(f *fields, c *Config) plan {
	delete(f.members, "head_dim") // the class reads none
	llamaSizes(f, c, 0, 2048)
	c.QKVBias = f.flag(true, "bias")
	c.OutBias = c.QKVBias
	return blockPlan{rmsNorms: true, rotary: c.HeadDim, names: blockNames{
		decoder: "model.", table: "tok_embeddings", norm: "norm", head: "output.weight",
		layers: "layers.", attnNorm: "attention_norm", attention: "attention.", fused: "attention.wqkv", out: "attention.wo",
		mlpNorm: "ffn_norm", gate: "feed_forward.w1", up: "feed_forward.w3", down: "feed_forward.w2",
	}}
}

func internlm2GGUF(f *fields) { f.members["bias"] = f.members["attention_bias"] }
