package family

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/compute/model"
)

// yoco is YOCO. transformers has no class for it, so the names of the class and of its tensors are those of the published code
// (microsoft/unilm, YOCO/yoco/models/decoder/yoco.py). config.json has the same keys as params.json there.
var yoco = family{
	class: "YOCO", kind: "yoco",
	config: yocoConfig,

	models:   "YOCO, in the form of its published code",
	features: "a self-decoder with `sliding_window`, and a cross-decoder whose layers all have one layer of keys and values; rotary embedding of pairs (2i, 2i+1), scaled embedding",
}

// yocoPlan: the first half of the layers sees a window, and the second half the keys and values that are made once, of what the first half
// gives. Eight ops per layer, and three that make these keys and values. Source: Sun et al. 2024, arXiv:2405.05254, section 2.
type yocoPlan struct {
	heads, kvHeads, headDim int // of the cross-decoder; those of Config are of the self-decoder
}

func yocoConfig(f *fields, c *Config) (p plan) {
	c.Hidden = f.size(maxWidth, "dim")
	c.Layers = f.size(maxLayers, "n_layers")
	c.Intermediate = f.size(maxWidth, "hidden_dim")
	c.Heads = f.size(maxHeads, "n_self_heads")
	c.KVHeads = c.Heads
	heads := f.size(maxHeads, "n_attn_heads")
	kvHeads := f.integer(heads, 1, maxHeads, "n_attn_kv_heads")
	c.MaxPositions = f.size(maxPositions, "max_seq_len")
	c.Rope = Rope{Type: "default", Theta: f.number(10000, minTheta, maxTheta, "rope_theta")}
	c.Eps = float32(f.number(1e-5, 1e-12, 0.1, "norm_eps"))
	c.TieEmbeddings = f.flag(false, "share_input_output_embed")
	c.Activation = model.ActSiLU
	if f.err == nil && !f.has("sliding_window") {
		f.fault("sliding_window", "none, for gated retention", "a window of the self-decoder")
	}
	window := f.size(maxPositions, "sliding_window")
	if f.err == nil && c.Layers%2 != 0 {
		f.fault("n_layers", fmt.Sprint(c.Layers), "an even number: two halves")
	}
	f.divides("n_attn_heads", heads, "n_attn_kv_heads", max(kvHeads, 1))
	for _, n := range []struct {
		name  string
		heads int
	}{{"n_self_heads", c.Heads}, {"n_attn_heads", heads}} {
		if f.err == nil && (c.Hidden%(2*n.heads) != 0 || c.Hidden/n.heads > maxHeadDim) {
			f.fault("dim", fmt.Sprint(c.Hidden), fmt.Sprintf("an even multiple of %s, %d, of at most %d for each", n.name, n.heads, maxHeadDim))
		}
	}
	if f.err != nil {
		return nil
	}
	c.HeadDim = c.Hidden / c.Heads
	c.Windows = make([]int, c.Layers)
	for i := range c.Layers / 2 {
		c.Windows[i] = window
	}
	return yocoPlan{heads, kvHeads, c.Hidden / heads}
}

func (p yocoPlan) build(b *builder) {
	c := b.cfg
	b.findPrefix("embed_tokens.weight", "", "model.")
	b.head = b.prefix + "output_projection.weight"
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := b.slot("normed", model.SlotOperand, c.Hidden)
	qkv := b.slot("qkv", model.SlotF32, 3*c.Hidden)
	kv := b.slot("kv", model.SlotF32, 2*p.kvHeads*p.headDim)
	q := b.slot("q", model.SlotF32, c.Hidden)
	attended := b.slot("attended", model.SlotOperand, c.Hidden)
	mid := b.slot("mid", model.SlotOperand, c.Intermediate)
	own, shared := c.Rope.toTheta(c.HeadDim), c.Rope.toTheta(p.headDim)

	b.layer = model.None
	table := b.tokenTable("embed_tokens.weight", c.Hidden)
	b.scaledEmbed("embed", x, table, float32(math.Sqrt(float64(c.Hidden))))
	first := c.Layers / 2 // layer of the cross-decoder
	for i := range c.Layers {
		b.layer = i
		at := fmt.Sprintf("self_decoder.layers.%d.", i)
		if i >= first {
			at = fmt.Sprintf("cross_decoder.layers.%d.", i-first)
		}
		if i == first {
			p.store(b, x, normed, kv, shared)
		}
		b.rmsNorm("attn.norm", at+"mixer_layer_norm", x, normed)
		if i < first {
			b.linear("attn.qkv", normed, qkv, model.ActNone, b.qkvParts(at+"mixer.")...)
			b.attention(qkv, attended, func(rope, att *model.Op) {
				turnPairs(rope, own)
				att.Window = c.Windows[i]
			})
		} else {
			b.linear("attn.q", normed, q, model.ActNone, b.part(at+"mixer.q_proj", false, c.Hidden, c.Hidden))
			b.attention(q, attended, func(rope, att *model.Op) {
				for _, op := range []*model.Op{rope, att} {
					op.Heads, op.KVHeads, op.HeadDim = p.heads, p.kvHeads, p.headDim
					op.Stored, op.KVLayer = true, first
				}
				turnPairs(rope, shared)
				att.Scale = inverseSqrt(p.headDim)
			})
		}
		b.selectInLast(&x, &attended)
		b.addLinear("attn.out", attended, x, b.part(at+"mixer.out_proj", false, c.Hidden, c.Hidden))
		b.rmsNorm("mlp.norm", at+"final_layer_norm", x, normed)
		b.gatedLinear("mlp.gate_up", normed, mid, c.Activation, b.part(at+"ffn.fc1", false, c.Intermediate, c.Hidden), b.part(at+"ffn.gate", false, c.Intermediate, c.Hidden))
		b.addLinear("mlp.down", mid, x, b.part(at+"ffn.fc2", false, c.Hidden, c.Intermediate))
	}
	b.layer = model.None
	b.rmsNorm("final.norm", "layer_norm", x, normed)
	b.logits(normed, table, false)
}

// store appends what makes and keeps the keys and values of all layers of the cross-decoder.
func (p yocoPlan) store(b *builder, x, normed, kv int, invFreq []float32) {
	const at = "cross_decoder."
	rows := p.kvHeads * p.headDim
	b.rmsNorm("kv.norm", at+"kv_layer_norm", x, normed)
	b.linear("kv", normed, kv, model.ActNone, b.part(at+"k_proj", false, rows, b.cfg.Hidden), b.part(at+"v_proj", false, rows, b.cfg.Hidden))
	store := newOp(model.OpRopeStore, "kv.rope_store", kv, kv)
	store.KVHeads, store.HeadDim = p.kvHeads, p.headDim
	turnPairs(&store, invFreq)
	b.op(store)
}

// turnPairs makes an op turn the pairs (2i, 2i+1) of whole heads.
func turnPairs(op *model.Op, invFreq []float32) {
	op.RotaryDim, op.RotaryInterleaved, op.InvFreq, op.RotaryScale = 2*len(invFreq), true, invFreq, 1
}

// toTheta returns inv_freq [dim/2] from 1 to 1 / theta, both included: where Table divides by the number of pairs, this divides by one less.
func (r Rope) toTheta(dim int) []float32 {
	invFreq := make([]float32, dim/2)
	for i := range invFreq {
		invFreq[i] = 1 / r.period(i, max(dim-2, 1))
	}
	return invFreq
}
