// The targets of cpu/linear/tile.hpp for int8 and int4 weights, over a Base: how an
// instruction set multiplies bytes.
#ifndef MILLRACE_CPU_LINEAR_INT_HPP
#define MILLRACE_CPU_LINEAR_INT_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cpu/linear/tile.hpp"

namespace millrace::cpu {
namespace {

// Base:
//   kLanes, kRows8, kRows4     lanes of a vector, rows of the largest tile of int8, int4
//   kOffset                    of int8 weights: 128 where they are kept unsigned
//   Bytes                      kLanes times four bytes
//   Ints                       kLanes int32
//   Bytes load(const uint8_t*)
//   Bytes low(Bytes), high(Bytes)      the halves of bytes, 0 to 15
//   Ints dot8(Ints, Bytes w, int32_t x)  + four products of int8 weights with x's four codes
//   Ints dot4(Ints, Bytes w, int32_t x)  the same with weights 0 to 15
//   Floats multiply_add(Floats a, Floats b, Floats c)  a * b + c
//   Ints widen(const bf16*)            the bits of floats
//   void store_codes(Ints, int8_t*)    as bytes
//   int32_t total(Ints)                the sum of the lanes

inline constexpr int kInt4Offset = 8;

// What int8 and int4 have in common: units of four codes.
template <class Base, int kTileRows>
struct Codes {
  static constexpr int kLanes = Base::kLanes, kMaxRows = kTileRows, kDepth = 4;
  using Vector = typename Base::Ints;
  using Pair = int32_t;
  using Operand = int32_t;
  using Weight = uint8_t;
  using Weights = typename Base::Bytes;

  static Operand spread(const Pair* p) { return *p; }
  static Weights load(const Weight* unit, int vector) {
    return Base::load(unit + vector * kDepth * kLanes);
  }
  static typename Base::Floats multiply_add(typename Base::Floats a, typename Base::Floats b,
                                            typename Base::Floats c) {
    return Base::multiply_add(a, b, c);
  }
};

template <class Base>
struct Int8 : Codes<Base, Base::kRows8> {
  static constexpr int kLanes = Base::kLanes;

  static void multiply(typename Base::Ints& sum, const typename Base::Bytes& w, int32_t x) {
    sum = Base::dot8(sum, w, x);
  }

  static typename Math<kLanes>::Vector value(const Finish& f, int row, int vector) {
    using M = Math<kLanes>;
    typename M::Ints sum;
    std::memcpy(&sum, f.sums + (vector * f.rows + row) * kLanes, sizeof sum);
    sum -= Base::kOffset * f.row_totals[row];
    return __builtin_convertvector(sum, typename M::Vector) *
           (M::load(f.column_scales + vector * kLanes) * f.row_scales[row]);
  }
};

template <class Base>
struct Int4 : Codes<Base, Base::kRows4> {
  static constexpr int kLanes = Base::kLanes;

  // For products(), of the instructions alone: a tile goes by int4_tile().
  static void multiply(typename Base::Ints& sum, const typename Base::Bytes& w, int32_t x) {
    sum = Base::dot4(sum, w, x);
  }

