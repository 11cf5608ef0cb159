#ifndef MILLRACE_SAMPLE_WEIGHTS_H
#define MILLRACE_SAMPLE_WEIGHTS_H

#include <stdint.h>

// Instruction sets, the least first. A processor that has one has those before it.
enum { MILLRACE_WEIGHTS_PLAIN = 0, MILLRACE_WEIGHTS_AVX2 = 1, MILLRACE_WEIGHTS_AVX512 = 2 };

// The most that this processor has.
int millrace_weights_best(void);

enum {
  MILLRACE_WEIGHTS_BLOCK = 256,        // tokens between two sums
  MILLRACE_WEIGHTS_BUCKETS = 45 * 64,  // of 1/64 octave each; the last one holds everything below
};

// millrace_weight_sums returns the sum of the weights of n tokens, weigh((top - logits[i]) * inverse) of
// weights.go. If sums is not NULL, it gets the sum before each block of tokens. If mass is not NULL, each
// weight is added to the element of its bucket.
uint64_t millrace_weight_sums(int isa, const float* logits, int64_t n, float top, float inverse,
                              uint64_t* sums, uint64_t* mass);

#endif
