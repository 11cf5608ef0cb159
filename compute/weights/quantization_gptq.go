package weights

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

func (q *Quantization) checkGroups(bad badField, bits ...int) error {
	if !slices.Contains(bits, q.Bits) {
		return bad("bits", strings.ReplaceAll(strings.Trim(fmt.Sprint(bits), "[]"), " ", " or "), "%d", q.Bits)
	}
	if q.GroupSize != -1 && q.GroupSize < 1 {
		return bad("group_size", "-1 or at least 1", "%d", q.GroupSize)
	}
	return nil
}

func checkGPTQ(q *Quantization, bad badField) error {
	if err := q.checkGroups(bad, 4, 8); err != nil {
		return err
	}
	if !slices.Contains([]string{"", "gptq", "gptq_v2"}, q.Checkpoint) {
		return bad("checkpoint_format", "gptq or gptq_v2", "%.40q", q.Checkpoint)
	}
	return nil
}

func checkAWQ(q *Quantization, bad badField) error {
	if err := q.checkGroups(bad, 4); err != nil {
		return err
	}
	if !slices.Contains([]string{"", "gemm"}, strings.ToLower(q.Version)) {
		return bad("version", "gemm", "%.40q", q.Version)
	}
	return nil
}

// The packings of AutoRound whose layers are those of GPTQ and AWQ.
const (
	autoRoundGPTQ = "auto_round:auto_gptq"
	autoRoundAWQ  = "auto_round:auto_awq"
)

func checkAutoRound(q *Quantization, bad badField) error {
	switch q.Packing {
	case autoRoundGPTQ:
		return q.checkGroups(bad, 4, 8)
	case autoRoundAWQ:
		return q.checkGroups(bad, 4)
	}
	return bad("packing_format", autoRoundGPTQ+" or "+autoRoundAWQ, "%.40q", q.Packing)
}

func (q *Quantization) isAWQ() bool { return q.Method == "awq" || q.Packing == autoRoundAWQ }

// layer is a quantized linear layer, weight [in, out], transposed to the
// [out, in] of the rest.
type layer struct {
	in, out, pack, bits int // pack: values per word
	words, zeros        []byte
	scales              Tensor // [groups, out]
	group               []int32
	zeroOffset          uint32
}

// packedLayer checks the tensors of a layer against each other. Layouts:
// QuantLinear.pack of AutoGPTQ (qlinear_cuda.py) and WQLinear_GEMM of AutoAWQ
// (awq/modules/linear/gemm.py).
func (c *Checkpoint) packedLayer(q *Quantization, name string) (*derived, error) {
	words, zeros, scales := c.tensors[name+".qweight"], c.tensors[name+".qzeros"], c.tensors[name+".scales"]
	if _, twice := c.tensors[name+".weight"]; twice {
		return nil, fault(name, "one of .weight and .qweight", "both")
	}
	for part, t := range map[string]Tensor{".qweight": words, ".qzeros": zeros} {
		if t.Type != "I32" || len(t.Shape) != 2 {
			return nil, fault(name+part, "I32 of two dimensions", "%s", kindOf(t))
		}
	}
	if scales.DType == Other || scales.Data == nil || len(scales.Shape) != 2 {
		return nil, fault(name+".scales", "F16, BF16 or F32 of two dimensions", "%s", kindOf(scales))
	}
	l := &layer{bits: q.Bits, pack: 32 / q.Bits, words: words.Data, zeros: zeros.Data, scales: scales}
	groups, out := scales.Shape[0], scales.Shape[1]
	in, packed := words.Shape[0]*int64(l.pack), [2]int64{words.Shape[0], out}
	if q.isAWQ() {
		in, packed = words.Shape[0], [2]int64{words.Shape[0], out / int64(l.pack)}
	}
	if in < 1 || out < 1 || out%int64(l.pack) != 0 || words.Shape[1] != packed[1] {
		return nil, fault(name+".qweight", fmt.Sprintf("%v, by the %d outputs of .scales and %d bits", packed, out, q.Bits), "shape %v", words.Shape)
	}
	size := int64(q.GroupSize)
	if size < 0 {
		size = in
	}
	if want := (in + size - 1) / size; groups != want {
		return nil, fault(name+".scales", fmt.Sprintf("%d groups of %d for %d inputs", want, size, in), "shape %v", scales.Shape)
	}
	if want := []int64{groups, out / int64(l.pack)}; !slices.Equal(zeros.Shape, want) {
		return nil, fault(name+".qzeros", fmt.Sprint(want), "shape %v", zeros.Shape)
	}
	l.in, l.out = int(in), int(out)
	if err := l.groups(q, name, c.tensors[name+".g_idx"], size, groups); err != nil {
		return nil, err
	}
	d := &derived{Tensor: Tensor{Name: name + ".weight", DType: derivedType, Type: strings.ToUpper(q.Method), Shape: []int64{out, in}, File: words.File}}
	if q.isAWQ() {
		d.fill = l.fillAWQ
	} else {
		if q.Checkpoint != "gptq_v2" {
			l.zeroOffset = 1 // the first version stores zeros less 1
		}
		d.fill = l.fillGPTQ
	}
	return d, nil
}

