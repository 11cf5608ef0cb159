package family

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// bloom is BLOOM and BLOOMZ.
var bloom = family{
	class: "BloomForCausalLM", bare: "BloomModel", kind: "bloom",
	config: bloomConfig,
	gguf: &ggufForm{
		name: "bloom", decoder: "transformer.", layers: "h.",
		names: map[string]string{"token_embd": "word_embeddings", "token_embd_norm": "word_embeddings_layernorm", "output_norm": "ln_f"},
		parts: map[string]string{
			"attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense", "ffn_up": "mlp.dense_h_to_4h",
			"ffn_down": "mlp.dense_4h_to_h",
		},
		keys: map[string]string{"attention.layer_norm_epsilon": "layer_norm_epsilon"},
	},

	models:   "BLOOM, BLOOMZ",
	features: "ALiBi for any number of heads, norm after the embedding, fused q/k/v, `apply_residual_connection_post_layernorm`",
}

// bloomPlan: ALiBi, a norm after the embedding and q, k, v fused per head.
// Eight ops per layer. Source: transformers, modeling_bloom.py.
type bloomPlan struct {
	normedResidual bool // the residual is taken after the norm
}

func bloomConfig(f *fields, c *Config) plan {
	c.Hidden = f.size(maxWidth, "n_embed", "hidden_size")
	c.Layers = f.size(maxLayers, "n_layer", "num_hidden_layers")
	c.plainHeads(f, "n_head", "num_attention_heads")
	c.Intermediate = 4 * c.Hidden
	// ALiBi has no limit of its own; the models were trained at 2048.
	c.MaxPositions = f.integer(2048, 1, maxPositions, "seq_length", "max_position_embeddings")
	c.Eps = float32(f.number(1e-5, 1e-12, 0.1, "layer_norm_epsilon"))
	c.Activation, c.QKVBias = model.ActGELUTanh, true
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	return bloomPlan{f.flag(false, "apply_residual_connection_post_layernorm")}
}

func (p bloomPlan) build(b *builder) {
	c := b.cfg
	b.findPrefix("word_embeddings.weight", "transformer.", "")
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := x // normedResidual: the residual is the norm's output, in place
	if !p.normedResidual {
		normed = b.slot("normed", model.SlotOperand, c.Hidden)
	}
	qkv := b.slot("qkv", model.SlotF32, 3*c.Hidden)
	attended := b.slot("attended", model.SlotOperand, c.Hidden)
	mid := b.slot("mid", model.SlotOperand, c.Intermediate)
	slopes := ALiBiSlopes(c.Heads)
	names := blockNames{fused: "self_attention.query_key_value", inOrder: weights.IsGGUF(c.File)}

	b.layer = model.None
	table := b.tokenTable("word_embeddings.weight", c.Hidden)
	b.embed("embed", x, table, model.None, 0)
	b.layerNorm("embed.norm", "word_embeddings_layernorm", x, x)
	for i := range c.Layers {
		b.layer = i
		at := fmt.Sprintf("h.%d.", i)
		b.layerNorm("attn.norm", at+"input_layernorm", x, normed)
		b.linear("attn.qkv", normed, qkv, model.ActNone, names.qkv(b, at)...)
		b.attention(qkv, attended, func(_, att *model.Op) { att.ALiBiSlopes = slopes })
		b.selectInLast(&x, &attended)
		if p.normedResidual {
			normed = x
		}
		b.addLinear("attn.out", attended, x, b.part(at+"self_attention.dense", true, c.Hidden, c.Hidden))
		b.layerNorm("mlp.norm", at+"post_attention_layernorm", x, normed)
		b.linear("mlp.in", normed, mid, c.Activation, b.part(at+"mlp.dense_h_to_4h", true, c.Intermediate, c.Hidden))
		b.addLinear("mlp.out", mid, x, b.part(at+"mlp.dense_4h_to_h", true, c.Hidden, c.Intermediate))
	}
	b.layer = model.None
	last := b.slot("last", model.SlotOperand, c.Hidden)
	b.layerNorm("final.norm", "ln_f", x, last)
	b.logits(last, table, false)
}

// fusedQKV takes q, k and v out of rows that lie as [KV head][its q heads|k|v][head_dim].
func (b *builder) fusedQKV(name string, bias bool) []model.Part {
	c := b.cfg
	whole := b.part(name, bias, (c.Heads+2*c.KVHeads)*c.HeadDim, c.Hidden)
	queries := c.Heads / c.KVHeads * c.HeadDim
	parts := []model.Part{whole, whole, whole}
	for i, offset := range []int{0, queries, queries + c.HeadDim} {
		parts[i].Offset, parts[i].Block, parts[i].Stride = offset, c.HeadDim, queries+2*c.HeadDim
		parts[i].Rows = c.KVHeads * c.HeadDim
	}
	parts[0].Block, parts[0].Rows = queries, c.Heads*c.HeadDim
	return parts
}

// ALiBiSlopes returns one slope per head. A head count that is no power of two
// takes the slopes of the power below it, then every other one of the power
// above. Press et al. 2022; float32 as in transformers' build_alibi_tensor.
func ALiBiSlopes(heads int) []float32 {
	below := 1
	for 2*below <= heads {
		below *= 2
	}
	base := func(n int) float64 { return float64(float32(math.Exp2(-math.Exp2(3 - math.Log2(float64(n)))))) }
	slopes := make([]float32, heads)
	for i := range slopes {
		if i < below {
			slopes[i] = float32(math.Pow(base(below), float64(i+1)))
		} else {
			slopes[i] = float32(math.Pow(base(2*below), float64(2*(i-below)+1)))
		}
	}
	return slopes
}
