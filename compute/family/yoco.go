package family

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// yoco is YOCO. transformers has no class for it, so the names of the class and of its tensors are those of the published code
// (microsoft/unilm, YOCO/yoco/models/decoder/yoco.py). config.json has the same keys as params.json there.
var yoco = family{
	class: "YOCO", kind: "yoco",
	config:  yocoConfig,
	tensors: yocoTensors,

	models:   "YOCO, in the form of its published code",
	features: "a self-decoder with `sliding_window`, or else with gated retention, and a cross-decoder whose layers all have one layer of keys and values; rotary embedding of pairs (2i, 2i+1), scaled embedding",
}

// yocoPlan: the first half of the layers sees a window, or keeps a state, and the second half the keys and values that are made once, of
// what the first half gives. Eight ops per layer, ten with a state, and three that make these keys and values. Source: Sun et al. 2024,
// arXiv:2405.05254, sections 2 and 3.
type yocoPlan struct {
	heads, kvHeads, headDim int  // of the cross-decoder; those of Config are of the self-decoder
	retains                 bool // layers of the self-decoder keep a state
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
	window, retains := 0, !f.has("sliding_window")
	if !retains {
		window = f.size(maxPositions, "sliding_window")
	}
	if f.err == nil && c.Layers%2 != 0 {
		f.fault("n_layers", fmt.Sprint(c.Layers), "an even number: two halves")
	}
	f.divides("n_attn_heads", heads, "n_attn_kv_heads", max(kvHeads, 1))
	for _, n := range []struct {
		name  string
		heads int
	}{{"n_self_heads", c.Heads}, {"n_attn_heads", heads}} {
		if f.err == nil && (c.Hidden%(2*n.heads) != 0 || c.Hidden/n.heads > maxHeadDim) {
			f.fault("dim", fmt.Sprint(c.Hidden), fmt.Sprintf("an even multiple of %s, %d, of at most %d for each", n.name, n.heads,
				maxHeadDim))
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
	return yocoPlan{heads, kvHeads, c.Hidden / heads, retains}
}

func (p yocoPlan) build(b *builder) {
	c := b.cfg
	b.findPrefix("embed_tokens.weight", "", "model.")
	b.head = b.prefix + "output_projection.weight"
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := b.slot("normed", model.SlotOperand, c.Hidden)
	mix := p.mixer(b)
	kv := b.slot("kv", model.SlotF32, 2*p.kvHeads*p.headDim)
	q := b.slot("q", model.SlotF32, c.Hidden)
	attended := b.slot("attended", model.SlotOperand, c.Hidden)
	mid := b.slot("mid", model.SlotOperand, c.Intermediate)
	shared := c.Rope.toTheta(p.headDim)

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
			mix(at+"mixer.", normed, attended)
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
		b.gatedLinear("mlp.gate_up", normed, mid, c.Activation, b.part(at+"ffn.fc1", false, c.Intermediate, c.Hidden),
			b.part(at+"ffn.gate", false, c.Intermediate, c.Hidden))
		b.addLinear("mlp.down", mid, x, b.part(at+"ffn.fc2", false, c.Hidden, c.Intermediate))
	}
	b.layer = model.None
	b.rmsNorm("final.norm", "layer_norm", x, normed)
	b.logits(normed, table, false)
}

// mixer returns what appends the attention of a layer of the self-decoder, or its retention.
func (p yocoPlan) mixer(b *builder) func(at string, in, out int) {
	c := b.cfg
	width, turns := c.Hidden, c.Rope.toTheta(c.HeadDim)
	qkv := b.slot("qkv", model.SlotF32, 3*width)
	if !p.retains {
		return func(at string, in, out int) {
			b.linear("attn.qkv", in, qkv, model.ActNone, b.qkvParts(at)...)
			b.attention(qkv, out, func(rope, att *model.Op) {
				turnPairs(rope, turns)
				att.Window = c.Windows[b.layer]
			})
		}
	}
	gates, read := b.slot("retention.gates", model.SlotF32, width+c.Heads), b.slot("retention.read", model.SlotF32, width)
	return func(at string, in, out int) {
		b.linear("retention.qkv", in, qkv, model.ActNone, b.qkvParts(at)...)
		b.linear("retention.gates", in, gates, model.ActNone, b.part(at+"g_proj", false, width, width),
			b.part(at+"gt_proj", false, c.Heads, width))
		turn := newOp(model.OpRopeStore, "retention.rope", qkv, qkv) // of q and k, which nothing stores
		turn.Heads, turn.KVHeads, turn.HeadDim, turn.Stored, turn.KVLayer = 2*c.Heads, 1, c.HeadDim, true, b.layer
		turnPairs(&turn, turns)
		b.op(turn)
		b.recur("retention.recur", qkv, read, model.Recur{
			Rule: model.RecurRetain, Heads: c.Heads, KeyHeads: c.Heads, Keys: c.HeadDim, Values: c.HeadDim, Q: 0, K: width, V: 2 * width,
			Gates: gates, Decay: width, Rate: model.None, ALog: b.absolute(yocoRoot, c.Heads), DtBias: b.absolute(yocoZeros, c.Heads),
			Skip: model.None,
		})
		// keys are not divided by the root of a head's size: the norm does not see it but for eps
		b.gate("retention.gate", read, out, model.Gate{
			Gates: gates, Activation: model.GateSiLU, Group: c.HeadDim, Weight: b.absolute(yocoOnes, c.HeadDim),
			Eps: c.Eps * float32(c.HeadDim),
		})
	}
}

// Names of tensors that yocoTensors adds.
const (
	yocoZeros = "retention.zeros"
	yocoOnes  = "retention.ones"
	yocoRoot  = "retention.log_root"
)

// yocoTensors prepares gated retention. sigmoid(x)^(1/16) is e^(-softplus(-x) / 16).
func yocoTensors(c *Config, w *weights.Checkpoint) error {
	if !c.plan.(yocoPlan).retains {
		return nil
	}
	const root = 16
	heads := []int64{int64(c.Heads)}
	return errors.Join(
		w.Add(yocoZeros, heads, func(int64) float32 { return 0 }),
		w.Add(yocoOnes, []int64{int64(c.HeadDim)}, func(int64) float32 { return 1 }),
		w.Add(yocoRoot, heads, func(int64) float32 { return -float32(math.Log(root)) }),
		w.Replace(named(w, func(name string) bool { return strings.HasSuffix(name, ".gt_proj.weight") }),
			func(x float32) float32 { return -x }),
	)
}

// store appends what makes and keeps the keys and values of all layers of the cross-decoder.
func (p yocoPlan) store(b *builder, x, normed, kv int, invFreq []float32) {
	const at = "cross_decoder."
	rows := p.kvHeads * p.headDim
	b.rmsNorm("kv.norm", at+"kv_layer_norm", x, normed)
	b.linear("kv", normed, kv, model.ActNone, b.part(at+"k_proj", false, rows, b.cfg.Hidden),
		b.part(at+"v_proj", false, rows, b.cfg.Hidden))
	store := newOp(model.OpRopeStore, "kv.rope_store", kv, kv)
	store.KVHeads, store.HeadDim = p.kvHeads, p.headDim
	turnPairs(&store, invFreq)
	b.op(store)
}

// turnPairs makes an op turn the pairs (2i, 2i+1) of whole heads.
func turnPairs(op *model.Op, invFreq []float32) {
	op.RotaryDim, op.RotaryInterleaved, op.InvFreq, op.RotaryScale = 2*len(invFreq), true, invFreq, 1
}

// toTheta returns inv_freq [dim/2] from 1 to 1 / theta, both included: where Table divides by the number of pairs, this divides by one
// less.
func (r Rope) toTheta(dim int) []float32 {
	invFreq := make([]float32, dim/2)
	for i := range invFreq {
		invFreq[i] = 1 / r.period(i, max(dim-2, 1))
	}
	return invFreq
}
