package family

import (
	"math"

	"github.com/millrace/millrace/compute/weights"
)

// xglm is XGLM.
var xglm = family{
	class: "XGLMForCausalLM", bare: "XGLMModel", kind: "xglm",
	spell:   xglmSpell,
	config:  xglmConfig,
	tensors: xglmPositions,

	models:   "XGLM 564M to 7.5B",
	features: "positions by sines and cosines, scaled embedding (`scale_embedding`), layer norms, biases",
}

// xglmSpell sets the defaults of XGLMConfig.
func xglmSpell(f *fields) {
	f.prefer(map[string]string{
		"d_model": "hidden_size", "ffn_dim": "intermediate_size", "num_layers": "num_hidden_layers",
		"attention_heads": "num_attention_heads", "activation_function": "hidden_act",
	})
	f.sizes(256008, 1024, 4096, 24, 16)
	f.missing(map[string]any{"pad_token_id": 1})
}

// xglmPlan knows the row of the position table that is zero, -1: none is.
type xglmPlan struct {
	blockPlan
	padding int
}

// xglmConfig: source is transformers, modeling_xglm.py.
func xglmConfig(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "gelu")
	c.Eps = 1e-5 // torch's LayerNorm
	c.MaxPositions = f.integer(2048, 1, maxPositions, "max_position_embeddings")
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	c.QKVBias, c.OutBias, c.MLPBias = true, true, true
	p := xglmPlan{
		blockPlan: blockPlan{
			names: blockNames{
				decoder: "model.", table: "embed_tokens", positions: "embed_positions", norm: "layer_norm",
				layers: "layers.", attnNorm: "self_attn_layer_norm", attention: "self_attn.", out: "self_attn.out_proj",
				mlpNorm: "final_layer_norm", up: "fc1", down: "fc2",
			},
			positionOffset: optPositionOffset,
		},
		padding: f.integer(-1, -1, maxVocab, "pad_token_id"),
	}
	if f.flag(true, "scale_embedding") {
		p.embedScale = float32(math.Sqrt(float64(c.Hidden)))
	}
	return p
}

// xglmPositions adds the table of positions: half of a row are sines, the other half cosines.
func xglmPositions(c *Config, w *weights.Checkpoint) error {
	prefix := ""
	if _, ok := w.Describe("model.embed_tokens.weight"); ok {
		prefix = "model."
	}
	width, half := int64(c.Hidden), int64(c.Hidden/2)
	return w.Add(prefix+"embed_positions.weight", []int64{int64(c.MaxPositions + optPositionOffset), width}, func(i int64) float32 {
		row, column := i/width, i%width
		if row == int64(c.plan.(xglmPlan).padding) || column == 2*half {
			return 0
		}
		angle := float64(row) * math.Exp(-math.Log(10000)/float64(half-1)*float64(column%half))
		if column < half {
			return float32(math.Sin(angle))
		}
		return float32(math.Cos(angle))
	})
}
