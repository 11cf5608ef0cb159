// Linear kernels of AVX-512 without BF16.
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
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#include "linear_float.hpp"

namespace millrace::cpu {

// 24 sums, 4 weights and an operand in 32 registers.
const LinearKernels& linear_kernels_avx512() {
  static constexpr LinearKernels kernels = make_float_kernels<16, 12>("avx512");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
