package weights

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"
)

// integerBlocks is a type of GGUF's blocks whose elements are scale x integer, with an F16 as the scale. Formulae: dequantize_row_q4_0,
// _q5_0 and _q8_0 of ggml-quants.c.
type integerBlocks struct {
	dtype     DType
	low, high int
}

const (
	blockElements = 32
	blockHalf     = blockElements / 2

	leastHalf, mostHalf = 0x1p-14, 65504 // of F16's numbers with 11 significant bits
)

// integerTypes, the smallest first.
func integerTypes() [3]integerBlocks {
	types := BlockTypes()
	return [3]integerBlocks{{types["Q4_0"], -8, 7}, {types["Q5_0"], -16, 15}, {types["Q8_0"], -128, 127}}
}

// fillRows writes rows [first, last) of a row-major matrix, at dst[0].
type fillRows = func(dst []byte, first, last int64)

// kept is the type of blocks that keeps a layer's own codes and scales, and what writes it; false: none does.
func (s *scaled) kept() (DType, fillRows, bool) {
	switch {
	case s.group != nil:
		return Other, nil, false
	case s.fp8 != nil:
		return s.keptFP8()
	case s.fp4 != nil:
		return s.keptFP4()
	}
	if s.ternary() {
		return BlockTypes()["TQ2_0"], s.fillTernary, true
	}
	b, ok := s.integers()
	if zeros := s.zeros(); zeros != Other && (!ok || b.dtype != integerTypes()[0].dtype) {
		return zeros, func(dst []byte, first, last int64) { s.fillZeros(zeros, dst, first, last) }, true
	}
	return b.dtype, func(dst []byte, first, last int64) { s.fillBlocks(b, dst, first, last) }, ok
}

// inOrder is a layer with the inputs of a group one after the other, and the input that each of them is; nil where groups are not of one
// size.
func (s *scaled) inOrder() (*scaled, []byte) {
	order := make([]int32, s.in)
	for k := range order {
		order[k] = int32(k)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(s.group[a], s.group[b]) })
	packed := make([]byte, 0, 4*s.in)
	for k, from := range order {
		if int(s.group[from]) != k/s.columns {
			return nil, nil
		}
		packed = binary.LittleEndian.AppendUint32(packed, uint32(from))
	}
	sorted := *s
	sorted.group = nil
	sorted.values = func(to []float32, row int) {
		values := make([]float32, s.in)
		s.values(values, row)
		for k, from := range order {
			to[k] = values[from]
		}
	}
	return &sorted, packed
}

// hasHalves reports whether all scales are normal numbers of F16. Rounding such a scale loses no more than rounding its products.
func (s *scaled) hasHalves() bool {
	for i := range (s.out + s.rows - 1) / s.rows * s.across {
		if x := math.Abs(float64(s.scale(i))); x != 0 && !(x >= leastHalf && x <= mostHalf) {
			return false
		}
	}
	return true
}

// integers is the type of GGUF's that keeps a layer of integers as it is: each less its zero within the range, groups of whole blocks, and
// scales of F16.
func (s *scaled) integers() (integerBlocks, bool) {
	if s.low == s.high || s.in%blockElements != 0 || s.columns%blockElements != 0 || !s.hasHalves() {
		return integerBlocks{}, false
	}
	low, high := s.low, s.high
	if s.zero != nil {
		least, most := math.MaxInt, math.MinInt
		for row := 0; row < s.out && (least > s.low || most < s.high); row++ { // no zero is outside of these
			for block := range s.across {
				zero := int(s.zero(row, block))
				least, most = min(least, zero), max(most, zero)
			}
		}
		low, high = low-most, high-least
	}
	for _, b := range integerTypes() {
		if b.low <= low && high <= b.high {
			return b, true
		}
	}
	return integerBlocks{}, false
}

// fillBlocks writes rows as blocks.
func (s *scaled) fillBlocks(b integerBlocks, dst []byte, first, last int64) {
	values := make([]float32, s.in)
	size := b.dtype.Bytes(blockElements)
	for n := int(first); n < int(last); n++ {
		s.values(values, n)
		for k := 0; k < s.in; k, dst = k+blockElements, dst[size:] {
			group, zero := k/s.columns, float32(0)
			if s.zero != nil {
				zero = s.zero(n, group)
			}
			binary.LittleEndian.PutUint16(dst, floatToHalf(s.scale(n/s.rows*s.across+group)))
			b.pack(dst[2:size], values[k:k+blockElements], zero)
		}
	}
}

// pack writes the codes of a block: the fifth bits where there are such, then half bytes, of which the second half of the elements is in
// the upper bits; or bytes.
func (b integerBlocks) pack(to []byte, values []float32, zero float32) {
	if len(to) == blockElements {
		for i, v := range values {
			to[i] = byte(int8(v - zero))
		}
		return
	}
	halves := to[len(to)-blockHalf:]
	fifths := uint32(0)
	for i := range blockHalf {
		low, high := uint32(int(values[i]-zero)-b.low), uint32(int(values[blockHalf+i]-zero)-b.low)
		halves[i] = byte(low&15 | high<<4)
		fifths |= low>>4<<i | high>>4<<(blockHalf+i)
	}
	if len(to) > blockHalf {
		binary.LittleEndian.PutUint32(to, fifths)
	}
}

