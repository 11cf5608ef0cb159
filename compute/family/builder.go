package family

import (
	"bytes"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// TensorSource says which tensors a checkpoint has. *weights.Checkpoint is
// one; only names, types and shapes are looked at here.
type TensorSource interface {
	Tensor(name string) (weights.Tensor, bool)
}

// Build turns a configuration into a program whose tensors all exist in the
// source with the shape they must have. Without a source (nil) the program is
// that of the configuration alone: shapes to count with, nothing to run.
// Faults are *weights.FormatError.
func Build(cfg *Config, tensors TensorSource) (*model.Program, error) {
	if cfg.plan == nil {
		return nil, &weights.FormatError{File: cfg.File, Name: "architectures", Found: cfg.Architecture,
			Expected: served(cfg.Architecture)}
	}
	b := &builder{cfg: cfg, source: tensors, index: map[string]int{}, sought: map[string]bool{}, head: "lm_head.weight",
		program: &model.Program{
			Architecture: cfg.Architecture,
			Vocab:        cfg.Vocab,
			Hidden:       cfg.Hidden,
			Layers:       cfg.Layers,
			KVHeads:      cfg.KVHeads,
			HeadDim:      cfg.HeadDim,
			MaxPositions: cfg.MaxPositions,
		}}
	cfg.plan.build(b)
	b.refuseUnread()
	if b.err != nil {
		return nil, b.err
	}
	return b.program, b.program.SetWeights(model.WeightPlan{})
}

// builder appends ops to a program and keeps the first fault.
type builder struct {
	cfg     *Config
	source  TensorSource
	program *model.Program
	index   map[string]int    // tensor name -> index in program.Tensors
	sought  map[string]bool   // names of the tensors that were looked up
	prefix  string            // before the names of the decoder's tensors
	names   *strings.Replacer // from the names of Llama's tensors to the family's; nil: they are the same
	head    string            // name of the head's tensor
	layer   int               // of the ops that are appended
	pooling model.RowPooling  // of an encoder's rows
	err     error
}

// describer is a source whose tensors' data takes time to make.
type describer interface {
	Describe(name string) (weights.Tensor, bool) // without the data
}

func (b *builder) fault(file, name, found, expected string) {
	if b.err == nil {
		b.err = &weights.FormatError{File: file, Name: name, Found: found, Expected: expected}
	}
}

func (b *builder) slot(name string, t model.SlotType, width int) int {
	b.program.Slots = append(b.program.Slots, model.Slot{Name: name, Type: t, Width: width})
	return len(b.program.Slots) - 1
}

// op appends an op with the current layer.
func (b *builder) op(op model.Op) {
	op.Layer = b.layer
	b.program.Ops = append(b.program.Ops, op)
}

// newOp is an op with every tensor absent.
func newOp(kind model.OpKind, name string, in, out int) model.Op {
	return model.Op{Kind: kind, Name: name, In: in, Out: out, Weight: model.None, Bias: model.None, QNorm: model.None, KNorm: model.None,
		NullScores: model.None, Types: model.None}
}

// scaledEmbed writes scale x table[token] to out.
func (b *builder) scaledEmbed(name string, out, table int, scale float32) {
	op := newOp(model.OpEmbed, name, model.None, out)
	op.Weight, op.EmbedScale = table, scale
	b.op(op)
}

// rounded is a number in the type of a tensor.
func (b *builder) rounded(v float32, tensor int) float32 {
	if t, ok := b.find(b.program.Tensors[tensor].Name); ok {
		return t.DType.Round(v)
	}
	return v
}

// embed writes scale 1 x table[token] + positions[position + offset] to out;
// either table may be None.
func (b *builder) embed(name string, out, table, positions, offset int) {
	op := newOp(model.OpEmbed, name, model.None, out)
	op.Weight, op.Bias, op.PositionOffset, op.EmbedScale = table, positions, offset, 1
	b.op(op)
}

// addEmbed appends out += scale x table[token].
func (b *builder) addEmbed(name string, out, table int, scale float32) {
	b.scaledEmbed(name, out, table, scale)
	b.last().Accumulate = true
}

// norm reads NAME.weight.
func (b *builder) norm(kind model.NormKind, name, tensor string, in, out int) {
	op := newOp(model.OpNorm, name, in, out)
	op.Norm, op.Eps = kind, b.cfg.Eps
	op.Weight = b.tensor(tensor+".weight", b.program.Slots[in].Width)
	b.op(op)
}

// bareNorm is norm without weights.
func (b *builder) bareNorm(kind model.NormKind, name string, in, out int) {
	op := newOp(model.OpNorm, name, in, out)
	op.Norm, op.Eps = kind, b.cfg.Eps
	b.op(op)
}

// partNorm norms some elements of the rows of a slot in place, in groups. weight and bias, which may be None, are of all of them or of a
// group.
func (b *builder) partNorm(kind model.NormKind, name string, slot, offset, width, groups, weight, bias int) {
	op := newOp(model.OpNorm, name, slot, slot)
	op.Norm, op.Eps, op.Weight, op.Bias = kind, b.cfg.Eps, weight, bias
	op.NormOffset, op.NormWidth, op.NormGroups = offset, width, groups
	b.op(op)
}

// last is the op that was appended last.
func (b *builder) last() *model.Op { return &b.program.Ops[len(b.program.Ops)-1] }

func (b *builder) rmsNorm(name, tensor string, in, out int) {
	b.norm(model.NormRMS, name, tensor, in, out)
}

// addNorm adds the norm of in to out. It reads NAME.weight.
func (b *builder) addNorm(name, tensor string, in, out int) {
	b.rmsNorm(name, tensor, in, out)
	b.program.Ops[len(b.program.Ops)-1].Accumulate = true
}

// layerNorm reads NAME.weight and NAME.bias.
func (b *builder) layerNorm(name, tensor string, in, out int) {
	b.norm(model.NormLayer, name, tensor, in, out)
	b.program.Ops[len(b.program.Ops)-1].Bias = b.tensor(tensor+".bias", b.program.Slots[in].Width)
}

// part is a whole tensor as part of a linear op.
func (b *builder) part(name string, bias bool, rows, in int) model.Part {
	part := model.Part{
		Weight: b.tensor(name+".weight", rows, in),
		Bias:   b.tensorIf(bias, name+".bias", rows),
		Rows:   rows, Block: rows, Stride: rows,
	}
	if t, _ := b.find(b.name(name + ".weight")); t.Heads > 0 && b.err == nil {
		part.Block, part.Interleaved = rows/int(t.Heads), true
		part.Stride = part.Block
	}
	return part
}

// fusedParts are parts of a tensor, one below the other, of these numbers of rows.
func (b *builder) fusedParts(name string, bias bool, in int, rows ...int) []model.Part {
	all := 0
	for _, n := range rows {
		all += n
	}
	whole := b.part(name, bias, all, in)
	parts, offset := make([]model.Part, len(rows)), 0
	for i, n := range rows {
		parts[i] = model.Part{Weight: whole.Weight, Bias: whole.Bias, Offset: offset, Rows: n, Block: n, Stride: n}
		offset += n
	}
	return parts
}

// linear appends y = act(parts . x + bias).
func (b *builder) linear(name string, in, out int, act model.Activation, parts ...model.Part) {
	op := newOp(model.OpLinear, name, in, out)
	op.Parts, op.Activation = parts, act
	b.op(op)
}

// addLinear appends out += part . x + bias.
func (b *builder) addLinear(name string, in, out int, part model.Part) {
	op := newOp(model.OpLinear, name, in, out)
	op.Parts, op.Accumulate = []model.Part{part}, true
	b.op(op)
}

// gatedLinear appends y = act(gate . x) * (up . x).
func (b *builder) gatedLinear(name string, in, out int, act model.Activation, gate, up model.Part) {
	op := newOp(model.OpLinear, name, in, out)
	op.Parts, op.Activation, op.Gated = []model.Part{gate, up}, act, true
	b.op(op)
}

// attention appends the two ops on the KV cache: rotary embedding and store,
// then attention from the slot qkv to out. set fills in what the architecture
// adds to the plain ones.
func (b *builder) attention(qkv, out int, set func(rope, attention *model.Op)) {
	c := b.cfg
	rope := newOp(model.OpRopeStore, "attn.rope_store", qkv, qkv)
	rope.Heads, rope.KVHeads, rope.HeadDim = c.Heads, c.KVHeads, c.HeadDim
	rope.RotaryScale = 1
	att := newOp(model.OpAttention, "attn.attention", qkv, out)
	att.Heads, att.KVHeads, att.HeadDim = c.Heads, c.KVHeads, c.HeadDim
	att.Scale = inverseSqrt(c.HeadDim)
	set(&rope, &att)
	b.op(rope)
	b.op(att)
}

// qkNorm makes the op norm the heads of q and k, if the configuration says so. at is before the tensors' names.
func (b *builder) qkNorm(rope *model.Op, at string) {
	if c := b.cfg; c.QKNorm {
		rope.QNorm = b.tensor(at+"q_norm.weight", c.HeadDim)
		rope.KNorm = b.tensor(at+"k_norm.weight", c.HeadDim)
		rope.Eps = c.Eps
	}
}

// selectInLast keeps, after the last layer's attention, only the rows whose logits are wanted. Other
// rows need only their keys and values, and those are stored by then. slots are all slots that later
// ops read. The mean of an encoder needs all rows.
func (b *builder) selectInLast(slots ...*int) {
	if b.layer < b.cfg.Layers-1 || b.pooling == model.PoolMean {
		return
	}
	for _, s := range slots {
		in := b.program.Slots[*s]
		out := b.slot("selected."+in.Name, in.Type, in.Width)
		b.op(newOp(model.OpSelectRows, "select_rows", *s, out))
		b.last().Pooling = b.pooling
		*s = out
	}
}

// tied says whether the head is the token table. As in transformers 5, a head
// of its own with other values goes before the configuration.
func (b *builder) tied(table int) bool {
	if _, ok := b.find(b.head); b.cfg.NoHead && !ok {
		return true // logits that nobody needs
	}
	if !b.cfg.TieEmbeddings {
		return false
	}
	if _, ok := b.find(b.head); !ok || b.err != nil {
		return true
	}
	own, _ := b.source.Tensor(b.head)
	t, _ := b.source.Tensor(b.program.Tensors[table].Name)
	return own.DType == t.DType && bytes.Equal(own.Data, t.Data)
}

// logits appends the last op. The table is the token table, used when tied. A head for classes is a matrix of its own.
func (b *builder) logits(in, table int, bias bool) {
	c := b.cfg
	if len(c.Classifier.Labels) > 0 {
		b.classes(in, "score", false)
		return
	}
	part := model.Part{Weight: table, Bias: model.None, Rows: c.Vocab, Block: c.Vocab, Stride: c.Vocab}
	if !b.tied(table) {
		part.Weight = b.absolute(b.head, c.Vocab, b.program.Slots[in].Width)
	}
	if bias {
		part.Bias = b.absolute("lm_head.bias", c.Vocab)
	}
	b.linear("logits", in, b.slot("logits", model.SlotF32, c.Vocab), model.ActNone, part)
}

// cappedLogits appends the last op, whose results are capped; 0: they are not, as those of classes.
func (b *builder) cappedLogits(in, table int, bias bool, most float32) {
	b.logits(in, table, bias)
	if most > 0 && b.program.Classes == 0 {
		b.last().Activation, b.last().ActA = model.ActSoftcap, most
	}
}
