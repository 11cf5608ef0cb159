// int8 and int4 linear kernels of AVX2, without VNNI: pairs of bytes are summed in 16
// bits, which a signed weight times a signed code, and half a byte times one, never
// overflow.
#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "linear_kernels.hpp"
#include "millrace_kernels.h"

// Behind the headers of others, whose inline functions are everybody's.
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include <immintrin.h>

#include "linear_int.hpp"

namespace millrace::cpu {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8;
  static constexpr int kRows8 = 4;  // 8 sums, 2 weights, 2 magnitudes, an operand, ones
  static constexpr int kRows4 = 4;
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

 private:
  static Ints dot(Ints sum, __m256i magnitude, __m256i x) {
    const __m256i pairs = _mm256_maddubs_epi16(magnitude, x);
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
};

}  // namespace

const LinearKernels& linear_int8_avx2() {
  static constexpr LinearKernels kernels = make_int8_kernels<Avx2>("avx2 int8");
  return kernels;
}

const LinearKernels& linear_int4_avx2() {
  static constexpr LinearKernels kernels = make_int4_kernels<Avx2>("avx2 int4");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
