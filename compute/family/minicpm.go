package family

import (
	"fmt"
	"math"
)

// minicpm is MiniCPM 1, 2 and 4: Llama with Granite's factors under other names. Its class is beside its checkpoints.
var minicpm = family{
	class: "MiniCPMForCausalLM", kind: "minicpm",
	spell:   minicpmSpell,
	config:  minicpmConfig,
	tensors: graniteTensors,
	gguf: &ggufForm{
		name: "minicpm", interleaved: true,
		keys:    map[string]string{"embedding_scale": "scale_emb", "residual_scale": minicpmResidual, "logit_scale": minicpmLogits},
		spell:   minicpmGGUF,
		tensors: graniteTensors,
	},

	models:   "MiniCPM 1B and 2B, MiniCPM4, MiniCPM4.1 (without experts)",
	features: "Llama with factors of embeddings, residuals and logits (`scale_emb`, `scale_depth`, `dim_model_base`)",
}

// The members of the factors that GGUF files have in place of scale_depth and dim_model_base. No config.json has them.
const (
	minicpmResidual = "gguf.residual_scale"
	minicpmLogits   = "gguf.logit_scale"
)

// minicpmSpell sets the defaults of MiniCPMConfig.
func minicpmSpell(f *fields) {
	f.defaults(map[string]any{"tie_word_embeddings": true, "scale_emb": 1, "scale_depth": 1, "dim_model_base": 1})
}

// minicpmConfig: source is modeling_minicpm.py of MiniCPM-2B and MiniCPM4.1.
func minicpmConfig(f *fields, c *Config) plan {
	delete(f.members, "head_dim") // the class reads none
	llamaSizes(f, c, 0, 2048)
	c.attentionBias(f, false)
	if experts := f.integer(0, 0, maxExperts, "num_experts"); experts > 0 {
		f.fault("num_experts", fmt.Sprint(experts), "0")
	}
	p := granitePlan{}
	if f.err != nil {
		return p
	}
	// Factors are of 32 bits in GGUF files.
	residual := float32(f.number(1, 1e-3, 1e3, "scale_depth") / math.Sqrt(float64(c.Layers)))
	logits := float32(c.Hidden) / float32(f.integer(1, 1, maxWidth, "dim_model_base"))
	p.scaleResidual(c, f.number(float64(residual), 1e-3, 1e3, minicpmResidual), f.number(1, 1e-3, 1e6, "scale_emb"))
	p.logitsScaling = float32(f.number(float64(logits), 1e-3, 1e6, minicpmLogits))
	c.minicpmSparse(f)
	return p
}

// minicpmSparse limits sequences of a model that chooses the keys of each query from dense_len tokens on: no op does.
func (c *Config) minicpmSparse(f *fields) {
	if !f.has("sparse_config") {
		return
	}
	s := f.object("sparse_config")
	c.shorten(s.integer(8192, 2, maxPositions, "dense_len")-1, "from sparse_config.dense_len tokens on it chooses keys, which is not run")
	f.adopt(s)
}

// minicpmGGUF sets what llama.cpp takes for keys that old files lack.
func minicpmGGUF(f *fields) {
	layers, hidden := f.size(maxLayers, "num_hidden_layers"), f.size(maxWidth, "hidden_size")
	if f.err != nil {
		return
	}
	f.defaults(map[string]any{
		"scale_emb": 12, minicpmResidual: float32(1.4 / math.Sqrt(float64(layers))), minicpmLogits: float32(hidden) / 256,
	})
}
