// The kernels of a linear op, written once over a Target: the few operations
// that an instruction set has its own way for. A linear_<isa>.cpp includes this
// file after it has switched the compiler to that instruction set; everything
// is in an unnamed namespace, so that no other file gets to link such code.
//
// Sums: one accumulator per output, over the pairs of K in ascending order. The
// number of rows and panels of a tile changes which outputs are computed
// together, never the operations of one.
#ifndef MILLRACE_CPU_LINEAR_TILE_HPP
#define MILLRACE_CPU_LINEAR_TILE_HPP

#include <cstring>
#include <utility>

#include "linear_kernels.hpp"
#include "millrace_kernels.h"

namespace millrace::cpu {
namespace {

// Target:
//   kLanes            floats in a vector
//   kMaxRows          rows of the largest tile (accumulators: 2 * kMaxRows)
//   Vector            kLanes floats
//   Pair              a pair of K of one row, as it lies in the packed operand
//   Pair make_pair(bf16 even, bf16 odd)
//   void multiply<kRows>(Vector (&sums)[2][kRows], const Pair* operand, const bf16* weights)
//                     one pair of K: two vectors of weights times kRows rows
//   void store(float*, Vector)

template <class Target, int kRows, int kPanels>
void tile(const Tile& t) {
  using Vector = typename Target::Vector;
  constexpr int kStep = kPanelVectors * Target::kLanes * 2;  // weights of a pair
  Vector sums[kPanels][kPanelVectors][kRows] = {};
  const auto* operand = static_cast<const typename Target::Pair*>(t.operand);
  const bf16* weights = t.weights;
  for (int64_t k = 0; k < t.pairs; ++k) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      Target::template multiply<kRows>(sums[p], operand, weights + p * t.panel_stride);
    }
    operand += kRows;
    weights += kStep;
  }
  float* out = t.sums;
  for (int p = 0; p < kPanels; ++p) {
    for (int v = 0; v < kPanelVectors; ++v) {
      for (int r = 0; r < kRows; ++r, out += Target::kLanes) Target::store(out, sums[p][v][r]);
    }
  }
}

template <class Target>
void pack_operand(const bf16* in, int rows, int64_t width, void* operand) {
  auto* out = static_cast<typename Target::Pair*>(operand);
  for (int64_t k = 0; k < width; k += 2) {
    for (int r = 0; r < rows; ++r) {
      const bf16* x = in + r * width + k;
      *out++ = Target::make_pair(x[0], k + 1 < width ? x[1] : bf16{0});
    }
  }
}

// ---- What follows the sums ---------------------------------------------------

template <int kLanes>
struct Math {
  typedef float Vector __attribute__((vector_size(4 * kLanes)));
  typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

  static Vector splat(float x) { return Vector{} + x; }

  // e^x, relative error below 2^-22 in [-87, 88], where x is clamped; NaN stays.
  // Cody-Waite reduction by n ln 2, Taylor's polynomial on [-ln2/2, ln2/2].
  static Vector exp(Vector x) {
    const Vector low = splat(-87.0f), high = splat(88.0f);
    x = x < low ? low : x;
    x = x > high ? high : x;
    const Vector shifter = splat(0x1.8p23f);  // adding it rounds to an integer
    const Vector shifted = x * 1.44269504f + shifter;
    const Vector n = shifted - shifter;
    const Vector r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Vector p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const Ints exponent = (Ints)shifted << 23;  // n is in the low bits of the mantissa
    return (Vector)((Ints)p + exponent);
  }

  static Vector logistic(Vector x) { return 1.0f / (1.0f + exp(-x)); }

  // Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
  static Vector erf(Vector x) {
    const Vector a = x < 0.0f ? -x : x;
    const Vector t = 1.0f / (1.0f + 0.3275911f * a);
    Vector p = splat(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const Vector y = 1.0f - p * t * exp(-a * a);
    return x < 0.0f ? -y : y;
  }

  static Vector activate(Vector x, int activation) {
    switch (activation) {
      case MR_ACT_SILU:
        return x * logistic(x);
      case MR_ACT_GELU_TANH:  // (1 + tanh(u)) / 2 = logistic(2u)
        return x * logistic(1.595769122f * (x + 0.044715f * x * x * x));
      case MR_ACT_GELU_ERF:
        return 0.5f * x * (1.0f + erf(x * 0.707106781f));
      case MR_ACT_RELU:
        return x < 0.0f ? splat(0.0f) : x;
      default:
        return x;
    }
  }

  static Vector load(const float* p) {
    Vector x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }

  // Writes n of the lanes (adds them, where the op accumulates).
  static void write(const Finish& f, int64_t at, Vector y, int n) {
    float values[kLanes];
    std::memcpy(values, &y, sizeof y);
    if (f.out_f32) {
      float* out = static_cast<float*>(f.out) + at;
      if (n == kLanes) {  // a length known to the compiler
        for (int i = 0; i < kLanes; ++i) out[i] = f.accumulate ? out[i] + values[i] : values[i];
      } else {
        for (int i = 0; i < n; ++i) out[i] = f.accumulate ? out[i] + values[i] : values[i];
      }
      return;
    }
    bf16 rounded[kLanes];
    for (int i = 0; i < kLanes; ++i) rounded[i] = from_float(values[i]);
    std::memcpy(static_cast<bf16*>(f.out) + at, rounded, n * sizeof(bf16));
  }
};

// Not inlined anywhere, so that there is one sequence of operations for all rows.
template <class Target>
[[gnu::noinline]] void finish(const Finish& f) {
  constexpr int kLanes = Target::kLanes;
  using M = Math<kLanes>;
  using Vector = typename M::Vector;
  const Vector bias0 = f.bias ? M::load(f.bias) : Vector{};
  const Vector bias1 = f.bias ? M::load(f.bias + kLanes) : Vector{};
  for (int r = 0; r < f.rows; ++r) {
    const Vector first = M::load(f.sums + r * kLanes) + bias0;
    const Vector second = M::load(f.sums + (f.rows + r) * kLanes) + bias1;
    const Vector y = M::activate(first, f.activation);
    const int64_t at = r * f.out_stride;
    if (f.gated) {
      M::write(f, at, y * second, f.columns);
      continue;
    }
    M::write(f, at, y, f.columns < kLanes ? f.columns : kLanes);
    if (f.columns > kLanes) {
      M::write(f, at + kLanes, M::activate(second, f.activation), f.columns - kLanes);
    }
  }
}

// As many panels at once as keep the pipelines busy with few rows.
template <class Target, int kRows>
constexpr int wide_panels() {
  return kRows * kMaxTilePanels <= Target::kMaxRows ? kMaxTilePanels
         : kRows * 2 <= Target::kMaxRows            ? 2
                                                    : 1;
}

template <class Target, int... kIndex>
constexpr LinearKernels make_kernels(bool raw_row, std::integer_sequence<int, kIndex...>) {
  LinearKernels k{};
  k.lanes = Target::kLanes;
  k.max_rows = Target::kMaxRows;
  k.operand_bytes = sizeof(typename Target::Pair);
  k.raw_row = raw_row;
  ((k.one[kIndex + 1] = tile<Target, kIndex + 1, 1>), ...);
  ((k.wide[kIndex + 1] = tile<Target, kIndex + 1, wide_panels<Target, kIndex + 1>()>), ...);
  ((k.wide_panels[kIndex + 1] = wide_panels<Target, kIndex + 1>()), ...);
  k.pack_operand = pack_operand<Target>;
  k.finish = finish<Target>;
  return k;
}

template <class Target>
constexpr LinearKernels make_kernels(bool raw_row) {
  static_assert(Target::kMaxRows <= kMaxTileRows);
  return make_kernels<Target>(raw_row, std::make_integer_sequence<int, Target::kMaxRows>());
}

}  // namespace
}  // namespace millrace::cpu

#endif
