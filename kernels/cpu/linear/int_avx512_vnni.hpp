// How AVX-512 multiplies bytes; included after the compiler was switched to it.
#ifndef MILLRACE_CPU_LINEAR_INT_AVX512_VNNI_HPP
#define MILLRACE_CPU_LINEAR_INT_AVX512_VNNI_HPP

#include <immintrin.h>

#include "cpu/linear/blocks.hpp"

namespace millrace::cpu {
namespace {

struct Vnni {
  static constexpr int kLanes = 16;
  // 28 sums, 2 weights, an operand. Those of int4 share registers with halves of bytes and a
  // mask, and are faster than lower tiles that do not.
  static constexpr int kRows8 = 14, kRows4 = 14;
  static constexpr int kBlockRows = 8;  // 8 sums, 8 totals, and the codes of a unit
  static constexpr int kOffset = 128;
  using Bytes = __m512i;
  using Ints = Math<kLanes>::Ints;
  using Floats = Math<kLanes>::Vector;

  static Bytes load(const uint8_t* p) { return _mm512_load_si512(p); }
  static Bytes low(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
  static Bytes high(Bytes b) {
    return _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(15));
  }
  static Ints dot8(Ints sum, Bytes w, int32_t x) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, w, _mm512_set1_epi32(x));
  }
  static Ints dot4(Ints sum, Bytes w, int32_t x) { return dot8(sum, w, x); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Ints widen(const bf16* in) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
    return (Ints)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
  }
  static void store_codes(Ints codes, int8_t* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8((__m512i)codes));
  }
  static int32_t total(Ints x) { return _mm512_reduce_add_epi32((__m512i)x); }
  static Bytes lookup(const int8_t* levels, Bytes codes) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
  }
  static Floats floats(const int8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static Floats floats(const uint8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static Floats halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
