// How AVX-512 BF16 multiplies: vdpbf16ps takes pairs as they are packed. Included after the
// compiler was switched to it.
#ifndef MILLRACE_CPU_LINEAR_BF16_AVX512_BF16_HPP
#define MILLRACE_CPU_LINEAR_BF16_AVX512_BF16_HPP

#include <immintrin.h>

#include "cpu/linear/tile.hpp"

namespace millrace::cpu {
namespace {

struct Avx512Bf16 {
  static constexpr int kLanes = 16;
  static constexpr int kDepth = 2;
  static constexpr int kMaxRows = 14;  // 28 sums, 2 weights, an operand in 32 registers
  using Vector = __m512;
  using Pair = uint32_t;
  using Operand = __m512bh;
  using Weight = bf16;
  using Weights = __m512bh;

  static Pair make_pair(bf16 even, bf16 odd) { return uint32_t{odd} << 16 | even; }

  static Operand spread(const Pair* p) {
    int pair;  // a row taken as it is has no alignment of its own
    std::memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  }

  static Weights load(const bf16* unit, int vector) {
    return (__m512bh)_mm512_load_si512(unit + vector * kDepth * kLanes);
  }

  static void multiply(Vector& sum, Weights w, Operand x) { sum = _mm512_dpbf16_ps(sum, w, x); }

  static Math<kLanes>::Vector value(const Finish& f, int row, int vector) {
    return plain_value<kLanes>(f, row, vector);
  }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
};

}  // namespace
}  // namespace millrace::cpu

#endif
