#ifndef MILLRACE_SAMPLE_WEIGHTS_H
#define MILLRACE_SAMPLE_WEIGHTS_H

#include <stdint.h>

// Instruction sets, the least first. A processor that has one has those before it.
enum { MILLRACE_WEIGHTS_PLAIN = 0, MILLRACE_WEIGHTS_AVX2 = 1, MILLRACE_WEIGHTS_AVX512 = 2 };

// The most that this processor has.
int millrace_weights_best(void);

enum {
  MILLRACE_WEIGHTS_BLOCK = 256,        // tokens between two sums
  MILLRACE_WEIGHTS_BUCKETS = 64 * 64,  // of 1/64 octave each; the last one holds everything below
};

// millrace_weight_sums returns the sum of the weights e^-((top - logits[i]) / temperature) of n tokens,
// added in their order. If sums is not NULL, it gets the sum before each block of tokens. If mass is not
// NULL, each weight is added to the element of its bucket. exp2_neg has the bits of 2^(-j/64) for
// 0 <= j < 64. Each operation is rounded on its own, so all instruction sets give the same bits, and so
// does expNeg in Go.
double millrace_weight_sums(int isa, const uint64_t* exp2_neg, const float* logits, int64_t n,
                            float top, float temperature, double* sums, double* mass);

#endif
