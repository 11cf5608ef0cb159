// Linear kernels of AMX by its instructions. As assembly, for tile registers are not the
// compiler's: whoever uses them configures and releases them within one function.
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
#include "cpu/linear/tile_amx.hpp"

namespace millrace::cpu {
namespace {

struct Instructions {
  static void configure(const TileShape& shape) { __asm__ volatile("ldtilecfg %0" ::"m"(shape)); }
  static void release() { __asm__ volatile("tilerelease"); }

  template <int kTile>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  static void load(const void* from, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile)
                     : "memory");
  }
  template <int kTile>
  static void store(void* to, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile)
                     : "memory");
  }
  // AT&T order: weights, rows, sums.
  template <int kTo, int kRows, int kWeights>
  static void add_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kRows),
                     "i"(kWeights));
  }
  template <int kTo, int kRows, int kWeights>
  static void add_int8() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kRows), "i"(kWeights));
  }
};

}  // namespace

const LinearKernels& linear_kernels_amx() {
  static constexpr LinearKernels kernels = make_amx_bf16_kernels<Instructions, Vnni>("amx");
  return kernels;
}

const LinearKernels& linear_int8_amx() {
  static constexpr LinearKernels kernels = make_amx_int8_kernels<Instructions, Vnni>("amx int8");
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
