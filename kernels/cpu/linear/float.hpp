// The target of cpu/linear/tile.hpp for processors that multiply floats: a bf16 is
// the upper half of one.
#ifndef MILLRACE_CPU_LINEAR_FLOAT_HPP
#define MILLRACE_CPU_LINEAR_FLOAT_HPP

#include "cpu/linear/tile.hpp"

namespace millrace::cpu {
namespace {

// Fma:
//   multiply_add(a, b, c)  a * b + c of vectors, rounded once where the instruction set can
template <int kVectorLanes, int kTileRows, class Fma>
struct FloatTarget {
  static constexpr int kLanes = kVectorLanes;
  static constexpr int kMaxRows = kTileRows;
  static constexpr int kDepth = 2;
  using Vector = typename Math<kLanes>::Vector;
  struct Pair {
    float even, odd;
  };
  using Operand = Pair;
  using Weight = bf16;
  struct Weights {
    Vector even, odd;
  };

  static Pair make_pair(bf16 even, bf16 odd) { return {to_float(even), to_float(odd)}; }
  static Operand spread(const Pair* p) { return *p; }

  static Weights load(const bf16* unit, int vector) {
    static_assert(std::endian::native == std::endian::little);
    typename Math<kLanes>::Ints pairs;
    std::memcpy(&pairs, unit + vector * kDepth * kLanes, sizeof pairs);
    return {(Vector)(pairs << 16), (Vector)(pairs & ~0xffff)};
  }

  // As Expanded reads them.
  static void store(float* to, const Weights& w) {
    std::memcpy(to, &w.even, sizeof w.even);
    std::memcpy(to + kLanes, &w.odd, sizeof w.odd);
  }

  // In the order of vdpbf16ps.
  static void multiply(Vector& sum, const Weights& w, const Operand& x) {
    sum = multiply_add(w.odd, Math<kLanes>::splat(x.odd), sum);
    sum = multiply_add(w.even, Math<kLanes>::splat(x.even), sum);
  }

  static Vector value(const Finish& f, int row, int vector) {
    return plain_value<kLanes>(f, row, vector);
  }
  static Vector multiply_add(const Vector& a, const Vector& b, const Vector& c) {
    return Fma::multiply_add(a, b, c);
  }
};

// The same on weights that were made floats before: [pairs][2 vectors][even, odd][lanes].
template <class Target>
struct Expanded : Target {
  using Weight = float;
  static typename Target::Weights load(const float* unit, int vector) {
    const float* p = unit + vector * Target::kDepth * Target::kLanes;
    return {Math<Target::kLanes>::load(p), Math<Target::kLanes>::load(p + Target::kLanes)};
  }
};

template <class Target, int... kIndex>
constexpr LinearKernels make_float_kernels(const char* name,
                                           std::integer_sequence<int, kIndex...>) {
  LinearKernels k = make_pair_kernels<Target>(name);
  ((k.expanding[kIndex + 1] = tile<Target, kIndex + 1, 1, Prefetch::l1_and_l2, true>), ...);
  ((k.expanded[kIndex + 1] = tile<Expanded<Target>, kIndex + 1, 1, Prefetch::l1>), ...);
  return k;
}

template <int kLanes, int kMaxRows, class Fma>
constexpr LinearKernels make_float_kernels(const char* name) {
  return make_float_kernels<FloatTarget<kLanes, kMaxRows, Fma>>(
      name, std::make_integer_sequence<int, kMaxRows>());
}

}  // namespace
}  // namespace millrace::cpu

#endif
