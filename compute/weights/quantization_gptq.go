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

// packedLayer checks the tensors of a layer, weight [in, out], against each other. x = scale (q - zero). Layouts: QuantLinear.pack of
// AutoGPTQ (qlinear_cuda.py) and WQLinear_GEMM of AutoAWQ (awq/modules/linear/gemm.py).
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
	pack := int64(32 / q.Bits) // values per word
	groups, out := scales.Shape[0], scales.Shape[1]
	in, packed := words.Shape[0]*pack, [2]int64{words.Shape[0], out}
	if q.isAWQ() {
		in, packed = words.Shape[0], [2]int64{words.Shape[0], out / pack}
	}
	if in < 1 || out < 1 || out%pack != 0 || words.Shape[1] != packed[1] {
		return nil, fault(name+".qweight", fmt.Sprintf("%v, by the %d outputs of .scales and %d bits", packed, out, q.Bits), "shape %v",
			words.Shape)
	}
	size := int64(q.GroupSize)
	if size < 0 {
		size = in
	}
	if want := (in + size - 1) / size; groups != want {
		return nil, fault(name+".scales", fmt.Sprintf("%d groups of %d for %d inputs", want, size, in), "shape %v", scales.Shape)
	}
	if want := []int64{groups, out / pack}; !slices.Equal(zeros.Shape, want) {
		return nil, fault(name+".qzeros", fmt.Sprint(want), "shape %v", zeros.Shape)
	}
	s := &scaled{
		out: int(out), in: int(in), rows: 1, columns: int(size), across: int(groups), low: 0, high: 1<<q.Bits - 1,
		scale: func(i int) float32 { return number(scales, i%int(groups)*int(out)+i/int(groups)) },
	}
	if q.isAWQ() {
		s.awq(words.Data, zeros.Data)
	} else {
		s.gptq(q, words.Data, zeros.Data)
		if err := s.groups(q, name, c.tensors[name+".g_idx"], groups); err != nil {
			return nil, err
		}
	}
	return s.derive(name, strings.ToUpper(q.Method), words.File), nil
}

// groups sets the group of each input, where they are not in order.
func (s *scaled) groups(q *Quantization, name string, index Tensor, groups int64) error {
	if index.Type == "" {
		if q.DescAct && groups > 1 {
			return fault(name+".g_idx", "one, by desc_act", "no such tensor")
		}
		return nil
	}
	var err error
	s.group, err = groupsOf(index, name+".g_idx", s.in, s.columns, groups)
	return err
}

// groupsOf reads the group of each input from a tensor of this name; nil if they are in order, in groups of that size.
func groupsOf(index Tensor, name string, inputs, size int, groups int64) ([]int32, error) {
	if index.Type != "I32" || !slices.Equal(index.Shape, []int64{int64(inputs)}) {
		return nil, fault(name, fmt.Sprintf("I32 [%d]", inputs), "%s", kindOf(index))
	}
	group, inOrder := make([]int32, inputs), true
	for k := range group {
		g := int32(word(index.Data, k))
		if g < 0 || int64(g) >= groups {
			return nil, fault(name, fmt.Sprintf("0 to %d", groups-1), "group %d of input %d", g, k)
		}
		group[k] = g
		inOrder = inOrder && int(g) == k/size
	}
	if inOrder {
		return nil, nil
	}
	return group, nil
}

// word is word i of a tensor of I32.
func word(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }

// gptq: a word holds neighboring inputs of one output, the first one lowest; of zeros, neighboring outputs.
func (s *scaled) gptq(q *Quantization, words, zeros []byte) {
	bits, pack, mask := q.Bits, 32/q.Bits, uint32(1)<<q.Bits-1
	offset := uint32(1) // the first version stores zeros less 1
	if q.Checkpoint == "gptq_v2" {
		offset = 0
	}
	s.zero = func(row, block int) float32 {
		return float32((word(zeros, (block*s.out+row)/pack)>>(row%pack*bits) + offset) & mask)
	}
	s.values = func(to []float32, row int) {
		for k := 0; k < s.in; k += pack {
			for i, w := 0, word(words, k/pack*s.out+row); i < pack; i, w = i+1, w>>bits {
				to[k+i] = float32(w & mask)
			}
		}
	}
}

// awq: a word holds eight neighboring outputs of one input, of zeros and weights alike, the even ones below the odd ones.
func (s *scaled) awq(words, zeros []byte) {
	at := func(from []byte, i, row int) float32 {
		j := row % 8
		return float32(word(from, (i*s.out+row)/8) >> (4 * (j/2 + 4*(j%2))) & 15)
	}
	s.zero = func(row, block int) float32 { return at(zeros, block, row) }
	s.values = func(to []float32, row int) {
		for k := range to {
			to[k] = at(words, k, row)
		}
	}
}
