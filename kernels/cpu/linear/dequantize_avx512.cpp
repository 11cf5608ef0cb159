// FP8 and NF4 linear kernels of AVX-512 without BF16.
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
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#include <immintrin.h>

#include "cpu/linear/dequantize.hpp"

namespace millrace::cpu {
namespace {

struct Lookup {
  static __m512 levels(Math<16>::Ints codes) {
    return _mm512_permutexvar_ps((__m512i)codes, _mm512_loadu_ps(kNf4Levels));
  }
  static __m512 multiply_add(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
};

}  // namespace

const LinearKernels& linear_fp8_avx512() {
  static constexpr LinearKernels kernels = make_fp8_float_kernels<16, 12, Lookup>("avx512 fp8");
  return kernels;
}

const LinearKernels& linear_nf4_avx512() {
  static constexpr LinearKernels kernels =
      make_nf4_float_kernels<16, 12, Lookup, bf16>("avx512 nf4");
  return kernels;
}

const LinearKernels& linear_fp8_blocks_avx512() {
  static constexpr LinearKernels kernels =
      make_fp8_block_kernels<16, 12, Lookup>("avx512 fp8 blocks");
  return kernels;
}

const LinearKernels& linear_nf4_blocks_avx512() {
  static constexpr LinearKernels kernels =
      make_nf4_float_kernels<16, 12, Lookup, float>("avx512 nf4 blocks");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
