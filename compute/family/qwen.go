package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/weights"
)

// qwen is Qwen 1: Llama with biases on q, k and v, which are one tensor. Its class is beside its checkpoints.
var qwen = family{
	class: "QWenLMHeadModel", kind: "qwen",
	spell:  qwenSpell,
	config: qwenConfig,
	gguf: &ggufForm{
		name: "qwen", decoder: "transformer.", layers: "h.",
		names: map[string]string{"token_embd": "wte", "output_norm": "ln_f"},
		parts: map[string]string{
			"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.w1",
			"ffn_gate": "mlp.w2", "ffn_down": "mlp.c_proj",
		},
		keys:  map[string]string{"attention.layer_norm_epsilon": "layer_norm_epsilon"},
		spell: qwenGGUF,
	},

	models:   "Qwen 1.8B to 72B (the first Qwen)",
	features: "as Llama, fused q/k/v with biases, `no_bias`; sequences of up to `seq_length` tokens: longer ones change the rotation and scale queries",
}

// qwenShortest is the seq_length of Qwen 14B, the smallest of a published model.
const qwenShortest = 2048

// qwenSpell gives members the names that most classes have, and sets the defaults of QWenConfig. The class has no KV heads.
func qwenSpell(f *fields) {
	for _, name := range []string{"num_key_value_heads", "head_dim"} {
		delete(f.members, name)
	}
	f.prefer(map[string]string{
		"layer_norm_epsilon": "rms_norm_eps", "rotary_emb_base": "rope_theta", "seq_length": "max_position_embeddings",
	})
	f.sizes(151936, 4096, 22016, 32, 32)
}

// qwenConfig: source is modeling_qwen.py of Qwen-7B. The MLP has half of intermediate_size.
func qwenConfig(f *fields, c *Config) plan {
	f.size(maxPositions, "seq_length") // the class has no default of it
	f.divides("intermediate_size", f.size(maxWidth, "intermediate_size"), "the number of its matrices", 2)
	llamaSizes(f, c, 0, 8192)
	c.Intermediate /= 2
	if weights.IsGGUF(c.File) {
		c.shorten(qwenShortest, "the file does not say from which length on queries are scaled")
	}
	if size := f.integer(c.HeadDim, 1, maxHeadDim, "kv_channels"); size != c.HeadDim {
		f.fault("kv_channels", fmt.Sprint(size), fmt.Sprintf("hidden_size over the number of heads, %d", c.HeadDim))
	}
	if rotated := f.number(1, 0, 1, "rotary_pct"); rotated != 1 {
		f.fault("rotary_pct", fmt.Sprint(rotated), "1")
	}
	f.must("scale_attn_weights")
	c.QKVBias = true
	c.OutBias = !f.flag(true, "no_bias")
	c.MLPBias = c.OutBias
	return blockPlan{
		names: blockNames{
			decoder: "transformer.", table: "wte", norm: "ln_f",
			layers: "h.", attnNorm: "ln_1", fused: "attn.c_attn", inOrder: true, out: "attn.c_proj",
			mlpNorm: "ln_2", gate: "mlp.w2", up: "mlp.w1", down: "mlp.c_proj",
		},
		rmsNorms: true, rotary: c.HeadDim,
	}
}

// qwenGGUF: files have max_position_embeddings and no seq_length.
func qwenGGUF(f *fields) {
	f.members["seq_length"] = f.members["max_position_embeddings"]
	f.set("no_bias", !f.inLayers("attn_output.bias"))
}
