// Ops for AVX2 and FMA.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "op_kernels.hpp"

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include "attention_bytes_avx2.hpp"

namespace millrace::cpu {

const OpKernels& op_kernels_avx2() {
  static constexpr OpKernels kernels = make_op_kernels<FloatPairs<Avx2Ops>>(
      Isa::avx2, make_byte_attention<Avx2Bytes, 8>(), make_byte_attention<Avx2Bytes, 4>());
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
