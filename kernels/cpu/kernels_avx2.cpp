// Ops for AVX2 and FMA.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "cpu/ops/kernels.hpp"

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include "cpu/attention/bytes_avx2.hpp"
#include "cpu/attention/tile.hpp"
#include "cpu/machine/simd_avx2.hpp"

namespace millrace::cpu {

const OpKernels& op_kernels_avx2() {
  static constexpr OpKernels kernels =
      make_op_kernels<FloatPairs<Avx2Ops>>(Isa::avx2, kX86Fma, true);
  return kernels;
}

const AttentionKernels& attention_avx2(int bits) {
  static constexpr AttentionKernels int8 = make_byte_attention<Avx2Bytes, 8>();
  static constexpr AttentionKernels int4 = make_byte_attention<Avx2Bytes, 4>();
  return bits == 8 ? int8 : int4;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
