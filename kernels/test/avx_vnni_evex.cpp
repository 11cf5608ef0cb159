// The kernels of AVX-VNNI in AVX-512's encoding of the same instructions.
#include "avx_vnni_evex.hpp"
#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "millrace_kernels.h"

// After the shared headers: every processor must be able to run their inline functions.
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512vl,avx512vnni")
#include "cpu/linear/int_avx2.hpp"

namespace millrace::cpu {
namespace {

struct Evex {
  static __m256i four(__m256i sum, __m256i w, __m256i x) { return _mm256_dpbusd_epi32(sum, w, x); }
};

}  // namespace

const LinearKernels& evex_avx_vnni_kernels(int weights) {
  static constexpr LinearKernels int8 = make_int8_kernels<AvxVnni<Evex>>("evex avx-vnni int8");
  static constexpr LinearKernels int4 = make_int4_kernels<AvxVnni<Evex>>("evex avx-vnni int4");
  static constexpr LinearKernels blocks = make_block_kernels<AvxVnni<Evex>>("evex avx-vnni blocks");
  if (weights == MR_WEIGHTS_BLOCKS) return blocks;
  return weights == MR_WEIGHTS_INT8 ? int8 : int4;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