  static typename Math<kLanes>::Vector value(const Finish& f, int row, int vector) {
    return plain_value<kLanes>(f, row, vector) * f.row_scales[row];
  }
};

// As tile(), group by group: the products of a group are summed as integers, the
// groups as floats in ascending order, which stay in memory.
template <class Base, int kRows, int kPanels, Prefetch kPrefetch>
void int4_tile(const Tile& t) {
  constexpr int kLanes = Base::kLanes, kVector = 4 * kLanes;  // bytes of a vector
  constexpr int kEight = kPanelVectors * kVector;             // bytes of eight of K
  using M = Math<kLanes>;
  const auto* weights = static_cast<const uint8_t*>(t.weights);
  const auto* operand = static_cast<const uint8_t*>(t.operand);
  const int eights = t.group / 8;
  if (t.fresh) std::fill_n(t.sums, kPanels * kPanelVectors * kRows * kLanes, 0.0f);
  Prefetcher<kPrefetch> prefetcher(t);
  for (int64_t unit = 0; unit < t.units; ++unit) {
    float* total = t.sums;
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const uint8_t* panel = weights + p * t.panel_stride;
      const uint8_t* codes = operand;
      typename Base::Ints sums[kPanelVectors][kRows];
      for (int r = 0; r < kRows; ++r) {
        int32_t offset;
        std::memcpy(&offset, operand + kRows * t.group + r * sizeof offset, sizeof offset);
        sums[0][r] = sums[1][r] = typename Base::Ints{} + offset;
      }
      for (int e = 0; e < eights; ++e) {
        prefetcher.template prefetch<kEight>(panel);
        const auto first = Base::load(panel), second = Base::load(panel + kVector);
        const typename Base::Bytes quads[2][kPanelVectors] = {
            {Base::low(first), Base::low(second)}, {Base::high(first), Base::high(second)}};
#pragma GCC unroll 2
        for (int q = 0; q < 2; ++q) {
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            int32_t x;
            std::memcpy(&x, codes + (q * kRows + r) * sizeof x, sizeof x);
            sums[0][r] = Base::dot4(sums[0][r], quads[q][0], x);
            sums[1][r] = Base::dot4(sums[1][r], quads[q][1], x);
          }
        }
        panel += kEight;
        codes += 2 * kRows * sizeof(int32_t);
      }
      prefetcher.template prefetch<kPanelVectors * kLanes * sizeof(bf16)>(panel);
      for (int v = 0; v < kPanelVectors; ++v) {
        const auto scale = load_scales<kLanes>(panel);
        panel += kLanes * sizeof(bf16);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r, total += kLanes) {
          const auto products =
              __builtin_convertvector((typename M::Ints)sums[v][r], typename M::Vector);
          const typename M::Vector grown = Base::multiply_add(products, scale, M::load(total));
          std::memcpy(total, &grown, sizeof grown);
        }
      }
    }
    weights += eights * kEight + kPanelVectors * kLanes * sizeof(bf16);
    operand += kRows * int4_operand_bytes(t.group);
  }
}

template <class Base>
struct Int4Tiles {
  static double products(int64_t rounds) { return cpu::products<Int4<Base>>(rounds); }
  template <int kRows, int kPanels, Prefetch kPrefetch>
  static constexpr TileKernel of() {
    return int4_tile<Base, kRows, kPanels, kPrefetch>;
  }
};

// How a row becomes codes: code = round(x * inverse), x = scale * code. A row with a NaN
// or an infinity has the scale NaN and codes of zero.
struct RowScale {
  float scale, inverse;
};

inline RowScale row_scale(const bf16* in, int64_t width) {
  uint16_t top = 0;  // magnitudes of bf16 are in the order of their bits
  for (int64_t i = 0; i < width; ++i) {
    const auto magnitude = static_cast<uint16_t>(in[i] & 0x7fff);
    top = magnitude > top ? magnitude : top;
  }
  constexpr uint16_t kInfinity = 0x7f80, kTiny = 0x0400;  // 127 / kTiny is a float still
  if (top >= kInfinity) return {__builtin_nanf(""), 0.0f};
  if (top < kTiny) return {0.0f, 0.0f};
  return {to_float(top) / 127.0f, 127.0f / to_float(top)};
}

// The scales of kCount rows, which it also writes to the rows.
template <int kCount>
std::array<RowScale, kCount> row_scales(const OperandRows& rows, int first) {
  std::array<RowScale, kCount> scales;
  for (int r = 0; r < kCount; ++r) {
    scales[r] = row_scale(rows.in + (first + r) * rows.width, rows.width);
    rows.scales[first + r] = scales[r].scale;
  }
  return scales;
}

// At a time: a whole number of units of any kind.
inline constexpr int kCodes = 128;

