package weights

import (
	_ "embed"
	"encoding/binary"
	"math/bits"
)

// The IQ types choose the magnitudes of neighboring elements together, from a grid of points: ggml's tables iq2xxs_grid, iq2xs_grid,
// iq2s_grid, iq3xxs_grid, iq3s_grid and iq1s_grid, one byte a coordinate. scripts/fixtures/make_block_types.py writes the file from
// the tables of gguf-py.
//
//go:embed grids.bin
var grids []byte

const (
	gridIQ2XXS = 0
	gridIQ2XS  = gridIQ2XXS + 256*8
	gridIQ2S   = gridIQ2XS + 512*8
	gridIQ3XXS = gridIQ2S + 1024*8
	gridIQ3S   = gridIQ3XXS + 256*4
	gridIQ1S   = gridIQ3S + 512*4
	gridsEnd   = gridIQ1S + 2048*8
)

// point writes the magnitudes of a point of a grid to elements e and after, as d times each, negative where signs has a bit.
func point(dst []byte, e int, d float32, magnitudes []byte, signs byte) {
	for k, m := range magnitudes {
		x := d * float32(m)
		if signs>>k&1 != 0 {
			x = -x
		}
		putHalf(dst, e+k, x)
	}
}

func eight(grid, i int) []byte { return grids[grid+8*i : grid+8*i+8] }
func four(grid, i int) []byte  { return grids[grid+4*i : grid+4*i+4] }

// evenSigns completes seven signs by an eighth, so that an even number is negative.
func evenSigns(seven uint32) byte {
	s := byte(seven & 127)
	return s | byte(bits.OnesCount8(s)&1)<<7
}

// nibble is the i-th of 4 bits, the low ones of a byte first.
func nibble(packed []byte, i int) byte { return packed[i/2] >> (i % 2 * 4) & 15 }

// decodeIQ2XXS: d F16, for each 32 elements four bytes that choose points of 8, and 32 bits: four times seven signs, and a scale.
// x = d (1/2 + scale) / 4 magnitude.
func decodeIQ2XXS(dst, src []byte) {
	d := readHalf(src)
	for g := range 8 {
		choice := src[2+8*g : 10+8*g]
		rest := binary.LittleEndian.Uint32(choice[4:])
		db := d * (0.5 + float32(rest>>28)) * 0.25
		for l, i := range choice[:4] {
			point(dst, 32*g+8*l, db, eight(gridIQ2XXS, int(i)), evenSigns(rest>>(7*l)))
		}
	}
}

// decodeIQ2XS: d F16, for each 8 elements 9 bits that choose a point and seven signs, 16 scales of 4 bits. x as of IQ2_XXS.
func decodeIQ2XS(dst, src []byte) {
	d, scales := readHalf(src), src[66:74]
	for l := range 32 {
		q := binary.LittleEndian.Uint16(src[2+2*l:])
		db := d * (0.5 + float32(nibble(scales, l/2))) * 0.25
		point(dst, 8*l, db, eight(gridIQ2XS, int(q&511)), evenSigns(uint32(q>>9)))
	}
}

// decodeIQ2S: d F16, for each 8 elements the low bits of a choice, then eight signs, then two high bits, then 16 scales of 4 bits. x as of IQ2_XXS.
func decodeIQ2S(dst, src []byte) {
	d, high, scales := readHalf(src), src[66:74], src[74:82]
	for l := range 32 {
		i := int(src[2+l]) | int(high[l/4]>>(l%4*2)&3)<<8
		db := d * (0.5 + float32(nibble(scales, l/2))) * 0.25
		point(dst, 8*l, db, eight(gridIQ2S, i), src[34+l])
	}
}

// decodeIQ3XXS: d F16, for each 4 elements a choice, for each 32 four times seven signs, and a scale. x = d (1/2 + scale) / 2 magnitude.
func decodeIQ3XXS(dst, src []byte) {
	d := readHalf(src)
	for g := range 8 {
		rest := binary.LittleEndian.Uint32(src[66+4*g:])
		db := d * (0.5 + float32(rest>>28)) * 0.5
		for n := range 8 {
			signs := evenSigns(rest>>(n/2*7)) >> (n % 2 * 4)
			point(dst, 32*g+4*n, db, four(gridIQ3XXS, int(src[2+8*g+n])), signs)
		}
	}
}

// decodeIQ3S: d F16, for each 4 elements the low bits of a choice, then the ninth bits, then the signs, then 8 scales of 4 bits.
// x = d (1 + 2 scale) magnitude.
func decodeIQ3S(dst, src []byte) {
	d, high, signs, scales := readHalf(src), src[66:74], src[74:106], src[106:110]
	for n := range 64 {
		i := int(src[2+n]) | int(high[n/8]>>(n%8)&1)<<8
		db := d * float32(1+2*int(nibble(scales, n/8)))
		point(dst, 4*n, db, four(gridIQ3S, i), signs[n/2]>>(n%2*4))
	}
}

// shifted writes a point of -1, 0 and 1, each with the same small shift.
func shifted(dst []byte, e int, d float32, i int, down bool) {
	delta := float32(0.125)
	if down {
		delta = -delta
	}
	for k, v := range eight(gridIQ1S, i) {
		putHalf(dst, e+k, d*(float32(int8(v))+delta))
	}
}

// decodeIQ1S: d F16, for each 8 elements the low bits of a choice, for each 32 their high bits, a scale of 3 bits and the shift's sign.
// x = d (2 scale + 1) (value + shift).
func decodeIQ1S(dst, src []byte) {
	d := readHalf(src)
	for g := range 8 {
		high := binary.LittleEndian.Uint16(src[34+2*g:])
		dl := d * float32(2*int(high>>12&7)+1)
		for l := range 4 {
			shifted(dst, 32*g+8*l, dl, int(src[2+4*g+l])|int(high>>(3*l)&7)<<8, high&0x8000 != 0)
		}
	}
}

// decodeIQ1M: for each 8 elements the low bits of a choice, then three high bits and the shift's sign, then 16 scales of 3 bits in four words, whose upper
// 4 bits are d. x as of IQ1_S.
func decodeIQ1M(dst, src []byte) {
	var words [4]uint16
	half := uint16(0)
	for i := range words {
		words[i] = binary.LittleEndian.Uint16(src[48+2*i:])
		half |= words[i] >> 12 << (4 * i)
	}
	d := halfToFloat(half)
	for n := range 32 {
		scale, high := words[n/8]>>(n/2%4*3)&7, nibble(src[32:48], n)
		shifted(dst, 8*n, d*float32(2*int(scale)+1), int(src[n])|int(high&7)<<8, high&8 != 0)
	}
}

// levels4 are the levels of IQ4_NL (kvalues_iq4nl).
var levels4 = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// decodeIQ4NL: d F16, nibbles as of Q4_0 that choose levels. x = d level.
func decodeIQ4NL(dst, src []byte) { levels(dst, src[2:18], readHalf(src), &levels4) }

// decodeIQ4XS: d F16, the upper 2 bits and the lower 4 bits of 8 scales, and for each 32 elements nibbles as of IQ4_NL. x = d (scale - 32) level.
func decodeIQ4XS(dst, src []byte) {
	d, high := readHalf(src), binary.LittleEndian.Uint16(src[2:])
	for g := range 8 {
		scale := int(nibble(src[4:8], g)) | int(high>>(2*g)&3)<<4
		levels(dst[64*g:], src[8+16*g:24+16*g], d*float32(scale-32), &levels4)
	}
}
