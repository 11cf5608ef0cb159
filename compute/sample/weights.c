#include "weights.h"

#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

// No product is fused with a sum: see expNeg in exp.go, which says where the formula is from.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define LN2 0.693147180559945309417232121458
#define FAR 700.0  // nats, from which a weight is 0

static const float buckets_per_nat = (float)(64 / LN2), last_bucket = MILLRACE_WEIGHTS_BUCKETS - 1;

// A weigher writes the weights of n tokens, and their buckets.
typedef void weigher(const uint64_t* exp2_neg, const float* logits, int64_t n, float top,
                     float temperature, double* weights, int32_t* buckets);

static void plain(const uint64_t* exp2_neg, const float* logits, int64_t n, float top,
                  float temperature, double* weights, int32_t* buckets) {
  for (int64_t i = 0; i < n; i++) {
    const float key = (top - logits[i]) / temperature, place = key * buckets_per_nat;
    buckets[i] = (int32_t)(place < last_bucket ? place : last_bucket);
    const double x = key, near = x < FAR ? x : FAR;
    const int64_t k = (int64_t)(near * (64 / LN2));
    const double r = (double)k * (LN2 / 64) - near;
    double p = 0.5 + r * (1.0 / 6);
    p = 1 + r * p;
    p = 1 + r * p;
    const uint64_t bits = exp2_neg[k & 63] - ((uint64_t)(k >> 6) << 52);
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    weights[i] = x < FAR ? p * scale : 0;
  }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void avx2(const uint64_t* exp2_neg, const float* logits,
                                                 int64_t n, float top, float temperature,
                                                 double* weights, int32_t* buckets) {
  const __m256d one = _mm256_set1_pd(1), far = _mm256_set1_pd(FAR);
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m128 key = _mm_div_ps(_mm_sub_ps(_mm_set1_ps(top), _mm_loadu_ps(logits + i)),
                                  _mm_set1_ps(temperature));
    const __m128 place =
        _mm_min_ps(_mm_mul_ps(key, _mm_set1_ps(buckets_per_nat)), _mm_set1_ps(last_bucket));
    _mm_storeu_si128((__m128i*)(buckets + i), _mm_cvttps_epi32(place));
    const __m256d x = _mm256_cvtps_pd(key), near = _mm256_min_pd(x, far);
    const __m128i k = _mm256_cvttpd_epi32(_mm256_mul_pd(near, _mm256_set1_pd(64 / LN2)));
    const __m256d r =
        _mm256_sub_pd(_mm256_mul_pd(_mm256_cvtepi32_pd(k), _mm256_set1_pd(LN2 / 64)), near);
    __m256d p = _mm256_add_pd(_mm256_set1_pd(0.5), _mm256_mul_pd(r, _mm256_set1_pd(1.0 / 6)));
    p = _mm256_add_pd(one, _mm256_mul_pd(r, p));
    p = _mm256_add_pd(one, _mm256_mul_pd(r, p));
    const __m256i entry =
        _mm256_i32gather_epi64((const long long*)exp2_neg, _mm_and_si128(k, _mm_set1_epi32(63)), 8);
    const __m256i halvings = _mm256_slli_epi64(_mm256_cvtepi32_epi64(_mm_srai_epi32(k, 6)), 52);
    const __m256d weight = _mm256_mul_pd(p, _mm256_castsi256_pd(_mm256_sub_epi64(entry, halvings)));
    _mm256_storeu_pd(weights + i, _mm256_and_pd(weight, _mm256_cmp_pd(x, far, _CMP_LT_OQ)));
  }
  plain(exp2_neg, logits + i, n - i, top, temperature, weights + i, buckets + i);
}

