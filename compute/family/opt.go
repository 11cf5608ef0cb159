package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/model"
)

// optPositionOffset is where OPT's position table starts: fairseq kept two
// rows for padding.
const optPositionOffset = 2

// opt is OPT.
var opt = family{
	class: "OPTForCausalLM", bare: "OPTModel", kind: "opt",
	config: optConfig,

	models:   "OPT",
	features: "learned positions, norms before or after (`do_layer_norm_before`), narrower token table (`word_embed_proj_dim`), with or without biases",
}

// optPlan: learned positions, norms before (most sizes) or after (350m) the
// residual sums, and a token table that may be narrower than the decoder.
// Eight ops per layer. Source: transformers, modeling_opt.py.
type optPlan struct {
	embedWidth int  // width of the token table
	postNorm   bool // norms after the residual sums
	finalNorm  bool // norm before the logits
}

func optConfig(f *fields, c *Config) plan {
	var p optPlan
	c.Hidden = f.size(maxWidth, "hidden_size")
	c.Layers = f.size(maxLayers, "num_hidden_layers")
	c.plainHeads(f, "num_attention_heads")
	c.Intermediate = f.size(maxWidth, "ffn_dim")
	c.MaxPositions = f.integer(2048, 1, maxPositions, "max_position_embeddings")
	p.embedWidth = f.integer(c.Hidden, 1, maxWidth, "word_embed_proj_dim")
	c.Eps = 1e-5 // torch's LayerNorm
	c.activation(f, "relu", "activation_function")
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	p.postNorm = !f.flag(true, "do_layer_norm_before")
	p.finalNorm = !p.postNorm && !f.flag(false, "_remove_final_layer_norm")
	c.QKVBias = f.flag(true, "enable_bias")
	c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
	if !f.flag(true, "layer_norm_elementwise_affine") {
		f.fault("layer_norm_elementwise_affine", "false", "true")
	}
	return p
}

func (p optPlan) build(b *builder) {
	c := b.cfg
	b.findPrefix("embed_tokens.weight", "model.decoder.", "decoder.", "")
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := x // post-norm: the residual itself is normed, in place
	if !p.postNorm {
		normed = b.slot("normed", model.SlotOperand, c.Hidden)
	}
	qkv := b.slot("qkv", model.SlotF32, 3*c.Hidden)
	attended := b.slot("attended", model.SlotOperand, c.Hidden)
	mid := b.slot("mid", model.SlotOperand, c.Intermediate)

	table := p.embed(b, x)
	for i := range c.Layers {
		b.layer = i
		at := fmt.Sprintf("layers.%d.", i)
		norm := func(name, tensor string) { b.layerNorm(name, at+tensor, x, normed) }
		if !p.postNorm {
			norm("attn.norm", "self_attn_layer_norm")
		}
		b.linear("attn.qkv", normed, qkv, model.ActNone, b.qkvParts(at+"self_attn.")...)
		b.attention(qkv, attended, func(_, _ *model.Op) {})
		b.selectInLast(&x, &attended)
		if p.postNorm {
			normed = x
		}
		b.addLinear("attn.out", attended, x, b.part(at+"self_attn.out_proj", c.OutBias, c.Hidden, c.Hidden))
		if p.postNorm {
			norm("attn.norm", "self_attn_layer_norm")
		} else {
			norm("mlp.norm", "final_layer_norm")
		}
		b.linear("mlp.in", normed, mid, c.Activation, b.part(at+"fc1", c.MLPBias, c.Intermediate, c.Hidden))
		b.addLinear("mlp.out", mid, x, b.part(at+"fc2", c.MLPBias, c.Hidden, c.Intermediate))
		if p.postNorm {
			norm("mlp.norm", "final_layer_norm")
		}
	}
	b.layer = model.None
	p.logits(b, x, table)
}

// embed writes tokens + positions to x and returns the token table. A
// narrower table is projected; the positions are not.
func (p optPlan) embed(b *builder, x int) int {
	c := b.cfg
	b.layer = model.None
	table := b.tokenTable("embed_tokens.weight", p.embedWidth)
	positions := b.tensor("embed_positions.weight", c.MaxPositions+optPositionOffset, c.Hidden)
	if p.embedWidth == c.Hidden {
		b.embed("embed", x, table, positions, optPositionOffset)
		return table
	}
	narrow := b.slot("embedded", model.SlotOperand, p.embedWidth)
	b.embed("embed", narrow, table, model.None, 0)
	b.embed("embed.positions", x, model.None, positions, optPositionOffset)
	b.addLinear("embed.project", narrow, x, b.part("project_in", false, c.Hidden, p.embedWidth))
	return table
}

// logits appends the ops from the rows to their logits.
func (p optPlan) logits(b *builder, rows, table int) {
	c := b.cfg
	if p.finalNorm {
		normed := b.slot("selected.normed", model.SlotOperand, c.Hidden)
		b.layerNorm("final.norm", "final_layer_norm", rows, normed)
		rows = normed
	}
	if p.embedWidth != c.Hidden {
		narrow := b.slot("selected.projected", model.SlotOperand, p.embedWidth)
		b.linear("final.project", rows, narrow, model.ActNone, b.part("project_out", false, p.embedWidth, c.Hidden))
		rows = narrow
	}
	b.logits(rows, table, false)
}
