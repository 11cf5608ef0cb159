// Linear kernels of int8, int4 and blocks of AVX-VNNI: the processors of clients, with vpdpbusd but
// without AVX-512.
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
#pragma GCC target("avx2,fma,f16c,avxvnni")
#include "cpu/linear/int_avx2.hpp"

namespace millrace::cpu {
namespace {

struct Vex {
  static __m256i four(__m256i sum, __m256i w, __m256i x) {
    return _mm256_dpbusd_avx_epi32(sum, w, x);
  }
};

}  // namespace

const LinearKernels& linear_int8_avx_vnni() {
  static constexpr LinearKernels kernels = make_int8_kernels<AvxVnni<Vex>>("avx-vnni int8");
  return kernels;
}

const LinearKernels& linear_int4_avx_vnni() {
  static constexpr LinearKernels kernels = make_int4_kernels<AvxVnni<Vex>>("avx-vnni int4");
  return kernels;
}

const LinearKernels& linear_blocks_avx_vnni() {
  static constexpr LinearKernels kernels = make_block_kernels<AvxVnni<Vex>>("avx-vnni blocks");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
