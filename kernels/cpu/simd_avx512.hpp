// The Target of AVX-512 without BF16; included after the compiler was switched
// to it.
#ifndef MILLRACE_CPU_SIMD_AVX512_HPP
#define MILLRACE_CPU_SIMD_AVX512_HPP

#include <immintrin.h>

#include "attention_tile.hpp"

namespace millrace::cpu {
namespace {

struct Avx512Ops {
  static constexpr int kLanes = 16;
  static constexpr int kQueries = 8, kSums = 16;
  using Vector = __m512;
  typedef int32_t Ints __attribute__((vector_size(64)));

  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
  static Vector set1(float x) { return _mm512_set1_ps(x); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static bool any_greater(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  static float sum(Vector x) { return _mm512_reduce_add_ps(x); }
  static float largest(Vector x) { return _mm512_reduce_max_ps(x); }
  static float sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

  struct Pair {
    float even, odd;
  };
  static constexpr int kParts = 2;
  using Packed = Vector;

  static Pair make_pair(float even, float odd) { return {even, odd}; }
  template <int kPart>
  static Vector splat(const Pair& p) {
    return set1(kPart == 0 ? p.even : p.odd);
  }
  template <int kPart>
  static Packed load_packed(const uint32_t* p) {
    const __m512i x = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(kPart == 0 ? _mm512_slli_epi32(x, 16)
                                          : _mm512_and_si512(x, _mm512_set1_epi32(~0xffff)));
  }
  static Vector dot(Vector a, Vector b, Vector sum) { return fma(a, b, sum); }
  static Vector store_pairs(Vector p, Pair* out) {
    store(&out->even, p);
    return p;
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
