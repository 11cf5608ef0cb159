// Linear kernels of AVX-512 without BF16.
#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/linear/kernels.hpp"
#include "millrace_kernels.h"

// After the shared headers: every processor must be able to run their inline functions.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#include <immintrin.h>

#include "cpu/linear/float.hpp"

namespace millrace::cpu {
namespace {

struct Fma {
  static __m512 multiply_add(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
};

}  // namespace

// 24 sums, 4 weights and an operand in 32 registers.
const LinearKernels& linear_kernels_avx512() {
  static constexpr LinearKernels kernels = make_float_kernels<16, 12, Fma>("avx512");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
