// Ops for AVX-512 BF16: a pair of products is one instruction, of which the odd element's is
// added first.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "cpu/ops/kernels.hpp"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#include "cpu/attention/tile.hpp"
#include "cpu/machine/simd_avx512.hpp"

namespace millrace::cpu {
namespace {

struct Avx512Bf16Ops : Avx512Ops {
  using Pair = uint32_t;
  using Packed = __m512bh;
  static constexpr int kParts = 1;

  static Pair make_pair(float even, float odd) {
    return Rows<Avx512Ops>::round_bf16(even) | uint32_t{Rows<Avx512Ops>::round_bf16(odd)} << 16;
  }
  template <int>
  static Packed splat(Pair p) {
    return (__m512bh)_mm512_set1_epi32(static_cast<int>(p));
  }
  template <int>
  static Packed load_packed(const uint32_t* p) {
    return (__m512bh)_mm512_loadu_si512(p);
  }
  static Vector dot(Packed a, Packed b, Vector sum) { return _mm512_dpbf16_ps(sum, a, b); }
  static Vector store_pairs(Vector p, Pair* out) {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(p);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), rounded);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
  }
};

}  // namespace

const OpKernels& op_kernels_avx512_bf16() {
  static constexpr OpKernels kernels =
      make_op_kernels<Avx512Bf16Ops>(Isa::avx512_bf16, kX86Fma, true);
  return kernels;
}

const OpKernels& op_kernels_amx() {
  static constexpr OpKernels kernels = make_op_kernels<Avx512Bf16Ops>(Isa::amx, kX86Fma, true);
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
