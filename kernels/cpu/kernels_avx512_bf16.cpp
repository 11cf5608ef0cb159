// Ops for AVX-512 BF16: a pair of products is one instruction, of which the odd element's is
// added first.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "cpu/ops/kernels.hpp"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#include "cpu/attention/pairs_avx512_bf16.hpp"
#include "cpu/attention/tile.hpp"

namespace millrace::cpu {
namespace {

struct Avx512Bf16Ops : Avx512Pairs {
  using Packed = __m512bh;
  static constexpr int kParts = 1;

  template <int>
  static Packed splat(Pair p) {
    return (__m512bh)_mm512_set1_epi32(static_cast<int>(p));
  }
  template <int>
  static Packed load_packed(const uint32_t* p) {
    return (__m512bh)_mm512_loadu_si512(p);
  }
  static Vector dot(Packed a, Packed b, Vector sum) { return _mm512_dpbf16_ps(sum, a, b); }
};

}  // namespace

const OpKernels& op_kernels_avx512_bf16() {
  static constexpr OpKernels kernels =
      make_op_kernels<Avx512Bf16Ops>(Isa::avx512_bf16, kX86Fma, true);
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
