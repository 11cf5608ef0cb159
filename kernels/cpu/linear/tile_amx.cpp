// Linear kernels of AMX by its instructions.
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
#include "cpu/linear/spans_amx.hpp"
#include "cpu/linear/tile_amx.hpp"
#include "cpu/machine/tiles_amx.hpp"

namespace millrace::cpu {

const LinearKernels& linear_kernels_amx() {
  static constexpr LinearKernels kernels = make_amx_bf16_kernels<TileInstructions, Vnni>("amx");
  return kernels;
}

const LinearKernels& linear_int8_amx() {
  static constexpr LinearKernels kernels =
      make_amx_int8_kernels<TileInstructions, Vnni>("amx int8");
  return kernels;
}

const LinearKernels& linear_int4_amx() {
  static constexpr LinearKernels kernels =
      make_amx_int4_kernels<TileInstructions, Vnni>("amx int4");
  return kernels;
}

const LinearKernels& linear_blocks_amx() {
  static constexpr LinearKernels kernels =
      make_amx_block_kernels<TileInstructions, Vnni>("amx blocks");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
