// The Target of AVX2, but for pairs; included after the compiler was switched to it.
#ifndef MILLRACE_CPU_MACHINE_SIMD_AVX2_HPP
#define MILLRACE_CPU_MACHINE_SIMD_AVX2_HPP

#include <immintrin.h>

#include <cstdint>

namespace millrace::cpu {
namespace {

struct Avx2Ops {
  static constexpr int kLanes = 8;
  static constexpr int kQueries = 4, kSums = 8;
  using Vector = __m256;
  typedef int32_t Ints __attribute__((vector_size(32)));

  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
  static Vector set1(float x) { return _mm256_set1_ps(x); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static bool any_greater(Vector a, Vector b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
  }
  static float sum(Vector x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
  }
  static float largest(Vector x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
  }
  static float sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
};

}  // namespace
}  // namespace millrace::cpu

#endif
