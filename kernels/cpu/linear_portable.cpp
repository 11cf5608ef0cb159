// Linear kernels in C++ alone; four lanes, which compilers map to any SIMD unit.
#include "linear_tile.hpp"

namespace millrace::cpu {
namespace {

struct Portable {
  static constexpr int kLanes = 4;
  static constexpr int kMaxRows = 4;
  using Vector = Math<kLanes>::Vector;
  struct Pair {
    float even, odd;
  };

  static Pair make_pair(bf16 even, bf16 odd) { return {to_float(even), to_float(odd)}; }

  // A product of two bf16 is exact in a float, so that it makes no difference
  // whether the compiler fuses it with the addition.
  template <int kRows>
  static void multiply(Vector (&sums)[2][kRows], const Pair* operand, const bf16* weights) {
    for (int v = 0; v < 2; ++v) {
      Math<kLanes>::Ints pairs;
      std::memcpy(&pairs, weights + v * 2 * kLanes, sizeof pairs);
      static_assert(std::endian::native == std::endian::little);
      const auto even = (Vector)(pairs << 16), odd = (Vector)(pairs & ~0xffff);
      for (int r = 0; r < kRows; ++r) {
        sums[v][r] += even * operand[r].even;
        sums[v][r] += odd * operand[r].odd;
      }
    }
  }

  static void store(float* out, Vector x) { std::memcpy(out, &x, sizeof x); }
};

}  // namespace

const LinearKernels& linear_kernels_portable() {
  static constexpr LinearKernels kernels = make_kernels<Portable>(false);
  return kernels;
}

}  // namespace millrace::cpu
