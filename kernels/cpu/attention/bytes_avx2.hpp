// How AVX2 multiplies the codes of a cache, with and without VNNI; included after the
// compiler was switched to it.
#ifndef MILLRACE_CPU_ATTENTION_BYTES_AVX2_HPP
#define MILLRACE_CPU_ATTENTION_BYTES_AVX2_HPP

#include "cpu/attention/bytes.hpp"
#include "cpu/machine/simd_avx2.hpp"

namespace millrace::cpu {
namespace {

// int8 goes by products of 16 bits: a byte of 0 to 255 times a signed one, twice, would
// overflow them. Half a byte times a code does not, eight sums of two such products neither.
struct Avx2Bytes {
  using Floats = Avx2Ops;
  using Vector = Floats::Vector;
  using Ints = Floats::Ints;
  using Bytes = __m256i;
  static constexpr int kQueries = 4, kSums = 8;

  static Bytes load(const uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Bytes low(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  static Bytes high(Bytes x) { return low(_mm256_srli_epi16(x, 4)); }
  static Bytes splat(uint32_t word) { return _mm256_set1_epi32(static_cast<int>(word)); }

  // Four codes as pairs of 16 bits: those of the first and third byte, and the others.
  struct Quad {
    uint32_t even, odd;
  };
  struct Halves {
    Bytes even, odd;
  };
  using Spread = Halves;
  using Keys = Halves;
  using Values = Halves;
  static Spread spread(Quad q) { return {splat(q.even), splat(q.odd)}; }
  static Keys keys(Bytes x) {
    return {_mm256_and_si256(x, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(x, 8)};
  }
  static Values values(Bytes x) {
    return {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
  }
  static Ints add(Ints sum, Halves x, Spread y) {
    sum += (Ints)_mm256_madd_epi16(x.even, y.even);
    return sum + (Ints)_mm256_madd_epi16(x.odd, y.odd);
  }

  static constexpr int kRun = 8;
  struct Short {
    __m256i pairs;
  };
  static Short begin(Ints) { return {_mm256_setzero_si256()}; }
  static Short add(Short sum, Bytes x, Bytes y) {
    return {_mm256_add_epi16(sum.pairs, _mm256_maddubs_epi16(x, y))};
  }
  static Ints end(Short pairs, Ints sum) {
    return sum + (Ints)_mm256_madd_epi16(pairs.pairs, _mm256_set1_epi16(1));
  }

  // Heads are whole vectors.
  static Vector load(const float* p, int) { return Floats::load(p); }
  static bool finite(Vector x) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) == 0;
  }
  static Ints round(Vector x, bool keep) { return keep ? (Ints)_mm256_cvtps_epi32(x) : Ints{}; }
  static void store(Ints codes, int, uint32_t* to) {
    const __m128i words = halves(codes);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
  }
  static void store(Ints codes, int, Quad* to) {
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(halves(codes), order));
  }
  static int32_t total(Ints x) {
    const auto y = (__m256i)x;
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
  }

 private:
  static __m128i halves(Ints codes) {
    const auto x = (__m256i)codes;
    return _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
