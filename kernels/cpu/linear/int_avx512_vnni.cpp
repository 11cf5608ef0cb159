// Linear kernels of int8, int4 and blocks of AVX-512 VNNI: vpdpbusd multiplies four unsigned bytes,
// the weights, with four signed ones in each lane.
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
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
#include "cpu/linear/int_avx512_vnni.hpp"

namespace millrace::cpu {

const LinearKernels& linear_int8_vnni() {
  static constexpr LinearKernels kernels = make_int8_kernels<Vnni>("avx512-vnni int8");
  return kernels;
}

const LinearKernels& linear_int4_vnni() {
  static constexpr LinearKernels kernels = make_int4_kernels<Vnni>("avx512-vnni int4");
  return kernels;
}

const LinearKernels& linear_blocks_vnni() {
  static constexpr LinearKernels kernels = make_block_kernels<Vnni>("avx512-vnni blocks");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
