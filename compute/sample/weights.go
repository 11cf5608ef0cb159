package sample

// #include "weights.h"
import "C"

import "unsafe"

const (
	// drawBlock is the number of tokens between two of Scratch.sums.
	drawBlock = C.MILLRACE_WEIGHTS_BLOCK
	// cutBuckets of 1/64 octave each cover weights down to 2^-64; the last one holds everything below.
	cutBuckets = C.MILLRACE_WEIGHTS_BUCKETS
)

// instructions are those that weightSums uses, of drawPlain up to the best that this processor has.
var instructions = int(C.millrace_weights_best())

// drawPlain are the instructions of every processor.
const drawPlain = C.MILLRACE_WEIGHTS_PLAIN

// weightSums returns the sum of the weights of all tokens, added in their order. If sums is not nil, it gets the sum before each block of
// drawBlock tokens. If mass is not nil, each weight is added to the element of its bucket. The result is bit for bit that of a loop that
// calls weight, in about half of the time: a vocabulary has up to 262,144 tokens.
func weightSums(isa int, logits []float32, top, temperature float32, sums []float64, mass *[cutBuckets]float64) float64 {
	return float64(C.millrace_weight_sums(C.int(isa), (*C.uint64_t)(unsafe.Pointer(&exp2Neg[0])),
		(*C.float)(unsafe.Pointer(unsafe.SliceData(logits))), C.int64_t(len(logits)), C.float(top), C.float(temperature),
		(*C.double)(unsafe.Pointer(unsafe.SliceData(sums))), (*C.double)(unsafe.Pointer(mass))))
}
