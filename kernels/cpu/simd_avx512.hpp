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
  static constexpr int kQueries = 4, kKeyVectors = 4, kDimVectors = 4;
  using Vector = __m512;
  typedef int32_t Ints __attribute__((vector_size(64)));

  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
  static Vector set1(float x) { return _mm512_set1_ps(x); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static float sum(Vector x) { return _mm512_reduce_add_ps(x); }
  static float largest(Vector x) { return _mm512_reduce_max_ps(x); }
  static float sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

  struct Pair {
    float even, odd;
  };
  struct Splat {
    Vector even, odd;
  };
  using Packed = Splat;

  static Pair make_pair(float even, float odd) { return {even, odd}; }
  static Splat splat(Pair p) { return {set1(p.even), set1(p.odd)}; }
  static Packed load_packed(const uint32_t* p) {
    const __m512i x = _mm512_loadu_si512(p);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(~0xffff)))};
  }
  static Vector dot(Splat a, Packed b, Vector sum) {
    return fma(a.odd, b.odd, fma(a.even, b.even, sum));
  }
  static Vector store_probabilities(Vector p, Pair* out) {
    store(&out->even, p);
    return p;
  }

  // Sixteen tokens' vectors of sixteen pairs to sixteen pairs' vectors of tokens.
  static void transpose(__m512i (&x)[16]) {
    __m512i y[16];
    for (int i = 0; i < 8; ++i) {
      y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
      y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 2; ++k) {
        x[4 * i + 2 * k] = _mm512_unpacklo_epi64(y[4 * i + k], y[4 * i + 2 + k]);
        x[4 * i + 2 * k + 1] = _mm512_unpackhi_epi64(y[4 * i + k], y[4 * i + 2 + k]);
      }
    }
    // Now x[4i + c], 128-bit lane l: pair 4l + c of tokens 4i to 4i + 3.
    for (int i = 0; i < 2; ++i) {
      for (int c = 0; c < 4; ++c) {
        y[8 * i + c] = _mm512_shuffle_i32x4(x[8 * i + c], x[8 * i + 4 + c], 0x88);
        y[8 * i + 4 + c] = _mm512_shuffle_i32x4(x[8 * i + c], x[8 * i + 4 + c], 0xdd);
      }
    }
    // y[8i + c] holds lanes 0 and 2, y[8i + 4 + c] lanes 1 and 3, of both.
    for (int c = 0; c < 4; ++c) {
      x[c] = _mm512_shuffle_i32x4(y[c], y[8 + c], 0x88);
      x[8 + c] = _mm512_shuffle_i32x4(y[c], y[8 + c], 0xdd);
      x[4 + c] = _mm512_shuffle_i32x4(y[4 + c], y[12 + c], 0x88);
      x[12 + c] = _mm512_shuffle_i32x4(y[4 + c], y[12 + c], 0xdd);
    }
  }

  static void pack_keys(const bf16* block, int head_dim, uint32_t* out) {
    const int pairs = head_dim / 2;
    for (int k = 0; k < pairs; k += kLanes) {
      const int n = pairs - k < kLanes ? pairs - k : kLanes;
      const auto mask = static_cast<__mmask16>((1u << n) - 1);
      __m512i x[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        x[i] = _mm512_maskz_loadu_epi32(mask, block + i * head_dim + 2 * k);
      }
      transpose(x);
      for (int i = 0; i < n; ++i) _mm512_storeu_si512(out + (k + i) * kSlabTokens, x[i]);
    }
  }

  static void pack_values(const bf16* even, const bf16* odd, int head_dim, uint32_t* out) {
    for (int d = 0; d < head_dim; d += kLanes) {
      const auto mask = static_cast<__mmask16>(head_dim - d < kLanes ? 0x00ff : 0xffff);
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even + d));
      __m512i high = _mm512_setzero_si512();
      if (odd != nullptr) high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, odd + d));
      _mm512_storeu_si512(out + d, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
