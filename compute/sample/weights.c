#include "weights.h"

// No product is fused with a sum, so that all compilers and processors give the same bits.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("O3", "fp-contract=off")
#endif

#define OCTAVES_PER_NAT 1.44269504088896340735992468100
// 2^-f for 0 <= f < 1 as in weights.go.
#define C1 -0x1.62e43p-1f
#define C2 0x1.ebfba8p-3f
#define C3 -0x1.c6a652p-5f
#define C4 0x1.3a79c4p-7f
#define C5 -0x1.529848p-10f
#define C6 0x1.e2025cp-14f

union number {
  float value;
  int32_t bits;
};
static const union number FAR = {45 - 0x1p-18f};  // the last number below 45 octaves

// A weigher writes the weights of n tokens, and their buckets, and returns the sum.
typedef uint64_t weigher(const float* logits, int64_t n, float top, float inverse,
                         uint64_t* weights, int32_t* buckets);

// The compiler makes vectors of it, for each instruction set.
__attribute__((always_inline)) static inline uint64_t weigh(const float* logits, int64_t n,
                                                            float top, float inverse,
                                                            uint64_t* restrict weights,
                                                            int32_t* restrict buckets) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; i++) {
    // As integers the numbers from 0 on are in the order of floats, and compilers make vectors of min.
    const union number x = {(top - logits[i]) * inverse * (float)OCTAVES_PER_NAT};
    const int32_t is_near = -(x.bits < FAR.bits);
    const union number near = {.bits = x.bits < FAR.bits ? x.bits : FAR.bits};
    const int32_t k = (int32_t)near.value;
    const float f = near.value - (float)k;
    const float p = 1 + f * (C1 + f * (C2 + f * (C3 + f * (C4 + f * (C5 + f * C6)))));
    weights[i] = (uint64_t)((uint32_t)(int32_t)(p * 0x1p30f) & (uint32_t)is_near) << 14 >> k;
    buckets[i] = (int32_t)(near.value * 64);
    sum += weights[i];
  }
  return sum;
}

static uint64_t plain(const float* logits, int64_t n, float top, float inverse, uint64_t* weights,
                      int32_t* buckets) {
  return weigh(logits, n, top, inverse, weights, buckets);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static uint64_t avx2(const float* logits, int64_t n, float top,
                                                     float inverse, uint64_t* weights,
                                                     int32_t* buckets) {
  return weigh(logits, n, top, inverse, weights, buckets);
}

__attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512"))) static uint64_t avx512(
    const float* logits, int64_t n, float top, float inverse, uint64_t* weights, int32_t* buckets) {
  return weigh(logits, n, top, inverse, weights, buckets);
}
#endif

static weigher* weigher_of(int isa) {
#ifdef __x86_64__
  if (isa == MILLRACE_WEIGHTS_AVX512) return avx512;
  if (isa == MILLRACE_WEIGHTS_AVX2) return avx2;
#endif
  (void)isa;
  return plain;
}

int millrace_weights_best(void) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return MILLRACE_WEIGHTS_AVX512;
  if (__builtin_cpu_supports("avx2")) return MILLRACE_WEIGHTS_AVX2;
#endif
  return MILLRACE_WEIGHTS_PLAIN;
}

uint64_t millrace_weight_sums(int isa, const float* logits, int64_t n, float top, float inverse,
                              uint64_t* sums, uint64_t* mass) {
  weigher* weigh = weigher_of(isa);
  uint64_t weights[MILLRACE_WEIGHTS_BLOCK], total = 0;
  int32_t buckets[MILLRACE_WEIGHTS_BLOCK];
  for (int64_t at = 0; at < n; at += MILLRACE_WEIGHTS_BLOCK) {
    const int64_t some = n - at < MILLRACE_WEIGHTS_BLOCK ? n - at : MILLRACE_WEIGHTS_BLOCK;
    if (sums) *sums++ = total;
    total += weigh(logits + at, some, top, inverse, weights, buckets);
    for (int64_t i = 0; mass && i < some; i++) mass[buckets[i]] += weights[i];
  }
  return total;
}
