#include "cpu/linear/kernels.hpp"

#include "cpu/ops/kernels.hpp"
#include "exec/program.hpp"

namespace millrace::cpu {

const LinearKernels& linear_kernels(Isa isa, int weights) {
  using Get = const LinearKernels& (*)();
  using Family = Get[8];  // in the order of mr_weights and BlockWeights
  static constexpr Family kPortable = {linear_kernels_portable,    linear_int8_portable,
                                       linear_int4_portable,       linear_fp8_portable,
                                       linear_nf4_portable,        linear_blocks_portable,
                                       linear_fp8_blocks_portable, linear_nf4_blocks_portable};
#if defined(__x86_64__)
  static constexpr Family kAvx2 = {
      linear_kernels_avx2, linear_int8_avx2,   linear_int4_avx2,       linear_fp8_avx2,
      linear_nf4_avx2,     linear_blocks_avx2, linear_fp8_blocks_avx2, linear_nf4_blocks_avx2};
  static constexpr Family kAvx512 = {linear_kernels_avx512,    linear_int8_avx2,
                                     linear_int4_avx2,         linear_fp8_avx512,
                                     linear_nf4_avx512,        linear_blocks_avx2,
                                     linear_fp8_blocks_avx512, linear_nf4_blocks_avx512};
  static constexpr Family kAvx512Bf16 = {linear_kernels_avx512_bf16,
                                         linear_int8_avx2,
                                         linear_int4_avx2,
                                         linear_fp8_avx512_bf16,
                                         linear_nf4_avx512_bf16,
                                         linear_blocks_avx2,
                                         linear_fp8_blocks_avx512_bf16,
                                         linear_nf4_blocks_avx512_bf16};
  static constexpr Family kAmx = {
      linear_kernels_amx, linear_int8_amx,   linear_int4_amx,          linear_fp8_avx512,
      linear_nf4_avx512,  linear_blocks_amx, linear_fp8_blocks_avx512, linear_nf4_blocks_avx512};
  // Integers only.
  static constexpr Family kAvxVnni = {nullptr,
                                      linear_int8_avx_vnni,
                                      linear_int4_avx_vnni,
                                      nullptr,
                                      nullptr,
                                      linear_blocks_avx_vnni,
                                      nullptr,
                                      nullptr};
  static constexpr Family kVnni = {nullptr, linear_int8_vnni,   linear_int4_vnni, nullptr,
                                   nullptr, linear_blocks_vnni, nullptr,          nullptr};
  const bool integers = quantizes_rows(weights);
  switch (isa) {
    case Isa::amx:
      return kAmx[weights]();
    case Isa::avx512_bf16:
      if (weights == MR_WEIGHTS_FP8 && !has_vbmi()) return linear_fp8_avx512();
      if (weights == kFp8Blocks && !has_vbmi()) return linear_fp8_blocks_avx512();
      return (integers && has_vnni() ? kVnni : kAvx512Bf16)[weights]();
    case Isa::avx512:
      return (integers && has_vnni() ? kVnni : kAvx512)[weights]();
    case Isa::avx2:
      return (integers && has_avx_vnni() ? kAvxVnni : kAvx2)[weights]();
    case Isa::portable:
      break;
  }
#endif
  (void)isa;
  return kPortable[weights]();
}

const char* linear_numerics(Isa isa, int weights) {
  if (isa == Isa::portable) return kPortable;
  return isa == Isa::amx && weights == MR_WEIGHTS_16BIT ? kAmxBf16 : kX86Fma;
}

}  // namespace millrace::cpu
