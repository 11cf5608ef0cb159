package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/model"
)

// gptj is GPT-J. GPTJModel is not read: the output layer has a bias.
var gptj = family{
	class: "GPTJForCausalLM", kind: "gptj",
	config: gptjConfig,

	models:   "GPT-J",
	features: "parallel attention and MLP, part of a head rotated in pairs (2i, 2i+1), bias of the head",
}

// gptjPlan: attention and MLP read the same norm and both add to the
// residual: seven ops per layer. Source: transformers, modeling_gptj.py.
type gptjPlan struct {
	rotary int  // rotated part of a head
	fused  bool // q, k and v are one tensor, as CodeGen has them
}

func gptjConfig(f *fields, c *Config) plan {
	c.Hidden = f.size(maxWidth, "n_embd", "hidden_size")
	c.Layers = f.size(maxLayers, "n_layer", "num_hidden_layers")
	c.plainHeads(f, "n_head", "num_attention_heads")
	c.Intermediate = f.integer(4*c.Hidden, 1, 4*maxWidth, "n_inner")
	c.MaxPositions = f.integer(2048, 1, maxPositions, "n_positions", "max_position_embeddings")
	c.Eps = float32(f.number(1e-5, 1e-12, 0.1, "layer_norm_epsilon"))
	c.activation(f, "gelu_new", "activation_function")
	c.TieEmbeddings = f.flag(false, "tie_word_embeddings")
	rotary := f.integer(64, 2, maxHeadDim, "rotary_dim")
	if f.err == nil && (rotary > c.HeadDim || rotary%2 != 0) {
		f.fault("rotary_dim", fmt.Sprint(rotary), fmt.Sprintf("an even number of %d at most, the size of a head", c.HeadDim))
	}
	return gptjPlan{rotary: rotary}
}

func (p gptjPlan) build(b *builder) {
	c := b.cfg
	b.findPrefix("wte.weight", "transformer.", "")
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := b.slot("normed", model.SlotOperand, c.Hidden)
	qkv := b.slot("qkv", model.SlotF32, 3*c.Hidden)
	attended := b.slot("attended", model.SlotOperand, c.Hidden)
	mid := b.slot("mid", model.SlotOperand, c.Intermediate)
	invFreq, _ := Rope{Type: "default", Theta: 10000}.Table(p.rotary)

	b.layer = model.None
	table := b.tokenTable("wte.weight", c.Hidden)
	b.embed("embed", x, table, model.None, 0)
	for i := range c.Layers {
		b.layer = i
		at := fmt.Sprintf("h.%d.", i)
		b.layerNorm("norm", at+"ln_1", x, normed)
		parts := b.codeGenQKV
		if !p.fused {
			parts = b.qkvParts
		}
		b.linear("attn.qkv", normed, qkv, model.ActNone, parts(at+"attn.")...)
		b.attention(qkv, attended, func(rope, _ *model.Op) {
			rope.RotaryDim, rope.InvFreq, rope.RotaryInterleaved = p.rotary, invFreq, true
		})
		b.selectInLast(&x, &attended, &normed)
		b.addLinear("attn.out", attended, x, b.part(at+"attn.out_proj", false, c.Hidden, c.Hidden))
		b.linear("mlp.in", normed, mid, c.Activation, b.part(at+"mlp.fc_in", true, c.Intermediate, c.Hidden))
		b.addLinear("mlp.out", mid, x, b.part(at+"mlp.fc_out", true, c.Hidden, c.Intermediate))
	}
	b.layer = model.None
	b.layerNorm("final.norm", "ln_f", x, normed)
	b.logits(normed, table, true)
}
