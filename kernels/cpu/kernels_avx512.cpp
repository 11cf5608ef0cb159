// Ops for AVX-512 without BF16.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "cpu/ops/kernels.hpp"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#include "cpu/attention/tile.hpp"
#include "cpu/machine/simd_avx512.hpp"

namespace millrace::cpu {

const OpKernels& op_kernels_avx512() {
  static constexpr OpKernels kernels =
      make_op_kernels<FloatPairs<Avx512Ops>>(Isa::avx512, kX86Fma, true);
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
