package model

import (
	"cmp"
	"math"
	"slices"
)

// Sizes are the element sizes in bytes that a backend keeps values in.
type Sizes struct {
	Weight  int // packed weights of linear ops and tables
	Operand int // slots that feed linear ops
	KV      int // of keys and values that are floats
}

// BF16Sizes are the sizes of a backend that keeps everything but the residual
// stream, QKV and logits in 16 bits.
func BF16Sizes() Sizes { return Sizes{Weight: 2, Operand: 2, KV: 2} }

// Work is a step on one sequence: Rows tokens at positions Past, Past+1, ...;
// Outputs of them are turned into logits.
type Work struct {
	Rows    int `json:"rows"`
	Past    int `json:"past"` // tokens in the KV cache before the step
	Outputs int `json:"outputs"`
}

// Prefill is a whole prompt of n tokens in one step.
func Prefill(n int) Work { return Work{Rows: n, Outputs: 1} }

// Decode is one token after n tokens in the KV cache.
func Decode(n int) Work { return Work{Rows: 1, Past: n, Outputs: 1} }

// Cost is the memory traffic and the arithmetic of an op: every value that it
// needs is read once, every result is written once.
type Cost struct {
	WeightBytes     int64 `json:"weight_bytes"`
	KVBytes         int64 `json:"kv_bytes"` // read and written
	ActivationBytes int64 `json:"activation_bytes"`
	Flops           int64 `json:"flops"` // multiplications and additions; exp counts as one, activations do not
}

// Bytes is the sum of the traffic.
func (c Cost) Bytes() int64 { return c.WeightBytes + c.KVBytes + c.ActivationBytes }

// Plus adds two costs.
func (c Cost) Plus(d Cost) Cost {
	return Cost{
		WeightBytes:     c.WeightBytes + d.WeightBytes,
		KVBytes:         c.KVBytes + d.KVBytes,
		ActivationBytes: c.ActivationBytes + d.ActivationBytes,
		Flops:           c.Flops + d.Flops,
	}
}

// Times is the cost of n equal ops.
func (c Cost) Times(n int) Cost {
	return Cost{c.WeightBytes * int64(n), c.KVBytes * int64(n), c.ActivationBytes * int64(n), c.Flops * int64(n)}
}

// Over is an even share of the cost among n.
func (c Cost) Over(n int) Cost {
	return Cost{c.WeightBytes / int64(n), c.KVBytes / int64(n), c.ActivationBytes / int64(n), c.Flops / int64(n)}
}

// Costs returns the cost of each op of p for a step. Ops after SelectRows run
// on the outputs' rows.
func Costs(p *Program, w Work, s Sizes) []Cost {
	costs := make([]Cost, len(p.Ops))
	rows := w.Rows
	for i := range p.Ops {
		if p.Ops[i].Kind == OpSelectRows {
			rows = w.Outputs
		}
		costs[i] = p.cost(&p.Ops[i], rows, w, s)
	}
	return costs
}

func (p *Program) cost(op *Op, rows int, w Work, s Sizes) Cost {
	switch op.Kind {
	case OpEmbed:
		return p.embedCost(op, rows, s)
	case OpNorm:
		return p.normCost(op, rows, s)
	case OpLinear:
		return p.linearCost(op, rows, s)
	case OpRopeStore:
		return p.ropeStoreCost(op, rows, s)
	case OpAttention:
		return p.attentionCost(op, w, s)
	case OpConv, OpRecur:
		return p.stateCost(op, rows, s)
	case OpGate:
		return p.gateCost(op, rows, s)
	case OpAltUp:
		return p.altUpCost(op, rows, s)
	case OpAllReduce:
		return p.allReduceCost(op, rows, s)
	case OpSelectRows, OpRoute:
		return Cost{ActivationBytes: p.slotBytes(op.In, rows, s) + p.slotBytes(op.Out, rows, s)}
	}
	return Cost{}
}

// slotBytes is the size of the first rows of a slot.
func (p *Program) slotBytes(slot, rows int, s Sizes) int64 {
	size := 4
	if p.Slots[slot].Type == SlotOperand {
		size = s.Operand
	}
	return int64(rows) * int64(p.Slots[slot].Width) * int64(size)
}