// groups sets the group of each input.
func (l *layer) groups(q *Quantization, name string, index Tensor, size, groups int64) error {
	if index.Type == "" || q.isAWQ() {
		if q.DescAct && !q.isAWQ() && groups > 1 {
			return fault(name+".g_idx", "one, by desc_act", "no such tensor")
		}
		l.group = make([]int32, l.in)
		for k := range l.group {
			l.group[k] = int32(int64(k) / size)
		}
		return nil
	}
	var err error
	l.group, err = groupsOf(index, name+".g_idx", l.in, groups)
	return err
}

// groupsOf reads the group of each input from a tensor of this name.
func groupsOf(index Tensor, name string, inputs int, groups int64) ([]int32, error) {
	if index.Type != "I32" || !slices.Equal(index.Shape, []int64{int64(inputs)}) {
		return nil, fault(name, fmt.Sprintf("I32 [%d]", inputs), "%s", kindOf(index))
	}
	group := make([]int32, inputs)
	for k := range group {
		g := int32(word(index.Data, k))
		if g < 0 || int64(g) >= groups {
			return nil, fault(name, fmt.Sprintf("0 to %d", groups-1), "group %d of input %d", g, k)
		}
		group[k] = g
	}
	return group, nil
}

// scale is the scale of group g and output n.
func (l *layer) scale(g int32, n int) float32 { return number(l.scales, int(g)*l.out+n) }

// word is word i of a tensor of I32.
func word(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }

// fillGPTQ: a word holds neighboring inputs of one output, the first one
// lowest; of zeros, neighboring outputs. x = scale (q - zero).
func (l *layer) fillGPTQ(dst []byte, first, last int64) {
	mask := uint32(1)<<l.bits - 1
	for n := int(first); n < int(last); n++ {
		row := dst[2*(n-int(first))*l.in:]
		group, scale, zero := int32(-1), float32(0), uint32(0)
		for k := range l.in {
			if g := l.group[k]; g != group {
				group, scale = g, l.scale(g, n)
				zero = (word(l.zeros, (int(g)*l.out+n)/l.pack)>>(n%l.pack*l.bits) + l.zeroOffset) & mask
			}
			q := word(l.words, k/l.pack*l.out+n) >> (k % l.pack * l.bits) & mask
			putHalf(row, k, scale*float32(int(q)-int(zero)))
		}
	}
}

// fillAWQ: a word holds eight neighboring outputs of one input, of zeros and
// weights alike, the even ones below the odd ones. x = scale (q - zero).
func (l *layer) fillAWQ(dst []byte, first, last int64) {
	for n := int(first); n < int(last); n++ {
		row := dst[2*(n-int(first))*l.in:]
		j := n % 8
		shift := 4 * (j/2 + 4*(j%2))
		group, scale, zero := int32(-1), float32(0), 0
		for k := range l.in {
			if g := l.group[k]; g != group {
				group, scale = g, l.scale(g, n)
				zero = int(word(l.zeros, (int(g)*l.out+n)/8) >> shift & 15)
			}
			q := int(word(l.words, (k*l.out+n)/8) >> shift & 15)
			putHalf(row, k, scale*float32(q-zero))
		}
	}
}