// fits is the first of the types whose blocks divide rows and groups of columns.
func (s *scaled) fits(names ...string) DType {
	for _, name := range names {
		own := ownType(name)
		if n := int(typeOf(own).elements); s.in%n == 0 && s.columns%n == 0 {
			return own
		}
	}
	return Other
}

// zeros is the type for a layer of codes of 4 bits with zeros beside them.
func (s *scaled) zeros() DType {
	if s.zero == nil || s.low == s.high || s.high-s.low > 15 || !s.hasHalves() {
		return Other
	}
	return s.fits("Q4_Z", "Q4_Z32")
}

// fillZeros writes rows as blocks: a scale in F16, the zero, half bytes.
func (s *scaled) fillZeros(own DType, dst []byte, first, last int64) {
	values, b := make([]float32, s.in), typeOf(own)
	for n := int(first); n < int(last); n++ {
		s.values(values, n)
		for k := 0; k < s.in; k, dst = k+int(b.elements), dst[b.bytes:] {
			group := k / s.columns
			binary.LittleEndian.PutUint16(dst, floatToHalf(s.scale(n/s.rows*s.across+group)))
			dst[2] = byte(int(s.zero(n, group)) - s.low)
			for i := range b.elements / 2 {
				dst[3+i] = byte(int(values[k+2*int(i)])-s.low) | byte(int(values[k+2*int(i)+1])-s.low)<<4
			}
		}
	}
}

// keptFP8: a scale in F32, and the codes. A block with a NaN has a scale that is NaN.
func (s *scaled) keptFP8() (DType, fillRows, bool) {
	own := s.fits("FP8", "FP8_32")
	n := int(typeOf(own).elements)
	return own, func(dst []byte, first, last int64) {
		for row := int(first); row < int(last); row++ {
			for k := 0; k < s.in; k, dst = k+n, dst[4+n:] {
				codes, scale := s.fp8[row*s.in+k:][:n], s.scale(row/s.rows*s.across+k/s.columns)
				if hasNaN(codes) {
					scale = float32(math.NaN())
				}
				binary.LittleEndian.PutUint32(dst, math.Float32bits(scale))
				copy(dst[4:], codes)
			}
		}
	}, own != Other
}

// hasNaN says whether one of the codes is one of E4M3's two NaNs.
func hasNaN(codes []byte) bool {
	return bytes.IndexByte(codes, 0x7f) >= 0 || bytes.IndexByte(codes, 0xff) >= 0
}

// keptFP4: E2M1 with scales of E4M3 and one number for all of them, or with exponents.
func (s *scaled) keptFP4() (DType, fillRows, bool) {
	switch {
	case s.rows == 1 && s.columns == 16 && s.in%64 == 0 && s.scaleType == "F8_E4M3":
		return ownType("NVFP4"), s.fillNVFP4, true
	case s.rows == 1 && s.columns == 32 && s.in%32 == 0 && s.scaleType == "U8" && s.number == 1:
		return BlockTypes()["MXFP4"], s.fillMXFP4, true
	}
	return Other, nil, false
}

// fillNVFP4 writes rows as blocks of 64: the number in F32, four scales, half bytes. A row whose scales have a NaN has it as the number.
func (s *scaled) fillNVFP4(dst []byte, first, last int64) {
	for row := int(first); row < int(last); row++ {
		codes, scales, number := s.fp4[row*s.in/2:][:s.in/2], s.scales[row*s.across:][:s.across], s.number
		if hasNaN(scales) {
			number = float32(math.NaN())
		}
		for k := 0; k < s.in; k, dst = k+64, dst[40:] {
			binary.LittleEndian.PutUint32(dst, math.Float32bits(number))
			copy(dst[4:8], scales[k/16:])
			copy(dst[8:40], codes[k/2:])
		}
	}
}

// fillMXFP4 writes rows as the blocks of GGUF.
func (s *scaled) fillMXFP4(dst []byte, first, last int64) {
	for row := int(first); row < int(last); row++ {
		codes, scales := s.fp4[row*s.in/2:][:s.in/2], s.scales[row*s.across:][:s.across]
		for k, exponent := range scales {
			mxfp4Block(dst, exponent, codes[k*blockHalf:][:blockHalf])
			dst = dst[1+blockHalf:]
		}
	}
}

// mxfp4Block writes a block of GGUF: the exponent, and half bytes, of which the second half of the elements is in the upper bits. In codes
// neighbors share a byte.
func mxfp4Block(dst []byte, exponent byte, codes []byte) {
	element := func(i int) byte { return codes[i/2] >> (i % 2 * 4) & 15 }
	dst[0] = exponent
	for i := range blockHalf {
		dst[1+i] = element(i) | element(blockHalf+i)<<4
	}
}
