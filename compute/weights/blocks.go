package weights

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"
)

// blockType is how GGUF stores the elements of a row: in blocks of a fixed
// number of elements.
type blockType struct {
	name     string
	elements int64 // per block
	bytes    int64
	dtype    DType                 // of what needs no decoding, else Other
	decode   func(dst, src []byte) // one block to F16
}

// blockTypes are the types that are read, by ggml's numbers (ggml_type in
// ggml.h). The blocks are those of ggml-common.h and the formulae those of
// dequantize_row_* in ggml-quants.c, github.com/ggml-org/llama.cpp.
var blockTypes = map[uint32]blockType{
	0:  {"F32", 1, 4, F32, nil},
	1:  {"F16", 1, 2, F16, nil},
	30: {"BF16", 1, 2, BF16, nil},
	2:  {"Q4_0", 32, 18, Other, decodeQ4_0},
	3:  {"Q4_1", 32, 20, Other, decodeQ4_1},
	6:  {"Q5_0", 32, 22, Other, decodeQ5_0},
	7:  {"Q5_1", 32, 24, Other, decodeQ5_1},
	8:  {"Q8_0", 32, 34, Other, decodeQ8_0},
	10: {"Q2_K", 256, 84, Other, decodeQ2K},
	11: {"Q3_K", 256, 110, Other, decodeQ3K},
	12: {"Q4_K", 256, 144, Other, decodeQ4K},
	13: {"Q5_K", 256, 176, Other, decodeQ5K},
	14: {"Q6_K", 256, 210, Other, decodeQ6K},
	16: {"IQ2_XXS", 256, 66, Other, decodeIQ2XXS},
	17: {"IQ2_XS", 256, 74, Other, decodeIQ2XS},
	18: {"IQ3_XXS", 256, 98, Other, decodeIQ3XXS},
	19: {"IQ1_S", 256, 50, Other, decodeIQ1S},
	20: {"IQ4_NL", 32, 18, Other, decodeIQ4NL},
	21: {"IQ3_S", 256, 110, Other, decodeIQ3S},
	22: {"IQ2_S", 256, 82, Other, decodeIQ2S},
	23: {"IQ4_XS", 256, 136, Other, decodeIQ4XS},
	29: {"IQ1_M", 256, 56, Other, decodeIQ1M},
	34: {"TQ1_0", 256, 54, Other, decodeTQ1},
	35: {"TQ2_0", 256, 66, Other, decodeTQ2},
	39: {"MXFP4", 32, 17, Other, decodeMXFP4},
}

// blockNames lists the types that are read, in the order of ggml's numbers.
func blockNames() string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(blockTypes)) {
		names = append(names, blockTypes[kind].name)
	}
	return strings.Join(names, ", ")
}

// otherTypes names what is not read, for messages.
func otherTypes(kind uint32) string {
	names := map[uint32]string{9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 40: "NVFP4"}
	return names[kind]
}

// decodeQ8_0: d F16, 32 int8. x = d q.
func decodeQ8_0(dst, src []byte) {
	d := readHalf(src)
	for i, q := range src[2:34] {
		putHalf(dst, i, d*float32(int8(q)))
	}
}

// decodeQ4_0: d F16, 32 nibbles: the low ones are elements 0 to 15, the high
// ones 16 to 31. x = d (q - 8).
func decodeQ4_0(dst, src []byte) {
	d := readHalf(src)
	for i, q := range src[2:18] {
		putHalf(dst, i, d*float32(int(q&15)-8))
		putHalf(dst, i+16, d*float32(int(q>>4)-8))
	}
}

// decodeQ4_1: d and m F16, nibbles as of Q4_0. x = d q + m.
func decodeQ4_1(dst, src []byte) {
	d, m := readHalf(src), readHalf(src[2:])
	for i, q := range src[4:20] {
		// The conversions keep products from being fused into sums, here and below.
		putHalf(dst, i, float32(d*float32(q&15))+m)
		putHalf(dst, i+16, float32(d*float32(q>>4))+m)
	}
}

// decodeQ5_0: d F16, the fifth bits of 32 elements, nibbles as of Q4_0. x = d (q - 16).
func decodeQ5_0(dst, src []byte) {
	d, high := readHalf(src), binary.LittleEndian.Uint32(src[2:])
	for i, q := range src[6:22] {
		putHalf(dst, i, d*float32(int(q&15)|int(high>>i&1<<4)-16))
		putHalf(dst, i+16, d*float32(int(q>>4)|int(high>>(i+16)&1<<4)-16))
	}
}

// decodeQ5_1: d and m F16, then as Q5_0. x = d q + m.
func decodeQ5_1(dst, src []byte) {
	d, m, high := readHalf(src), readHalf(src[2:]), binary.LittleEndian.Uint32(src[4:])
	for i, q := range src[8:24] {
		putHalf(dst, i, float32(d*float32(uint32(q&15)|high>>i&1<<4))+m)
		putHalf(dst, i+16, float32(d*float32(uint32(q>>4)|high>>(i+16)&1<<4))+m)
	}
}

// pair is the two bits of element e of 256: of each 32 bytes the lowest pairs come first.
func pair(packed []byte, e int) byte { return packed[e/128*32+e%32] >> (e % 128 / 32 * 2) & 3 }

