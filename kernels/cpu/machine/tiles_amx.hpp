// The instructions of AMX. As assembly, for tile registers are not the compiler's: whoever uses them configures and releases them
// within one function.
#ifndef MILLRACE_CPU_MACHINE_TILES_AMX_HPP
#define MILLRACE_CPU_MACHINE_TILES_AMX_HPP

#include <cstdint>

#include "cpu/machine/tiles.hpp"

namespace millrace::cpu {
namespace {

struct TileInstructions {
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
  template <int kTo, int kRows, int kWeights>
  static void add_signed() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kRows), "i"(kWeights));
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
