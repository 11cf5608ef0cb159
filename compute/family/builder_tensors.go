package family

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// find returns a tensor by name, for its type and shape. Without a source there is none.
func (b *builder) find(name string) (weights.Tensor, bool) {
	if b.source == nil {
		return weights.Tensor{}, false
	}
	b.sought[name] = true
	if d, ok := b.source.(describer); ok {
		return d.Describe(name)
	}
	return b.source.Tensor(name)
}

// refuseUnread reports a tensor of a GGUF file that no op reads: the converter writes none that the result does not depend on, but for
// layers after the last one, the parts of models with images, the head of a masked language model, and the factors of the rotary embedding,
// which the configuration has.
func (b *builder) refuseUnread() {
	named, ok := b.source.(interface{ Names() []string })
	if !ok || !weights.IsGGUF(b.cfg.File) {
		return
	}
	var unused []string
	if known := find(func(f *family) bool { return f.class == b.cfg.Architecture }); known != nil && known.gguf != nil {
		unused = known.gguf.unused
	}
	for _, name := range named.Names() {
		layer := -1
		if _, rest, ok := strings.Cut("."+name, ".layers."); ok {
			_, _ = fmt.Sscan(strings.Split(rest, ".")[0], &layer)
		} else if rest, ok := strings.CutPrefix(name, "blk."); ok {
			_, _ = fmt.Sscan(strings.Split(rest, ".")[0], &layer)
		}
		idle := layer >= b.cfg.Layers || slices.ContainsFunc(unused, func(part string) bool { return strings.Contains(name, part) }) ||
			strings.HasPrefix(name, "rope_") || strings.HasSuffix(name, ".attn_rot_embd.weight") ||
			strings.HasPrefix(name, "v.") || strings.HasPrefix(name, "a.") || strings.HasPrefix(name, "mm.") ||
			b.cfg.Encoder && len(b.cfg.Classifier.Labels) == 0 && strings.HasPrefix(name, "head.")
		if !b.sought[name] && !idle {
			b.fault(b.cfg.File, name, "a tensor that nothing reads", "none")
		}
	}
}

// findPrefix chooses the prefix under which the probe tensor exists: a
// checkpoint of the decoder alone has none. The first prefix is the one that
// faults name.
func (b *builder) findPrefix(probe string, prefixes ...string) {
	b.prefix = prefixes[0]
	for _, p := range prefixes {
		if _, ok := b.find(p + probe); ok {
			b.prefix = p
			return
		}
	}
}

// either is the second name where only that is there, else the first.
func (b *builder) either(first, second string) string {
	if _, ok := b.find(b.name(first)); !ok {
		if _, ok := b.find(b.name(second)); ok {
			return second
		}
	}
	return first
}

// findHead takes another name for the head if the checkpoint has it.
func (b *builder) findHead(name string) {
	if _, ok := b.find(name); ok {
		b.head = name
	}
}

// findText finds the text model, by the name of its token table: alone, or within a model with images, whose tensors' names have a part for
// it. decoder is before the names of the tensors of a text model with a head.
func (b *builder) findText(table, decoder string) {
	prefixes := []string{decoder}
	for _, part := range []string{"language_model.", "text_model.", "thinker."} {
		prefixes = append(prefixes, "model."+part, part+decoder, part, "model."+part+decoder)
		b.findHead(part + "lm_head.weight")
		b.findHead("model." + part + "lm_head.weight")
	}
	b.findPrefix(table+".weight", append(prefixes, "")...)
}

// tensor is the index of a tensor of the decoder, checked against its shape.
func (b *builder) tensor(name string, shape ...int) int { return b.absolute(b.name(name), shape...) }

// name is the checkpoint's name of a tensor of the decoder.
func (b *builder) name(name string) string {
	if b.names != nil {
		name = b.names.Replace(name)
	}
	return b.prefix + name
}

// tensorIf is tensor, or None when the configuration does not have it.
func (b *builder) tensorIf(has bool, name string, shape ...int) int {
	if !has {
		return model.None
	}
	return b.tensor(name, shape...)
}

// absolute is tensor without the prefix ("lm_head.weight").
func (b *builder) absolute(name string, shape ...int) int {
	want := make([]int64, len(shape))
	for i, d := range shape {
		want[i] = int64(d)
	}
	if i, ok := b.index[name]; ok { // tied: checked the first time
		return i
	}
	return b.checked(name, want, want)
}

