// FP8 and NF4 linear kernels in C++ alone.
#include "cpu/linear/dequantize.hpp"
#include "exec/quantize.hpp"

namespace millrace::cpu {
namespace {

struct Lookup {
  static Math<4>::Vector levels(Math<4>::Ints codes) {
    Math<4>::Vector levels;
    for (int lane = 0; lane < 4; ++lane) levels[lane] = kNf4Levels[codes[lane] & 15];
    return levels;
  }
  static Math<4>::Vector multiply_add(Math<4>::Vector a, Math<4>::Vector b, Math<4>::Vector c) {
    return a * b + c;
  }
};

}  // namespace

const LinearKernels& linear_fp8_portable() {
  static constexpr LinearKernels kernels = make_fp8_float_kernels<4, 4, Lookup>("portable fp8");
  return kernels;
}

const LinearKernels& linear_nf4_portable() {
  static constexpr LinearKernels kernels =
      make_nf4_float_kernels<4, 4, Lookup, bf16>("portable nf4");
  return kernels;
}

const LinearKernels& linear_fp8_blocks_portable() {
  static constexpr LinearKernels kernels =
      make_fp8_block_kernels<4, 4, Lookup>("portable fp8 blocks");
  return kernels;
}

const LinearKernels& linear_nf4_blocks_portable() {
  static constexpr LinearKernels kernels =
      make_nf4_float_kernels<4, 4, Lookup, float>("portable nf4 blocks");
  return kernels;
}

}  // namespace millrace::cpu
