package weights

import (
	"encoding/binary"
	"math"
)

// integerBlocks is a type of GGUF's blocks whose elements are scale x integer, with an F16 as the scale. Formulae: dequantize_row_q4_0, _q5_0
// and _q8_0 of ggml-quants.c.
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

// blocks is the type that keeps a layer of integers as it is: each less its zero within the range, groups of whole blocks, and scales that F16 has
// with 11 significant bits, as it would have the products. false: none does.
func (s *scaled) blocks() (integerBlocks, bool) {
	if s.low == s.high || s.group != nil || s.in%blockElements != 0 || s.columns%blockElements != 0 {
		return integerBlocks{}, false
	}
	for i := range (s.out + s.rows - 1) / s.rows * s.across {
		if x := math.Abs(float64(s.scale(i))); x != 0 && !(x >= leastHalf && x <= mostHalf) {
			return integerBlocks{}, false
		}
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
	bytes := b.dtype.Bytes(blockElements)
	for n := int(first); n < int(last); n++ {
		s.values(values, n)
		for k := 0; k < s.in; k, dst = k+blockElements, dst[bytes:] {
			group, zero := k/s.columns, float32(0)
			if s.zero != nil {
				zero = s.zero(n, group)
			}
			binary.LittleEndian.PutUint16(dst, floatToHalf(s.scale(n/s.rows*s.across+group)))
			b.pack(dst[2:bytes], values[k:k+blockElements], zero)
		}
	}
}

// pack writes the codes of a block: the fifth bits where there are such, then half bytes, of which the second half of the elements is in the upper bits;
// or bytes.
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
