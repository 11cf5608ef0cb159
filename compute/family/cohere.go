package family

import "github.com/millrace/millrace/compute/weights"

// cohere is Command-R.
var cohere = family{
	class: "CohereForCausalLM", bare: "CohereModel", kind: "cohere",
	config:  cohereConfig,
	tensors: cohereNorm,
	gguf: &ggufForm{
		name: "command-r", keys: cohereKeys, tensors: cohereNorm,
		spell: func(f *fields) { f.set("use_qk_norm", f.inLayers("attn_q_norm.weight")) },
	},

	models:   "Command-R, Command-R+, Aya 23, Aya Expanse",
	features: "parallel attention and MLP, layer norms without bias, also over each head of q and k (`use_qk_norm`), GQA, rotation of pairs (2i, 2i+1), `logit_scale`",
}

// cohere2 is Command-R7B and Command-A.
var cohere2 = family{
	class: "Cohere2ForCausalLM", bare: "Cohere2Model", kind: "cohere2",
	spell:   cohere2Spell,
	config:  cohere2Config,
	tensors: cohereNorm,
	gguf: &ggufForm{
		name: "cohere2", keys: merged(cohereKeys, windowKeys), tensors: cohereNorm,
		spell: func(f *fields) { f.ggufTypes(4) },
	},

	models:   "Command-R7B, Command-A",
	features: "as Command-R, sliding windows by `layer_types` or `sliding_window_pattern`, no rotary embedding in the other layers",
}

// cohereConfig: source is transformers, modeling_cohere.py.
func cohereConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{"rope_theta": 500000})
	p := coherePlan(f, c)
	p.qkNorms = f.flag(false, "use_qk_norm")
	return p
}

func cohere2Spell(f *fields) {
	delete(f.members, "head_dim") // Cohere2Config computes it
	f.defaults(map[string]any{"sliding_window": 4096})
	f.patternTypes(4, "sliding_window_pattern")
}

// cohere2Config: source is transformers, modeling_cohere2.py.
func cohere2Config(f *fields, c *Config) plan {
	p := coherePlan(f, c)
	c.windows(f, 0, 0)
	p.unrotated = c.fullLayers()
	return p
}

func coherePlan(f *fields, c *Config) blockPlan {
	blockSizes(f, c, 0, "silu")
	f.wholeHeads(ropeConfig(f, c, f.integer(8192, 1, maxPositions, "max_position_embeddings")))
	c.attentionBias(f, false)
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	names := llamaNames()
	names.mlpNorm = ""
	names.gate, names.up, names.down = "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"
	return blockPlan{
		names: names, rotary: c.HeadDim, pairs: true, plainNorms: true,
		logitScale: float32(f.number(0.0625, 1e-6, 1e6, "logit_scale")),
	}
}

// cohereNorm multiplies the weight of the last norm, which has no bias, with the factor of the logits.
func cohereNorm(c *Config, w *weights.Checkpoint) error {
	scale := c.plan.(blockPlan).logitScale
	return w.Replace(finalNorm, func(x float32) float32 { return x * scale })
}

// cohereKeys are the keys of both.
var cohereKeys = map[string]string{"logit_scale": "logit_scale", "attention.layer_norm_epsilon": "layer_norm_eps"}