// shaped is tensor for one that the program has in another shape than the checkpoint.
func (b *builder) shaped(name string, has []int, shape ...int64) int {
	want := make([]int64, len(has))
	for i, d := range has {
		want[i] = int64(d)
	}
	if i, ok := b.index[b.name(name)]; ok {
		return i
	}
	return b.checked(b.name(name), want, shape)
}

// checked adds a tensor that the checkpoint must have in the shape want.
func (b *builder) checked(name string, want, shape []int64) int {
	t, ok := b.find(name)
	switch {
	case b.source == nil:
	case !ok:
		b.fault(b.cfg.Path(), name, "no such tensor", fmt.Sprintf("one of shape %v", want))
	case t.DType == weights.Other || t.DType.Blocks() && len(want) != 2:
		b.fault(t.File, name, "type "+t.Type, "F32, F16 or BF16")
	case !slices.Equal(t.Shape, want):
		b.fault(t.File, name, fmt.Sprintf("shape %v", t.Shape), fmt.Sprintf("%v", want))
	}
	return b.add(name, t, shape)
}

// matrices is the index of a tensor of n matrices, which the program has one below the other.
func (b *builder) matrices(name string, n, rows, in int) int {
	name = b.name(name)
	t, ok := b.find(name)
	want := []int64{int64(n), int64(rows), int64(in)}
	if ok && !slices.Equal(t.Shape, want) {
		b.fault(t.File, name, fmt.Sprintf("shape %v", t.Shape), fmt.Sprintf("%v", want))
	}
	if i, ok := b.index[name]; ok {
		return i
	}
	return b.add(name, t, []int64{want[0] * want[1], want[2]})
}

// flat is the index of a matrix that the program has as a vector, one row after the other.
func (b *builder) flat(name string, rows, width int) int {
	return b.shaped(name, []int{rows, width}, int64(rows)*int64(width))
}

// number is the value of a tensor of one element.
func (b *builder) number(name string) float64 {
	name = b.name(name)
	if b.source == nil {
		return 0
	}
	b.sought[name] = true
	t, ok := b.source.Tensor(name)
	v, one := t.Number()
	if !ok || !one {
		b.fault(cmp.Or(t.File, b.cfg.Path()), name, fmt.Sprintf("shape %v", t.Shape), "one number")
	}
	return float64(v)
}

// biasOf is the index of a vector that some checkpoints have as a matrix of one row.
func (b *builder) biasOf(name string, n int) int {
	if t, ok := b.find(b.name(name)); ok && slices.Equal(t.Shape, []int64{1, int64(n)}) {
		return b.add(b.name(name), t, []int64{int64(n)})
	}
	return b.tensor(name, n)
}

// add appends a tensor of the checkpoint to the program.
func (b *builder) add(name string, t weights.Tensor, shape []int64) int {
	tensor := model.Tensor{Name: name, Shape: shape}
	if b.err == nil && t.DType.Blocks() {
		tensor.Blocks, tensor.Bytes, tensor.BlockSize = t.Type, t.DType.Bytes(shape[0]*shape[1]), t.DType.BlockSize()
		if len(t.Order) > 0 {
			tensor.Order = fmt.Sprintf("%.16x", sha256.Sum256(t.Order))
		}
	}
	b.program.Tensors = append(b.program.Tensors, tensor)
	b.index[name] = len(b.program.Tensors) - 1
	return b.index[name]
}

// tokenTable is the embedding's tensor; a wrong number of rows is the
// configuration's vocabulary against the checkpoint's. A tied checkpoint may
// hold it under the head's name only.
func (b *builder) tokenTable(name string, width int) int {
	name = b.prefix + name
	t, ok := b.find(name)
	if !ok && b.cfg.TieEmbeddings {
		if t, ok = b.find(b.head); ok {
			name = b.head
		}
	}
	if ok && len(t.Shape) == 2 && t.Shape[0] != int64(b.cfg.Vocab) {
		b.fault(t.File, name, fmt.Sprintf("a vocabulary of %d", t.Shape[0]),
			fmt.Sprintf("%d, the vocab_size of %s", b.cfg.Vocab, b.cfg.File))
	}
	return b.absolute(name, b.cfg.Vocab, width)
}
