// Linear kernels of AVX-512 BF16: vdpbf16ps multiplies pairs as they are packed.
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
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#include "cpu/linear/bf16_avx512_bf16.hpp"

namespace millrace::cpu {

const LinearKernels& linear_kernels_avx512_bf16() {
  static constexpr LinearKernels kernels = [] {
    LinearKernels k = make_pair_kernels<Avx512Bf16>("avx512-bf16");
    k.pack_operand = pack_raw_pairs;
    k.raw_row = true;
    return k;
  }();
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
