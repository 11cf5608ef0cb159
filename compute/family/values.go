package family

import "github.com/millrace/millrace/compute/model"

// valueShapes says that values have another size than keys. Layers with a window have twice the KV heads, and a score of a key without a
// value for each head.
type valueShapes struct {
	dim   int     // of a value
	scale float32 // of values
}

// attention is llamaPlan.attention of such layers. The factor of values is that of attention's result.
func (v *valueShapes) attention(b *builder, rotary int, tables func(layer int, local bool) ([]float32, float32)) func(at string,
	in int) (out int) {
	c := b.cfg
	qkv := newSlots("qkv", model.SlotF32)
	raw := b.slot("attended.raw", model.SlotF32, c.Heads*v.dim)
	return func(at string, in int) int {
		window, heads := c.Windows[b.layer], c.KVHeads
		if window > 0 {
			heads *= 2
		}
		queries, keys, values := c.Heads*c.HeadDim, heads*c.HeadDim, heads*v.dim
		slot := qkv.of(b, queries+keys+values)
		b.linear("attn.qkv", in, slot, model.ActNone, b.projections(at, queries, keys, values)...)
		b.attention(slot, raw, func(rope, att *model.Op) {
			for _, op := range []*model.Op{rope, att} {
				op.KVHeads, op.ValueDim = heads, v.dim
			}
			att.Window = window
			if window > 0 {
				att.NullScores = b.tensor(at+"sinks", c.Heads)
			}
			rope.RotaryDim = rotary
			rope.InvFreq, rope.RotaryScale = tables(b.layer, window > 0)
		})
		b.bareNorm(model.NormNone, "attn.value_scale", raw, raw)
		b.last().NormScale = v.scale
		return raw
	}
}
