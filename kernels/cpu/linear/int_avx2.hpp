// How AVX2 multiplies bytes, with and without VNNI; included after the compiler was switched
// to it.
#ifndef MILLRACE_CPU_LINEAR_INT_AVX2_HPP
#define MILLRACE_CPU_LINEAR_INT_AVX2_HPP

#include <immintrin.h>

#include "cpu/linear/blocks.hpp"

namespace millrace::cpu {
namespace {

// Pairs of bytes are summed in 16 bits, which a signed weight times a signed code, and half
// a byte times one, never overflow.
struct Avx2 {
  static constexpr int kLanes = 8;
  static constexpr int kRows8 = 4;  // 8 sums, 2 weights, 2 magnitudes, an operand, ones
  static constexpr int kRows4 = 4;
  static constexpr int kBlockRows = 4;
  static constexpr int kOffset = 0;
  using Bytes = __m256i;
  using Ints = Math<kLanes>::Ints;
  using Floats = Math<kLanes>::Vector;

  static Bytes load(const uint8_t* p) { return _mm256_load_si256((const __m256i*)p); }
  static Bytes low(Bytes b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
  static Bytes high(Bytes b) {
    return _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(15));
  }
  // |w| times x with the sign of w.
  static Ints dot8(Ints sum, Bytes w, int32_t x) {
    return dot(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(x), w));
  }
  static Ints dot4(Ints sum, Bytes w, int32_t x) { return dot(sum, w, _mm256_set1_epi32(x)); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Ints widen(const bf16* in) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    return (Ints)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
  }
  static void store_codes(Ints codes, int8_t* to) {
    const auto x = (__m256i)codes;
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
  }
  static int32_t total(Ints x) {
    int32_t sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += x[lane];
    return sum;
  }
  static Bytes lookup(const int8_t* levels, Bytes codes) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
  }
  static Floats floats(const int8_t* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static Floats floats(const uint8_t* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static Floats halves(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }

 private:
  static Ints dot(Ints sum, __m256i magnitude, __m256i x) {
    const __m256i pairs = _mm256_maddubs_epi16(magnitude, x);
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
};

// Dot::four(sum, w, x): vpdpbusd of 256 bits, unsigned bytes times signed ones, in the
// encoding that the machine has.
template <class Dot>
struct AvxVnni : Avx2 {
  static constexpr int kRows8 = 6;  // 12 sums, 2 weights, an operand
  static constexpr int kOffset = 128;

  static Ints dot8(Ints sum, Bytes w, int32_t x) {
    return (Ints)Dot::four((__m256i)sum, w, _mm256_set1_epi32(x));
  }
  static Ints dot4(Ints sum, Bytes w, int32_t x) { return dot8(sum, w, x); }
};

}  // namespace
}  // namespace millrace::cpu

#endif