// The codes of n elements of a row, then zeros, `count` in all: whole vectors,
// at most kCodes. Returns sums of them, lane by lane.
template <class Base>
[[gnu::noinline]] typename Math<Base::kLanes>::Ints quantize(const bf16* in, int64_t n, int count,
                                                             const RowScale& row, int8_t* codes) {
  constexpr int kLanes = Base::kLanes;
  using M = Math<kLanes>;
  if (row.inverse == 0) {  // zero times an infinity is no code
    std::memset(codes, 0, count);
    return typename M::Ints{};
  }
  bf16 filled[kCodes];
  if (n < count) {
    std::memset(filled, 0, sizeof filled);
    std::memcpy(filled, in, n * sizeof(bf16));
    in = filled;
  }
  typename M::Ints sum{};
  for (int i = 0; i < count; i += kLanes) {
    const auto x = (typename M::Vector)(typename M::Ints)Base::widen(in + i);
    constexpr float kShifter = 0x1.8p23f;  // adding it rounds to an integer, in the low bits
    const auto shifted = (typename M::Ints)(x * row.inverse + kShifter);
    const typename M::Ints code = shifted - std::bit_cast<int32_t>(kShifter);
    sum += code;
    Base::store_codes(code, codes + i);
  }
  return sum;
}

template <class Base>
void pack_int8(const OperandRows& rows, void* operand) {
  constexpr int kUnit = 4;
  by_four_rows(rows.count, [&]<int kCount>(int first) {
    alignas(64) int8_t codes[kCount][kCodes];
    typename Math<Base::kLanes>::Ints totals[kCount] = {};
    const bf16* const in = rows.in + first * rows.width;
    const auto scales = row_scales<kCount>(rows, first);
    auto* to = static_cast<uint8_t*>(operand) + (rows.first + first) * kUnit;
    for (int64_t k = 0; k < rows.width; k += kCodes, to += rows.rows * kCodes) {
      const int64_t n = std::min<int64_t>(kCodes, rows.width - k);
      for (int r = 0; r < kCount; ++r) {
        totals[r] += quantize<Base>(in + r * rows.width + k, n, kCodes, scales[r], codes[r]);
      }
      interleave<kCount>(codes, kCodes, (n + kUnit - 1) / kUnit, rows.rows, to);
    }
    for (int r = 0; r < kCount; ++r) rows.totals[first + r] = Base::total(totals[r]);
  });
}

template <class Base>
void pack_int4(const OperandRows& rows, void* operand) {
  constexpr int kUnit = 4;
  by_four_rows(rows.count, [&]<int kCount>(int first) {
    alignas(64) int8_t codes[kCount][kCodes];
    const bf16* const in = rows.in + first * rows.width;
    const auto scales = row_scales<kCount>(rows, first);
    auto* to = static_cast<uint8_t*>(operand);
    for (int64_t k = 0; k < rows.units * rows.group; k += rows.group) {
      const int64_t n = std::min<int64_t>(rows.group, rows.width - k);
      int32_t offsets[kCount];
      for (int r = 0; r < kCount; ++r) {
        offsets[r] = -kInt4Offset * Base::total(quantize<Base>(in + r * rows.width + k, n,
                                                               rows.group, scales[r], codes[r]));
      }
      interleave<kCount>(codes, kCodes, rows.group / kUnit, rows.rows,
                         to + (rows.first + first) * kUnit);
      std::memcpy(to + rows.rows * rows.group + (rows.first + first) * sizeof(int32_t), offsets,
                  sizeof offsets);
      to += rows.rows * int4_operand_bytes(rows.group);
    }
  });
}

template <class Base>
constexpr LinearKernels make_int8_kernels(const char* name) {
  LinearKernels k = make_kernels<Int8<Base>>();
  k.name = name;
  k.multi_tile_limit = 10;
  k.weight_offset = Base::kOffset;
  k.pack_operand = pack_int8<Base>;
  return k;
}

template <class Base>
constexpr LinearKernels make_int4_kernels(const char* name) {
  LinearKernels k = make_kernels<Int4<Base>, Int4Tiles<Base>>();
  k.name = name;
  k.unit = 0;
  k.pack_operand = pack_int4<Base>;
  return k;
}

}  // namespace
}  // namespace millrace::cpu

#endif
