// Linear kernels of AVX2 and FMA.
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
#pragma GCC target("avx2,fma")
#include <immintrin.h>

#include "cpu/linear/float.hpp"

namespace millrace::cpu {
namespace {

struct Fma {
  static __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
};

}  // namespace

// 10 sums, 4 weights and an operand in 16 registers.
const LinearKernels& linear_kernels_avx2() {
  static constexpr LinearKernels kernels = make_float_kernels<8, 5, Fma>("avx2");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
