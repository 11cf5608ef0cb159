package weights

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

func checkFP8(q *Quantization, bad badField) error {
	if q.FP8 != "" && q.FP8 != "e4m3" {
		return bad("fmt", "e4m3", "%.40q", q.FP8)
	}
	return q.checkBlock(bad, "weight_block_size", q.Block)
}

func checkCompressed(q *Quantization, bad badField) error {
	if q.Sparsity.Format != "" && q.Sparsity.Format != "dense" {
		return bad("sparsity_config.format", "dense", "%.40q", q.Sparsity.Format)
	}
	if len(q.Transform.Groups) > 0 {
		return bad("transform_config", "none: rotated weights need rotated activations", "%d groups", len(q.Transform.Groups))
	}
	for _, g := range q.Groups {
		if err := q.checkBlock(bad, "config_groups.weights.block_structure", g.Weights.Block); err != nil {
			return err
		}
	}
	return nil
}

func (q *Quantization) checkBlock(bad badField, name string, block []int) error {
	if len(block) > 0 && (len(block) != 2 || block[0] < 1 || block[1] < 1) {
		return bad(name, "two numbers of at least 1", "%v", block)
	}
	return nil
}

// block is the rows and columns that share a scale, where the file says so.
func (q *Quantization) block() []int {
	for _, g := range q.Groups {
		if len(g.Weights.Block) > 0 {
			return g.Weights.Block
		}
	}
	return q.Block
}

// scaled is a layer of codes [out, in], of which blocks of rows x columns share a scale: x = scale (value - zero).
type scaled struct {
	out, in       int
	rows, columns int
	across        int                          // scales next to each other
	scale         func(i int) float32          // of block i, row-major
	zero          func(row, block int) float32 // of a row and its block of columns; nil: 0
	group         []int32                      // the block of columns of each column; nil: one after the other
	values        func(to []float32, row int)  // of the codes of a row
	fp8           []byte                       // the codes, where they are E4M3
	fp4           []byte                       // the codes, where they are E2M1: neighbors share a byte
	scales        []byte                       // as the file has them, of that type; number times one of them is a scale
	scaleType     string
	number        float32
	low, high     int // of values that are integers; both 0: of others
}

// derive is the matrix NAME.weight of a file: blocks that have the layer's own codes and scales, or else F16.
func (s *scaled) derive(name, kind, file string) *derived {
	t := Tensor{Name: name + ".weight", DType: derivedType, Type: kind, Shape: []int64{int64(s.out), int64(s.in)}, File: file}
	layer, order := s, []byte(nil)
	if s.group != nil {
		if layer, order = s.inOrder(); layer == nil {
			return &derived{Tensor: t, fill: s.fill}
		}
	}
	dtype, fill, ok := layer.kept()
	if !ok {
		return &derived{Tensor: t, fill: s.fill}
	}
	t.DType, t.Order = dtype, order
	if _, own := ownTypes[uint32(dtype-blocks)]; own {
		t.Type = dtype.String()
	}
	return &derived{Tensor: t, fill: fill, floats: s.fill}
}

// fill decodes rows to F16.
func (s *scaled) fill(dst []byte, first, last int64) {
	values := make([]float32, s.in)
	for n := int(first); n < int(last); n++ {
		row := dst[2*(n-int(first))*s.in:]
		s.values(values, n)
		block, scale, zero := -1, float32(0), float32(0)
		for k, v := range values {
			b := k / s.columns
			if s.group != nil {
				b = int(s.group[k])
			}
			if b != block {
				block, scale = b, s.scale(n/s.rows*s.across+b)
				if s.zero != nil {
					zero = s.zero(n, b)
				}
			}
			putHalf(row, k, scale*(v-zero))
		}
	}
}