func (p *Program) embedCost(op *Op, rows int, s Sizes) Cost {
	c := Cost{ActivationBytes: p.slotBytes(op.Out, rows, s)}
	for _, table := range []int{op.Weight, op.Bias} {
		if table != None {
			c.WeightBytes += int64(rows) * p.Tensors[table].rowBytes(s.Weight)
		}
	}
	if op.Accumulate {
		c.ActivationBytes *= 2
	}
	if op.Accumulate || op.Weight != None && op.Bias != None {
		c.Flops = int64(rows) * int64(p.Slots[op.Out].Width)
	}
	return c
}

// allReduceCost: each rank reads the sums of all.
func (p *Program) allReduceCost(op *Op, rows int, s Sizes) Cost {
	ranks := int64(max(1, p.Ranks))
	c := Cost{ActivationBytes: ranks*p.slotBytes(op.In, rows, s) + p.slotBytes(op.Out, rows, s)}
	c.Flops = (ranks - 1) * int64(rows) * int64(p.Slots[op.Out].Width)
	if op.Accumulate {
		c.ActivationBytes += p.slotBytes(op.Out, rows, s)
		c.Flops += int64(rows) * int64(p.Slots[op.Out].Width)
	}
	return c
}

// normCost: RMS takes a square, a sum and two products per value; LayerNorm a
// mean and a difference more, and the bias.
func (p *Program) normCost(op *Op, rows int, s Sizes) Cost {
	width := int64(p.Slots[op.In].Width)
	moved := p.slotBytes(op.In, rows, s) + p.slotBytes(op.Out, rows, s)
	if op.NormWidth > 0 {
		moved = moved / width * int64(op.NormWidth)
		width = int64(op.NormWidth)
	}
	c := Cost{
		WeightBytes:     width * 4, // norms are kept in float32
		ActivationBytes: moved,
		Flops:           4 * width * int64(rows),
	}
	if op.Norm == NormLayer {
		c.WeightBytes *= 2
		c.Flops = 7 * width * int64(rows)
	}
	if op.Accumulate {
		c.ActivationBytes += p.slotBytes(op.Out, rows, s)
		c.Flops += width * int64(rows)
	}
	return c
}

func (p *Program) linearCost(op *Op, rows int, s Sizes) Cost {
	if op.Routed != RoutedNone {
		return p.expertCost(op, rows, s)
	}
	in := int64(p.Slots[op.In].Width)
	c := Cost{ActivationBytes: p.slotBytes(op.In, rows, s) + p.slotBytes(op.Out, rows, s)}
	if op.Accumulate {
		c.ActivationBytes += p.slotBytes(op.Out, rows, s)
		c.Flops += int64(p.Slots[op.Out].Width) * int64(rows)
	}
	for _, part := range op.Parts {
		c.WeightBytes += p.partBytes(op, part, in, s)
		c.Flops += 2 * int64(part.Rows) * in * int64(rows)
		if part.Bias != None {
			c.WeightBytes += int64(part.Rows) * 4
			c.Flops += int64(part.Rows) * int64(rows)
		}
	}
	return c
}

// partBytes is the size of a part's weights.
func (p *Program) partBytes(op *Op, part Part, in int64, s Sizes) int64 {
	if op.Weights.Type == WeightsBlocks {
		return int64(part.Rows) * p.Tensors[part.Weight].rowBytes(s.Weight)
	}
	return op.Weights.bytes(int64(part.Rows), in, s.Weight)
}

// expertCost: of n experts, rows that choose k each at random read n (1 - (1 - k/n)^rows) on average.
func (p *Program) expertCost(op *Op, rows int, s Sizes) Cost {
	n, k := op.Routing.Experts, op.Routing.TopK
	in := int64(op.PartWidth(p.Slots[op.In].Width))
	c := Cost{ActivationBytes: p.slotBytes(op.In, rows, s) + p.slotBytes(op.Out, rows, s)}
	if op.Accumulate {
		c.ActivationBytes += p.slotBytes(op.Out, rows, s)
	}
	var all, products int64
	for _, part := range op.Parts {
		all += p.partBytes(op, part, in, s)
		products += int64(part.Rows) * in
	}
	read := 1 - math.Pow(1-float64(k)/float64(n), float64(rows))
	c.WeightBytes = int64(read * float64(all))
	c.Flops = 2 * products / int64(n) * int64(k) * int64(rows)
	if op.Routed == RoutedSum {
		c.Flops += 2 * int64(p.Slots[op.Out].Width) * int64(k) * int64(rows)
	}
	return c
}

