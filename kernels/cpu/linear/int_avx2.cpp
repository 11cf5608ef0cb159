// Linear kernels of int8, int4 and blocks of AVX2, without VNNI.
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
#pragma GCC target("avx2,fma,f16c")
#include "cpu/linear/int_avx2.hpp"

namespace millrace::cpu {

const LinearKernels& linear_int8_avx2() {
  static constexpr LinearKernels kernels = make_int8_kernels<Avx2>("avx2 int8");
  return kernels;
}

const LinearKernels& linear_int4_avx2() {
  static constexpr LinearKernels kernels = make_int4_kernels<Avx2>("avx2 int4");
  return kernels;
}

const LinearKernels& linear_blocks_avx2() {
  static constexpr LinearKernels kernels = make_block_kernels<Avx2>("avx2 blocks");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
