package weights

import "encoding/binary"

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
func blockTypes(kind uint32) (blockType, bool) {
	switch kind {
	case 0:
		return blockType{"F32", 1, 4, F32, nil}, true
	case 1:
		return blockType{"F16", 1, 2, F16, nil}, true
	case 30:
		return blockType{"BF16", 1, 2, BF16, nil}, true
	case 2:
		return blockType{"Q4_0", 32, 18, Other, decodeQ4_0}, true
	case 8:
		return blockType{"Q8_0", 32, 34, Other, decodeQ8_0}, true
	case 12:
		return blockType{"Q4_K", 256, 144, Other, decodeQ4K}, true
	case 14:
		return blockType{"Q6_K", 256, 210, Other, decodeQ6K}, true
	}
	return blockType{}, false
}

// otherTypes names what is not read, for messages.
func otherTypes(kind uint32) string {
	names := map[uint32]string{
		3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K",
		16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
		24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
	}
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
			// The conversion keeps the product from being fused into the difference.
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