// ropeStoreCost: q is rotated in place, k and v go to the KV cache. A rotated
// value takes two products and a sum.
func (p *Program) ropeStoreCost(op *Op, rows int, s Sizes) Cost {
	q, k, v := int64(op.Heads*op.HeadDim), int64(op.KVHeads*op.HeadDim), int64(op.KVHeads*op.valueDim())
	heads := op.Heads + op.KVHeads
	c := Cost{KVBytes: int64(rows) * p.tokenBytes(op, s)}
	switch {
	case op.Stored:
		c.KVBytes, k, v, heads = 0, 0, 0, op.Heads
	case op.Latent:
		v = 0
	}
	c.ActivationBytes = (2*q + k + v) * int64(rows) * 4
	c.Flops = 3 * int64(heads*op.RotaryDim) * int64(rows)
	if op.Sinks > 0 { // q is rotated twice
		c.ActivationBytes += q * int64(rows) * 4
		c.Flops += 3 * int64(op.Heads*op.RotaryDim) * int64(rows)
	}
	if op.QNorm != None {
		c.Flops += 4 * (q + k) * int64(rows)
		c.WeightBytes = 2 * int64(op.HeadDim) * 4
	}
	return c
}

// attentionCost: each key that a row sees takes a product with q and one with
// v, and an exponential; each key that any row sees is read once.
func (p *Program) attentionCost(op *Op, w Work, s Sizes) Cost {
	var pairs int64
	for r := range w.Rows {
		if pairs += int64(keysSeen(op, w.Past+r)); op.BothWays {
			pairs += int64(keysSeen(op, w.Rows-1-r)) - 1 // the other side
		}
	}
	keys := int64(w.Rows - 1 + keysSeen(op, w.Past))
	return Cost{
		KVBytes:         keys * p.tokenBytes(op, s),
		ActivationBytes: int64(w.Rows*op.Heads*op.HeadDim)*4 + p.slotBytes(op.Out, w.Rows, s),
		Flops:           pairs * int64(op.Heads) * int64(2*op.HeadDim+2*op.valueDim()+1),
	}
}

// keysSeen is how many keys the row at a position sees, its own among them.
func keysSeen(op *Op, position int) int {
	if op.Window > 0 {
		return min(op.Sinks+op.Window, position+1)
	}
	return op.seen(position)
}

// WeightBytes is the size of all tensors with s.Weight bytes per value, of blocks as they are; a tied
// table counts once.
func (p *Program) WeightBytes(s Sizes) int64 {
	var sum int64
	for _, t := range p.Tensors {
		if t.Blocks != "" {
			sum += t.Bytes
			continue
		}
		n := int64(s.Weight)
		for _, d := range t.Shape {
			n *= d
		}
		sum += n
	}
	return sum
}

// valueDim is the number of elements of a value.
func (op *Op) valueDim() int { return cmp.Or(op.ValueDim, op.HeadDim) }

// tokenBytes is the size of one token's keys and values in the cache of an op's layer.
func (p *Program) tokenBytes(op *Op, s Sizes) int64 {
	head := p.KV.bytes(op.HeadDim, s.KV)
	if !op.Latent {
		head += p.KV.bytes(op.valueDim(), s.KV)
	}
	return int64(op.KVHeads) * head
}

// KVBytesPerToken is the size of one token's keys and values in all layers that have them.
func (p *Program) KVBytesPerToken(s Sizes) (bytes int64) {
	for _, op := range p.placed() {
		bytes += p.tokenBytes(op, s)
	}
	return bytes
}

// SlabBytesPerToken is the size of one token's keys and values in a slab: of the layers of the largest group.
func (p *Program) SlabBytesPerToken(s Sizes) int64 {
	places := p.Places()
	groups := make([]int64, p.Groups().Count())
	for _, op := range p.placed() {
		groups[places[op.Layer].Group] += p.tokenBytes(op, s)
	}
	return slices.Max(groups)
}