// scaledLayer reads a layer of codes with a tensor of scales. Layouts: FP8Linear of transformers (integrations/finegrained_fp8.py), and
// the compressors of compressed-tensors (compressors/*/base.py).
func (c *Checkpoint) scaledLayer(q *Quantization, name string) (*derived, error) {
	codes, part := c.tensors[name+".weight"], ".weight"
	if packed, ok := c.tensors[name+".weight_packed"]; ok {
		codes, part = packed, ".weight_packed"
	}
	if len(codes.Shape) != 2 {
		return nil, fault(name+part, "a matrix of codes", "%s", kindOf(codes))
	}
	s := &scaled{out: int(codes.Shape[0]), in: int(codes.Shape[1])}
	if s.out == 0 || s.in == 0 {
		return nil, fault(name+part, "a matrix with elements", "%s", kindOf(codes))
	}
	var err error
	switch codes.Type {
	case "F8_E4M3":
		s.fp8 = codes.Data
		s.values = func(to []float32, row int) { tableValues(to, codes.Data[row*s.in:], &fp8) }
	case "I8":
		s.low, s.high = math.MinInt8, math.MaxInt8
		s.values = func(to []float32, row int) { tableValues(to, codes.Data[row*s.in:], &int8s) }
		err = c.rowZeros(s, name)
	case "I32":
		err = c.packedIntegers(s, name, codes)
	case "U8":
		s.in *= 2
		s.fp4 = codes.Data
		s.values = func(to []float32, row int) {
			for k := range to {
				at := row*s.in + k
				to[k] = e2m1[codes.Data[at/2]>>(at%2*4)&15]
			}
		}
	default:
		return nil, fault(name+part, "F8_E4M3, I8, or packed I32 or U8", "%s", kindOf(codes))
	}
	if err != nil {
		return nil, err
	}
	if err := c.scales(s, q, name); err != nil {
		return nil, err
	}
	return s.derive(name, codes.Type, codes.File), nil
}

// scales sets the scales of a layer, by their shape.
func (c *Checkpoint) scales(s *scaled, q *Quantization, name string) error {
	part := ".weight_scale"
	if _, ok := c.tensors[name+part]; !ok {
		part += "_inv"
	}
	t := c.tensors[name+part]
	shape := slices.Clone(t.Shape)
	for len(shape) < 2 { // of all, or of rows
		shape = append(shape, 1)
	}
	s.rows, s.columns = s.out, s.in
	block := q.block()
	switch {
	case len(shape) != 2 || shape[0] < 1 || shape[1] < 1:
		return fault(name+part, "a scale, one a row, or a matrix of them", "%s", kindOf(t))
	case shape[0] == 1 && shape[1] == 1 && s.out > 1 && len(block) == 0:
	case len(block) > 0 && shape[0] != int64(s.out):
		s.rows, s.columns = block[0], block[1]
	default:
		s.rows = 1
		s.columns = (s.in + int(shape[1]) - 1) / int(shape[1])
	}
	s.across = (s.in + s.columns - 1) / s.columns
	if want := []int64{int64((s.out + s.rows - 1) / s.rows), int64(s.across)}; !slices.Equal(shape, want) {
		return fault(name+part, fmt.Sprintf("%v for a weight of [%d %d]", want, s.out, s.in), "shape %v", t.Shape)
	}
	return c.setScale(s, name, part, t)
}

// setScale takes element i of a tensor of scales, divided by the layer's own scale if there is one.
func (c *Checkpoint) setScale(s *scaled, name, part string, t Tensor) error {
	divisor := float32(1)
	if g, ok := c.tensors[name+".weight_global_scale"]; ok {
		if g.DType != F32 || len(g.Data) != 4 {
			return fault(name+".weight_global_scale", "one number of F32", "%s", kindOf(g))
		}
		if divisor = number(g, 0); !(divisor > 0) {
			return fault(name+".weight_global_scale", "a number above 0", "%g", divisor)
		}
	}
	s.scales, s.scaleType, s.number = t.Data, t.Type, 1/divisor
	switch {
	case t.DType != Other && t.Data != nil:
		s.scale = func(i int) float32 { return number(t, i) / divisor }
	case t.Type == "F8_E4M3":
		s.scale = func(i int) float32 { return fp8[t.Data[i]] / divisor }
	case t.Type == "U8": // E8M0
		s.scale = func(i int) float32 { return float32(math.Ldexp(1, int(t.Data[i])-127)) / divisor }
	default:
		return fault(name+part, "F16, BF16, F32, F8_E4M3 or U8", "%s", kindOf(t))
	}
	return nil
}

