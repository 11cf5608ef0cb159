// The Target of AVX-512, but for pairs; included after the compiler was switched to it.
#ifndef MILLRACE_CPU_MACHINE_SIMD_AVX512_HPP
#define MILLRACE_CPU_MACHINE_SIMD_AVX512_HPP

#include <immintrin.h>

#include <cstdint>

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
  // Halves to halves, as everywhere.
  static float sum(Vector x) {
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
  }
  static float largest(Vector x) { return _mm512_reduce_max_ps(x); }
  static float sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
};

}  // namespace
}  // namespace millrace::cpu

#endif