// decodeQ2K: for each 16 elements a scale and a minimum of 4 bits, 256 pairs of bits, d and m F16. x = (d scale) q - (m minimum).
func decodeQ2K(dst, src []byte) {
	d, m := readHalf(src[80:]), readHalf(src[82:])
	for e := range 256 {
		s := src[e/16]
		putHalf(dst, e, float32(d*float32(s&15)*float32(pair(src[16:80], e)))-float32(m*float32(s>>4)))
	}
}

// decodeQ3K: the third bits of 256 elements, bit k of byte i of element 32 k + i, 256 pairs of bits, 16 scales of 6 bits, d F16.
// x = (d (scale - 32)) (q - 4).
func decodeQ3K(dst, src []byte) {
	d, low, high := readHalf(src[108:]), src[96:104], src[104:108]
	for e := range 256 {
		j := e / 16
		scale := low[j%8]>>(j/8*4)&15 | high[j%4]>>(j/4*2)&3<<4
		q := int(pair(src[32:96], e)) | int(src[e%32]>>(e/32)&1<<2) - 4
		putHalf(dst, e, d*float32(int(scale)-32)*float32(q))
	}
}

// decodeQ5K: as Q4_K, with the fifth bits of 256 elements between scales and nibbles: bit k of byte i of element 32 k + i.
func decodeQ5K(dst, src []byte) {
	d, m := readHalf(src), readHalf(src[2:])
	scales, high, quants := src[4:16], src[16:48], src[48:176]
	for group := range 8 {
		scale, minimum := scaleAndMinimum(scales, group)
		ds, dm := d*float32(scale), m*float32(minimum)
		for i, q := range quants[32*(group/2) : 32*(group/2)+32] {
			putHalf(dst, 32*group+i, float32(ds*float32(q>>(group%2*4)&15|high[i]>>group&1<<4))-dm)
		}
	}
}

// decodeTQ1: five values of -1, 0 and 1 in a byte: of 32 bytes, of 16 bytes, and four in each of 4 bytes; d F16. Value n of a byte
// is the first digit of base 3 of byte 3^n / 256. x = d value.
func decodeTQ1(dst, src []byte) {
	d, e := readHalf(src[52:]), 0
	digits := func(packed []byte, n int) {
		power := byte(1)
		for range n {
			for _, q := range packed {
				putHalf(dst, e, d*float32(int(uint16(q*power)*3>>8)-1))
				e++
			}
			power *= 3
		}
	}
	digits(src[:32], 5)
	digits(src[32:48], 5)
	digits(src[48:52], 4)
}

// decodeTQ2: 256 pairs of bits, d F16. x = d (q - 1).
func decodeTQ2(dst, src []byte) {
	d := readHalf(src[64:])
	for e := range 256 {
		putHalf(dst, e, d*float32(int(pair(src, e))-1))
	}
}

// fp4 are the values of E2M1, doubled.
var fp4 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// decodeMXFP4: an exponent E8M0, nibbles as of Q4_0 for values of E2M1. x = 2^(exponent - 127) value.
func decodeMXFP4(dst, src []byte) {
	half := math.Float32frombits(0x00200000 << src[0]) // of the scale, below the normal numbers
	if src[0] >= 2 {
		half = math.Float32frombits(uint32(src[0]-1) << 23)
	}
	levels(dst, src[1:17], half, &fp4)
}

// levels decodes nibbles as of Q4_0 that choose levels.
func levels(dst, src []byte, d float32, of *[16]int8) {
	for i, q := range src {
		putHalf(dst, i, d*float32(of[q&15]))
		putHalf(dst, i+len(src), d*float32(of[q>>4]))
	}
}

// decodeQ4K: d and m F16, 8 scales and 8 minima of 6 bits, 256 nibbles: of each
// 32 bytes the low ones come first. x = (d scale) q - (m minimum).
func decodeQ4K(dst, src []byte) {
	d, m := readHalf(src), readHalf(src[2:])
	scales, quants := src[4:16], src[16:144]
	for group := range 8 {
		scale, minimum := scaleAndMinimum(scales, group)
		ds, dm := d*float32(scale), m*float32(minimum)
		shift := 4 * (group % 2)
		for i, q := range quants[32*(group/2) : 32*(group/2)+32] {
			putHalf(dst, 32*group+i, float32(ds*float32(q>>shift&15))-dm)
		}
	}
}

// scaleAndMinimum unpacks pair j: the first four are the low 6 bits of bytes j
// and j+4, whose upper 2 bits belong to the last four.
func scaleAndMinimum(packed []byte, j int) (scale, minimum byte) {
	if j < 4 {
		return packed[j] & 63, packed[j+4] & 63
	}
	return packed[j+4]&15 | packed[j-4]>>6<<4, packed[j+4]>>4 | packed[j]>>6<<4
}

// decodeQ6K: 128 bytes of low nibbles, 64 of upper bit pairs, 16 int8 scales,
// d F16. Each half of 128 elements is four runs of 32. x = (d scale) (q - 32).
func decodeQ6K(dst, src []byte) {
	d := halfToFloat(binary.LittleEndian.Uint16(src[208:]))
	scales := src[192:208]
	for half := range 2 {
		low, high := src[64*half:64*half+64], src[128+32*half:128+32*half+32]
		for run := range 4 {
			for i := range 32 {
				q := low[32*(run%2)+i]>>(4*(run/2))&15 | high[i]>>(2*run)&3<<4
				scale := d * float32(int8(scales[8*half+2*run+i/16]))
				putHalf(dst, 128*half+32*run+i, scale*float32(int(q)-32))
			}
		}
	}
}