// rowZeros sets the zeros of a layer of I8, one a row or one for all.
func (c *Checkpoint) rowZeros(s *scaled, name string) error {
	t, ok := c.tensors[name+".weight_zero_point"]
	switch {
	case !ok:
		return nil
	case t.Type != "I8" || len(t.Data) != 1 && len(t.Data) != s.out:
		return fault(name+".weight_zero_point", fmt.Sprintf("I8, one or %d", s.out), "%s", kindOf(t))
	}
	s.zero = func(row, _ int) float32 { return int8s[t.Data[row%len(t.Data)]] }
	return nil
}

// packedIntegers sets the shape, codes, zeros and groups of a layer of integers of 1 to 8 bits without gaps: bits of neighboring inputs
// follow each other in a row's words, those of neighboring outputs in the zeros' columns. A code is the value and half of its range.
func (c *Checkpoint) packedIntegers(s *scaled, name string, codes Tensor) error {
	shape := c.tensors[name+".weight_shape"]
	if shape.Type != "I64" && shape.Type != "I32" || len(shape.Shape) != 1 || shape.Shape[0] != 2 {
		return fault(name+".weight_shape", "I64 of two numbers", "%s", kindOf(shape))
	}
	size := len(shape.Data) / 2
	out, in := int(binary.LittleEndian.Uint32(shape.Data)), int(binary.LittleEndian.Uint32(shape.Data[size:]))
	words := s.in
	bits := 0
	for b := 1; b <= 8 && bits == 0; b++ {
		if (in*b+31)/32 == words {
			bits = b
		}
	}
	if out != s.out || in < 1 || in > math.MaxInt32/8 || bits == 0 {
		return fault(name+".weight_packed", fmt.Sprintf("integers of 1 to 8 bits of a weight of [%d %d]", out, in), "%s", kindOf(codes))
	}
	s.in = in
	half := float32(int(1) << (bits - 1))
	s.low, s.high = -1<<(bits-1), 1<<(bits-1)-1
	s.values = func(to []float32, row int) {
		for k := range to {
			to[k] = float32(field(codes.Data, row*words, 1, k*bits, bits)) - half
		}
	}
	if zeros, ok := c.tensors[name+".weight_zero_point"]; ok {
		want := []int64{(int64(out)*int64(bits) + 31) / 32, c.across(name)}
		if zeros.Type != "I32" || !slices.Equal(zeros.Shape, want) {
			return fault(name+".weight_zero_point", fmt.Sprintf("I32 %v", want), "%s", kindOf(zeros))
		}
		s.zero = func(row, block int) float32 {
			return float32(field(zeros.Data, block, int(want[1]), row*bits, bits)) - half
		}
	}
	if index, ok := c.tensors[name+".weight_g_idx"]; ok {
		var err error
		across := c.across(name)
		s.group, err = groupsOf(index, name+".weight_g_idx", s.in, (s.in+int(across)-1)/int(across), across)
		return err
	}
	return nil
}

// field is bits from bit at on, in words of a tensor of I32: the first one and each step-th after it.
func field(words []byte, first, step, at, bits int) uint32 {
	i := first + at/32*step
	v := uint64(word(words, i)) >> (at % 32)
	if at%32+bits > 32 {
		v |= uint64(word(words, i+step)) << (32 - at%32)
	}
	return uint32(v) & (1<<bits - 1)
}

// across is the number of scales of a row.
func (c *Checkpoint) across(name string) int64 {
	if shape := c.tensors[name+".weight_scale"].Shape; len(shape) == 2 {
		return shape[1]
	}
	return 1
}

func tableValues(to []float32, codes []byte, table *[256]float32) {
	for k := range to {
		to[k] = table[codes[k]]
	}
}

// e2m1 are the values of E2M1; the second zero is negative.
var e2m1 = func() (values [16]float32) {
	for i, v := range []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6} {
		values[i], values[i+8] = v, -v
	}
	return values
}()

// fp8 are the values of E4M3 without infinities (OCP FP8, "fn"), int8s those of int8.
var fp8, int8s = func() (f, i [256]float32) {
	for b := range 256 {
		f[b], i[b] = positiveFP8(byte(b&127)), float32(int8(b))
		if b >= 128 {
			f[b] = -f[b]
		}
	}
	return f, i
}()

func positiveFP8(b byte) float32 {
	exponent, fraction := int(b>>3), float64(b&7)
	switch {
	case b == 127:
		return float32(math.NaN())
	case exponent == 0:
		return float32(math.Ldexp(fraction, -9))
	}
	return float32(math.Ldexp(1+fraction/8, exponent-7))
}
