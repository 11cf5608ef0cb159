package family

import (
	"cmp"

	"github.com/millrace/millrace/compute/model"
)

// deltaNet is the mixer of Qwen3-Next, Qwen3.5 and OLMo Hybrid: a convolution over q, k and v, then the gated delta rule
// (arXiv:2412.06464).
type deltaNet struct {
	keyHeads, heads int
	keys, values    int // of a head
	kernel          int
	tiled           bool // heads of values are in tiles, see tiledRows
	fused           bool // in_proj_qkvz and in_proj_ba have what belongs to a key head together
	each            bool // projections are tensors of their own
	whole           bool // all projections are one tensor: q, k, v, z, b, a
	rateScale       float32
	eps             float32 // of the norm of what is read; 0: that of the other norms
}

func readDeltaNet(f *fields) *deltaNet {
	d := &deltaNet{
		keyHeads: f.integer(16, 1, maxHeads, "linear_num_key_heads"), heads: f.integer(32, 1, maxHeads, "linear_num_value_heads"),
		keys: f.integer(128, 1, maxHeadDim, "linear_key_head_dim"), values: f.integer(128, 1, maxHeadDim, "linear_value_head_dim"),
		kernel: f.integer(4, 2, maxKernel, "linear_conv_kernel_dim"),
	}
	f.divides("linear_num_value_heads", d.heads, "linear_num_key_heads", d.keyHeads)
	return d
}

func (d *deltaNet) open(b *builder) func(at string, in int) (out int, back model.Part) {
	keyHeads := d.keyHeads
	if d.tiled {
		keyHeads = d.heads
	}
	keys, values := keyHeads*d.keys, d.heads*d.values
	qkv := b.slot("delta.qkv", model.SlotF32, 2*keys+values)
	mixed := b.slot("delta.mixed", model.SlotF32, 2*keys+values)
	gates := b.slot("delta.gates", model.SlotF32, values+2*d.heads)
	read := b.slot("delta.read", model.SlotF32, values)
	gated := b.slot("delta.gated", model.SlotOperand, values)
	norm, back := "norm", "out_proj"
	if d.whole {
		norm = "out_norm"
	}
	if d.each {
		norm, back = "o_norm", "o_proj"
	}
	return func(at string, in int) (int, model.Part) {
		at += "linear_attn."
		inputs, beside := d.parts(b, at)
		b.linear("delta.qkv", in, qkv, model.ActNone, inputs...)
		b.linear("delta.gates", in, gates, model.ActNone, beside...)
		b.conv("delta.conv", at+"conv1d", qkv, mixed, 2*keys+values, d.kernel, false).SiLU = true
		b.recur("delta.recur", mixed, read, model.Recur{
			Rule: model.RecurDelta, Heads: d.heads, KeyHeads: keyHeads, Keys: d.keys, Values: d.values,
			Q: 0, K: keys, V: 2 * keys, Gates: gates, Decay: values + d.heads, Rates: gates, Rate: values,
			ALog: b.tensor(at+"A_log", d.heads), DtBias: b.tensor(at+"dt_bias", d.heads), Skip: model.None, RateScale: d.rateScale,
		})
		b.gate("delta.gate", read, gated, model.Gate{
			Gates: gates, Group: d.values, Weight: b.tensor(at+norm+".weight", d.values), Eps: cmp.Or(d.eps, b.cfg.Eps),
		})
		return gated, b.part(at+back, false, b.cfg.Hidden, values)
	}
}

// parts are the projections q, k and v, and those beside them: the gate z, the rate b and the decay a.
func (d *deltaNet) parts(b *builder, at string) (qkv, gates []model.Part) {
	keys, values, in := d.keyHeads*d.keys, d.heads*d.values, b.cfg.Hidden
	if d.each {
		return []model.Part{b.part(at+"q_proj", false, keys, in), b.part(at+"k_proj", false, keys, in),
				b.part(at+"v_proj", false, values, in)},
			[]model.Part{b.part(at+"g_proj", false, values, in), b.part(at+"b_proj", false, d.heads, in),
				b.part(at+"a_proj", false, d.heads, in)}
	}
	if d.whole {
		all := 2*keys + 2*values + 2*d.heads
		rows := func(offset, n int) model.Part { return b.rowsOf(at+"in_proj", all, in, offset, n, n, n) }
		return []model.Part{rows(0, 2*keys+values)}, []model.Part{rows(2*keys+values, values), rows(2*keys+2*values, 2*d.heads)}
	}
	each := d.heads / d.keyHeads // heads that share a key
	ba := func(offset int) model.Part {
		return b.rowsOf(at+"in_proj_ba", 2*d.heads, in, offset, d.heads, each, 2*each)
	}
	_, apart := b.find(b.name(at + "in_proj_qkv.weight"))
	if !d.fused || apart { // GGUF files have only b and a together
		gates = []model.Part{b.part(at+"in_proj_z", false, values, in)}
		if d.fused {
			gates = append(gates, ba(0), ba(each))
		} else {
			gates = append(gates, b.part(at+"in_proj_b", false, d.heads, in), b.part(at+"in_proj_a", false, d.heads, in))
		}
		all := 2*keys + values
		if !d.tiled {
			return []model.Part{b.part(at+"in_proj_qkv", false, all, in)}, gates
		}
		again := func(offset int) model.Part { // for each tile
			return b.rowsOf(at+"in_proj_qkv", all, in, offset, each*keys, keys, 0)
		}
		return []model.Part{again(0), again(keys), b.rowsOf(at+"in_proj_qkv", all, in, 2*keys, values, values, values)}, gates
	}
	stride := 2*d.keys + 2*each*d.values
	qkvz := func(offset, block int) model.Part {
		return b.rowsOf(at+"in_proj_qkvz", d.keyHeads*stride, in, offset, d.keyHeads*block, block, stride)
	}
	return []model.Part{qkvz(0, d.keys), qkvz(d.keys, d.keys), qkvz(2*d.keys, each*d.values)},
		[]model.Part{qkvz(2*d.keys+each*d.values, each*d.values), ba(0), ba(each)}
}
