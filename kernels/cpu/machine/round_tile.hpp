// Vectors of floats as bf16; included as cpu/linear/tile.hpp and cpu/ops/row_tile.hpp are.
#ifndef MILLRACE_CPU_MACHINE_ROUND_TILE_HPP
#define MILLRACE_CPU_MACHINE_ROUND_TILE_HPP

#include <cstdint>

#include "exec/bf16.hpp"

namespace millrace::cpu {
namespace {

template <int kLanes>
struct Bits {
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  typedef bf16 Halves __attribute__((vector_size(2 * kLanes)));
};

// from_float of each lane of a vector of floats.
template <int kLanes, class Vector>
typename Bits<kLanes>::Halves to_bf16(Vector y) {
  const auto bits = (typename Bits<kLanes>::Words)y;
  const auto rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const auto nan = (bits >> 16) | 0x40u;
  const auto both = (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
  return __builtin_convertvector(both, typename Bits<kLanes>::Halves);
}

// The same as floats again, of numbers and of such NaNs alone as come of operations on bf16: their
// lower halves are zeros, so that nothing is carried out of them.
template <int kLanes, class Vector>
Vector rounded_bf16(Vector y) {
  const auto bits = (typename Bits<kLanes>::Words)y;
  return (Vector)((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

}  // namespace
}  // namespace millrace::cpu

#endif