// The table is in eight registers, since the processor gathers one entry after the other.
__attribute__((target("avx512f,avx512vl"))) static void avx512(const uint64_t* exp2_neg,
                                                               const float* logits, int64_t n,
                                                               float top, float temperature,
                                                               double* weights, int32_t* buckets) {
  const __m512d one = _mm512_set1_pd(1), far = _mm512_set1_pd(FAR);
  __m512i table[8];
  for (int t = 0; t < 8; t++) table[t] = _mm512_loadu_si512(exp2_neg + 8 * t);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 key =
        _mm256_div_ps(_mm256_sub_ps(_mm256_set1_ps(top), _mm256_loadu_ps(logits + i)),
                      _mm256_set1_ps(temperature));
    const __m256 place = _mm256_min_ps(_mm256_mul_ps(key, _mm256_set1_ps(buckets_per_nat)),
                                       _mm256_set1_ps(last_bucket));
    _mm256_storeu_si256((__m256i*)(buckets + i), _mm256_cvttps_epi32(place));
    const __m512d x = _mm512_cvtps_pd(key), near = _mm512_min_pd(x, far);
    const __m256i k = _mm512_cvttpd_epi32(_mm512_mul_pd(near, _mm512_set1_pd(64 / LN2)));
    const __m512d r =
        _mm512_sub_pd(_mm512_mul_pd(_mm512_cvtepi32_pd(k), _mm512_set1_pd(LN2 / 64)), near);
    __m512d p = _mm512_add_pd(_mm512_set1_pd(0.5), _mm512_mul_pd(r, _mm512_set1_pd(1.0 / 6)));
    p = _mm512_add_pd(one, _mm512_mul_pd(r, p));
    p = _mm512_add_pd(one, _mm512_mul_pd(r, p));
    const __m512i at =
        _mm512_cvtepi32_epi64(k);  // a permutation of two registers reads the lowest 4 bits
    const __mmask8 bit4 = _mm512_test_epi64_mask(at, _mm512_set1_epi64(16)),
                   bit5 = _mm512_test_epi64_mask(at, _mm512_set1_epi64(32));
    const __m512i low =
        _mm512_mask_blend_epi64(bit4, _mm512_permutex2var_epi64(table[0], at, table[1]),
                                _mm512_permutex2var_epi64(table[2], at, table[3]));
    const __m512i high =
        _mm512_mask_blend_epi64(bit4, _mm512_permutex2var_epi64(table[4], at, table[5]),
                                _mm512_permutex2var_epi64(table[6], at, table[7]));
    const __m512i entry = _mm512_mask_blend_epi64(bit5, low, high);
    const __m512i halvings = _mm512_slli_epi64(_mm512_srai_epi64(at, 6), 52);
    const __m512d weight = _mm512_mul_pd(p, _mm512_castsi512_pd(_mm512_sub_epi64(entry, halvings)));
    _mm512_storeu_pd(weights + i,
                     _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x, far, _CMP_LT_OQ), weight));
  }
  plain(exp2_neg, logits + i, n - i, top, temperature, weights + i, buckets + i);
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
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
    return MILLRACE_WEIGHTS_AVX512;
  if (__builtin_cpu_supports("avx2")) return MILLRACE_WEIGHTS_AVX2;
#endif
  return MILLRACE_WEIGHTS_PLAIN;
}

double millrace_weight_sums(int isa, const uint64_t* exp2_neg, const float* logits, int64_t n,
                            float top, float temperature, double* sums, double* mass) {
  weigher* weigh = weigher_of(isa);
  double weights[MILLRACE_WEIGHTS_BLOCK], total = 0;
  int32_t buckets[MILLRACE_WEIGHTS_BLOCK];
  for (int64_t at = 0; at < n; at += MILLRACE_WEIGHTS_BLOCK) {
    const int64_t some = n - at < MILLRACE_WEIGHTS_BLOCK ? n - at : MILLRACE_WEIGHTS_BLOCK;
    weigh(exp2_neg, logits + at, some, top, temperature, weights, buckets);
    if (sums) *sums++ = total;
    for (int64_t i = 0; i < some; i++) {
      total += weights[i];
      if (mass) mass[buckets[i]] += weights[i];
    }
  }
  return total;
}
