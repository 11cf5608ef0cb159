// Linear kernels of AVX-512 BF16: vdpbf16ps multiplies pairs as they are packed.
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
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#include <immintrin.h>

#include "linear_tile.hpp"

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

  static Weights load(const bf16* p) { return (__m512bh)_mm512_load_si512(p); }

  static void multiply(Vector& sum, Weights w, Operand x) { sum = _mm512_dpbf16_ps(sum, w, x); }

  static Math<kLanes>::Vector value(const Finish& f, int row, int vector) {
    return plain_value<kLanes>(f, row, vector);
  }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
};

}  // namespace

const LinearKernels& linear_kernels_avx512_bf16() {
  static constexpr LinearKernels kernels = [] {
    LinearKernels k = make_pair_kernels<Avx512Bf16>("avx512-bf16");
    k.pack_operand = pack_raw_pairs;
    k.raw_row = true;
    return k;
  }();
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
