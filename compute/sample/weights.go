package sample

// #include "weights.h"
import "C"

import (
	"math"
	"math/bits"
	"unsafe"
)

const (
	// whole is the weight of the likeliest token. 2^19 of them have a sum.
	whole = 1 << wholeBits
	// wholeBits is the number of octaves below the likeliest token down to which a token has a weight.
	wholeBits = 44
	// farOctaves is where weights end, in octaves below the likeliest token: the last float32 before 45.
	farOctaves = 45 - 1.0/(1<<18)
	// octavesPerNat as a float32 makes octaves of a distance.
	octavesPerNat = 1 / math.Ln2
	// bucketsPerOctave of cutBuckets.
	bucketsPerOctave = 64
	// drawBlock is the number of tokens between two of Scratch.sums.
	drawBlock = C.MILLRACE_WEIGHTS_BLOCK
	// cutBuckets of 1/64 octave each: the last one holds everything below.
	cutBuckets = C.MILLRACE_WEIGHTS_BUCKETS
)

// weigh returns e^-distance of a token that is a distance >= 0 in nats below the likeliest one, in units of 2^-44: its probability up to a
// common factor. It is 0 for NaN and from 31 nats on.
//
// Weights are integers, so that a sum of them does not depend on its order: a device that adds a vocabulary up in parts draws the token
// that this package draws. Each operation is rounded on its own (the conversions keep the compiler from fusing), and none needs float64,
// which some GPUs lack. 2^-f, 0 <= f < 1, is a polynomial through its value at the Chebyshev nodes with 1 at 0; the relative error is
// below 2e-7, as much as that of a float32 distance of 3 nats.
func weigh(distance float32) uint64 {
	x := float32(distance * float32(octavesPerNat))
	if !(x < farOctaves) {
		return 0
	}
	k := int32(x)
	f := x - float32(k)
	p := float32(f * 0x1.e2025cp-14)
	p = float32(f * (-0x1.529848p-10 + p))
	p = float32(f * (0x1.3a79c4p-7 + p))
	p = float32(f * (-0x1.c6a652p-5 + p))
	p = float32(f * (0x1.ebfba8p-3 + p))
	p = float32(f * (-0x1.62e43p-1 + p))
	return uint64(float32((1+p)*(1<<30))) << (wholeBits - 30) >> k
}

// bucket is that of a distance.
func bucket(distance float32) int {
	return int(min(float32(distance*float32(octavesPerNat)), farOctaves) * bucketsPerOctave)
}

// inverse returns 1/temperature, by which distances are multiplied. It is at most 2^100: the distance of equal logits is 0 then, not NaN.
func inverse(temperature float32) float32 { return min(1/temperature, 0x1p100) }

// part returns the share of a sum of weights, rounded down; 0 <= share < 1 as a fraction of 2^64.
func part(sum, share uint64) uint64 {
	hi, _ := bits.Mul64(sum, share)
	return hi
}

// fraction returns 0 <= share < 1 as a fraction of 2^64.
func fraction(share float32) uint64 { return uint64(float64(share) * (1 << 64)) }

// instructions are those that weightSums uses, of drawPlain up to the best that this processor has.
var instructions = int(C.millrace_weights_best())

// drawPlain are the instructions of every processor.
const drawPlain = C.MILLRACE_WEIGHTS_PLAIN

// weightSums returns the sum of the weights of all tokens. If sums is not nil, it gets the sum before each block of drawBlock tokens. If
// mass is not nil, each weight is added to the element of its bucket. The weights are those of weigh, by vectors: a vocabulary has up to
// 262,144 tokens.
func weightSums(isa int, logits []float32, top, inverse float32, sums []uint64, mass *[cutBuckets]uint64) uint64 {
	return uint64(C.millrace_weight_sums(C.int(isa), (*C.float)(unsafe.Pointer(unsafe.SliceData(logits))), C.int64_t(len(logits)),
		C.float(top), C.float(inverse), (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(sums))), (*C.uint64_t)(unsafe.Pointer(mass))))
}
