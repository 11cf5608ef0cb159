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
  static constexpr int kQueries = 8, kKeyVectors = 2, kDimVectors = 2;
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
  static Vector store_probabilities(Vector p, Pair* out) {
    store(&out->even, p);
    return p;
  }

  // Four pairs of every fourth token from `block` on, 128 bits each.
  static __m512i gather(const bf16* block, int head_dim) {
    const auto part = [](const bf16* p) { return reinterpret_cast<const __m128i*>(p); };
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128(part(block)));
    x = _mm512_inserti32x4(x, _mm_loadu_si128(part(block + 4 * head_dim)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128(part(block + 8 * head_dim)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128(part(block + 12 * head_dim)), 3);
  }

  static void pack_keys(const bf16* block, int head_dim, uint32_t* out) {
    for (int d = 0; d < head_dim; d += 8, out += 4 * kSlabTokens) {
      const __m512i a = gather(block + d, head_dim);  // tokens 0, 4, 8, 12
      const __m512i b = gather(block + head_dim + d, head_dim);
      const __m512i c = gather(block + 2 * head_dim + d, head_dim);
      const __m512i e = gather(block + 3 * head_dim + d, head_dim);
      // 4 x 4 pairs in each 128 bits change places: then these hold 4 tokens.
      const __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b);
      const __m512i ce0 = _mm512_unpacklo_epi32(c, e), ce1 = _mm512_unpackhi_epi32(c, e);
      _mm512_storeu_si512(out, _mm512_unpacklo_epi64(ab0, ce0));
      _mm512_storeu_si512(out + kSlabTokens, _mm512_unpackhi_epi64(ab0, ce0));
      _mm512_storeu_si512(out + 2 * kSlabTokens, _mm512_unpacklo_epi64(ab1, ce1));
      _mm512_storeu_si512(out + 3 * kSlabTokens, _mm512_unpackhi_epi64(ab1, ce1));
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
