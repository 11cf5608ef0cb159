// Norm, rotation and rounding of rows, written once over a Target. As
// cpu/linear/tile.hpp, it is included after the compiler was switched to an
// instruction set, and everything is in an unnamed namespace.
#ifndef MILLRACE_CPU_OPS_ROW_TILE_HPP
#define MILLRACE_CPU_OPS_ROW_TILE_HPP

#include "cpu/machine/round_tile.hpp"
#include "cpu/ops/kernels.hpp"

namespace millrace::cpu {
namespace {

// Target:
//   kLanes, Vector    floats in a vector; a GCC vector type
//   load, store, set1, fma, max, sum (over lanes), largest (over lanes)
//   sqrt(float)
// and for attention (cpu/attention/tile.hpp) what stands there.

// A sum over a row has sixteen parts, whatever the lanes of a vector, and they are added up in
// one order: so that instruction sets share its bits.
inline constexpr int kSumLanes = 16;

template <class T>
struct Sums {
  using Vector = typename T::Vector;
  static constexpr int kVectors = kSumLanes / T::kLanes;
  static_assert(kVectors == 1 || kVectors == 2 || kVectors == 4);

  Vector of[kVectors] = {};

  static Sums load(const float* p) {
    Sums sums;
    for (int v = 0; v < kVectors; ++v) sums.of[v] = T::load(p + v * T::kLanes);
    return sums;
  }
  void store(float* p) const {
    for (int v = 0; v < kVectors; ++v) T::store(p + v * T::kLanes, of[v]);
  }
  // Halves to halves; T::sum continues so.
  float total() const {
    if constexpr (kVectors == 1) return T::sum(of[0]);
    if constexpr (kVectors == 2) return T::sum(of[0] + of[1]);
    if constexpr (kVectors == 4) return T::sum((of[0] + of[2]) + (of[1] + of[3]));
  }
  void add(const Sums& other) {
    for (int v = 0; v < kVectors; ++v) of[v] += other.of[v];
  }
};

template <class T>
struct Rows {
  using Vector = typename T::Vector;
  static constexpr int kLanes = T::kLanes;

  static void to_bf16(const float* in, int64_t n, bf16* out) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const auto rounded = cpu::to_bf16<kLanes>(T::load(in + i));
      __builtin_memcpy(out + i, &rounded, sizeof rounded);
    }
    for (; i < n; ++i) out[i] = round_bf16(in[i]);
  }

  // from_float, once more: an inline function of another file might be linked
  // as this file compiles it.
  static bf16 round_bf16(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40u;
    return static_cast<bf16>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }

  // Sum of (x - mean)^2, in four sums of sixteen parts and then the rest one by one.
  static float squares(const float* x, int n, float mean) {
    constexpr int kSums = 4, kVectors = Sums<T>::kVectors;
    Sums<T> sums[kSums];
    const Vector shift = T::set1(mean);
    int i = 0;
    for (; i + kSums * kSumLanes <= n; i += kSums * kSumLanes) {
#pragma GCC unroll 4
      for (int s = 0; s < kSums; ++s) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const Vector d = T::load(x + i + s * kSumLanes + v * kLanes) - shift;
          sums[s].of[v] = T::fma(d, d, sums[s].of[v]);
        }
      }
    }
    sums[0].add(sums[1]);
    sums[2].add(sums[3]);
    sums[0].add(sums[2]);
    float total = sums[0].total();
    for (; i < n; ++i) total += (x[i] - mean) * (x[i] - mean);
    return total;
  }

  static float mean(const float* x, int n) {
    Sums<T> sums;
    int i = 0;
    for (; i + kSumLanes <= n; i += kSumLanes) sums.add(Sums<T>::load(x + i));
    float total = sums.total();
    for (; i < n; ++i) total += x[i];
    return total / static_cast<float>(n);
  }

  static void norm(const NormRow& row, const float* in, void* out) {
    const float shift = row.layer ? mean(in, row.width) : 0.0f;
    const float scale = row.plain ? 1.0f : 1.0f / deviation(row, in, shift);
    if (row.accumulate) {
      float* y = static_cast<float*>(out);
      for (int i = 0; i < row.width; ++i) y[i] += normed(row, in[i], i, shift, scale);
    } else if (row.out_f32) {
      float* y = static_cast<float*>(out);
      for (int i = 0; i < row.width; ++i) y[i] = normed(row, in[i], i, shift, scale);
    } else {
      bf16* y = static_cast<bf16*>(out);
      for (int i = 0; i < row.width; ++i) y[i] = round_bf16(normed(row, in[i], i, shift, scale));
    }
    if (row.scale == 1.0f) return;
    float* y = static_cast<float*>(out);  // out_f32
    for (int i = 0; i < row.width; ++i) y[i] *= row.scale;
  }

  static float deviation(const NormRow& row, const float* in, float shift) {
    const float variance = squares(in, row.width, shift) / static_cast<float>(row.width);
    return T::sqrt(variance + row.eps);
  }

  static float normed(const NormRow& row, float x, int i, float shift, float scale) {
    const float y = (x - shift) * scale * row.weight[i];
    return row.bias != nullptr ? y + row.bias[i] : y;
  }

  static void rotate(const HeadsRow& row, float* x) {
    for (int h = 0; h < row.heads; ++h, x += row.head_dim) {
      const NormRow norm_row{row.norm, nullptr, row.head_dim, row.eps, false, true};
      if (row.norm != nullptr && !row.norm_last) norm(norm_row, x, x);
      const int half = row.rotary_dim / 2;
      float* const rotated = x + row.rotary_offset;
      if (row.interleaved) {
        rotate_pairs(row, half, rotated);
      } else {
        rotate_halves(row, half, rotated, rotated + half);
      }
      if (row.norm != nullptr && row.norm_last) norm(norm_row, x, x);
    }
  }

  static void rotate_halves(const HeadsRow& row, int half, float* __restrict a,
                            float* __restrict b) {
    for (int i = 0; i < half; ++i) {
      const float x = a[i], y = b[i];
      a[i] = x * row.cosine[i] - y * row.sine[i];
      b[i] = y * row.cosine[i] + x * row.sine[i];
    }
  }

  static void rotate_pairs(const HeadsRow& row, int half, float* x) {
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * row.cosine[i] - b * row.sine[i];
      x[2 * i + 1] = b * row.cosine[i] + a * row.sine[i];
    }
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
