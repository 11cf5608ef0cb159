package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/model"
)

// linearAttention is the type of layers with a mixer, in layer_types.
const linearAttention = "linear_attention"

// mixer is what some layers have in place of attention: a token changes a state of a fixed size, and reads it.
type mixer interface {
	// open makes the slots that the layers share. It returns what appends the ops of a layer, whose tensors' names begin with at: from the
	// slot in to the slot out, which the part back projects to the residual.
	open(b *builder) func(at string, in int) (out int, back model.Part)
}

// mixerLayers reads layer_types: true for the layers of one type, which have the mixer, false for those with attention. Without layer_types
// every n-th layer has attention, by the name interval.
func (f *fields) mixerLayers(c *Config, kind, interval string, missing int) []bool {
	types := f.texts("layer_types")
	n := f.integer(missing, 1, maxLayers, interval)
	if f.err != nil {
		return nil
	}
	layers := make([]bool, c.Layers)
	if types == nil {
		for i := range layers {
			layers[i] = (i+1)%n != 0
		}
		return layers
	}
	return f.layersOf(c, types, kind)
}

// layersOf is true for the layers of a type, false for those with attention.
func (f *fields) layersOf(c *Config, types []string, kind string) []bool {
	if len(types) != c.Layers {
		f.fault("layer_types", fmt.Sprintf("%d entries", len(types)), fmt.Sprintf("one for each of %d layers", c.Layers))
		return nil
	}
	layers := make([]bool, c.Layers)
	for i, t := range types {
		if t != kind && t != full {
			f.fault("layer_types", fmt.Sprintf("%.40q", t), kind+" or "+full)
		}
		layers[i] = t == kind
	}
	return layers
}

// rowsOf is a part of a tensor without bias: blocks of rows, stride apart.
func (b *builder) rowsOf(name string, all, in, offset, rows, block, stride int) model.Part {
	return model.Part{Weight: b.tensor(name+".weight", all, in), Bias: model.None, Offset: offset, Rows: rows, Block: block, Stride: stride}
}

// conv appends a convolution over the last tokens, and returns it. Its weight is NAME.weight, [channels, 1, kernel] as torch has it.
func (b *builder) conv(name, tensor string, in, out, channels, kernel int, bias bool) *model.Conv {
	c := &model.Conv{
		Weight: b.filters(tensor+".weight", channels, kernel), Bias: b.tensorIf(bias, tensor+".bias", channels),
		Channels: channels, Kernel: kernel, Times: model.None, Gate: model.None,
	}
	op := newOp(model.OpConv, name, in, out)
	op.Conv = c
	b.op(op)
	return c
}

// filters is the index of a convolution's weight.
func (b *builder) filters(name string, channels, kernel int) int {
	if t, ok := b.find(b.name(name)); ok && len(t.Shape) == 2 { // as GGUF files have it
		return b.tensor(name, channels, kernel)
	}
	return b.shaped(name, []int{channels, 1, kernel}, int64(channels), int64(kernel))
}

// recur appends a recurrence.
func (b *builder) recur(name string, in, out int, r model.Recur) {
	op := newOp(model.OpRecur, name, in, out)
	op.Recur = &r
	b.op(op)
}

// gate appends a gate.
func (b *builder) gate(name string, in, out int, g model.Gate) {
	op := newOp(model.OpGate, name, in, out)
	op.Gate = &g
	b.op(op)
}
