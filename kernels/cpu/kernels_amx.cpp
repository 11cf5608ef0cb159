// Ops beside linear ones by tiles: attention over bf16 by tiles, the others as AVX-512 has them. Intel's cores, which alone have AMX,
// multiply pairs of bf16 by vectors at half the speed of floats.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "cpu/ops/kernels.hpp"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#include "cpu/attention/pairs_avx512_bf16.hpp"
#include "cpu/attention/tile_amx.hpp"
#include "cpu/machine/tiles_amx.hpp"

namespace millrace::cpu {

const OpKernels& op_kernels_amx() {
  using Tiles = TileKernels<TileInstructions, Avx512Pairs>;
  static constexpr OpKernels kernels = [] {
    OpKernels k = make_op_kernels<FloatPairs<Avx512Ops>>(Isa::amx, kX86Fma, true);
    k.bf16_kv = Tiles::attention();
    k.add_shares = Shares<Avx512Pairs, Tiles::Tiles>::add;
    return k;
  }();
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
