// FP8 and NF4 linear kernels of AVX2 and FMA.
#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/linear/kernels.hpp"
#include "exec/quantize.hpp"
#include "millrace_kernels.h"

// After the shared headers: every processor must be able to run their inline functions.
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include <immintrin.h>

#include "cpu/linear/dequantize.hpp"

namespace millrace::cpu {
namespace {

// A lookup among the lower and one among the upper eight levels; bit 3 chooses.
struct Lookup {
  static __m256 levels(Math<8>::Ints codes) {
    const auto indices = (__m256i)codes;
    const __m256 lower = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kNf4Levels), indices);
    const __m256 upper = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kNf4Levels + 8), indices);
    return _mm256_blendv_ps(lower, upper, (__m256)_mm256_slli_epi32(indices, 28));
  }
  static __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
};

}  // namespace

const LinearKernels& linear_fp8_avx2() {
  static constexpr LinearKernels kernels = make_fp8_float_kernels<8, 5, Lookup>("avx2 fp8");
  return kernels;
}

// 8 sums, 4 weights, an operand and the levels in 16 registers.
const LinearKernels& linear_nf4_avx2() {
  static constexpr LinearKernels kernels = make_nf4_float_kernels<8, 4, Lookup, bf16>("avx2 nf4");
  return kernels;
}

const LinearKernels& linear_fp8_blocks_avx2() {
  static constexpr LinearKernels kernels = make_fp8_block_kernels<8, 5, Lookup>("avx2 fp8 blocks");
  return kernels;
}

const LinearKernels& linear_nf4_blocks_avx2() {
  static constexpr LinearKernels kernels =
      make_nf4_float_kernels<8, 4, Lookup, float>("avx2 nf4 blocks");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
