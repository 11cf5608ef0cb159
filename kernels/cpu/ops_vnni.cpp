// Attention over codes for AVX-512 with VNNI.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "op_kernels.hpp"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
#include "attention_vnni.hpp"

namespace millrace::cpu {

const AttentionKernels& attention_vnni(int bits) {
  static constexpr AttentionKernels int8 = make_attention<Avx512Ops, VnniAttention<8>>();
  static constexpr AttentionKernels int4 = make_attention<Avx512Ops, VnniAttention<4>>();
  return bits == 8 ? int8 : int4;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
