// Linear kernels of AMX: products of whole tiles of rows and weights, over a Policy of cpu/machine/tiles.hpp.
//
// Weights lie as those of AVX-512 BF16 and VNNI: sixteen of their units are a tile of
// weights for each vector of a panel. A unit here is such a tile of K.
//
// Sums: tiles of K in ascending order.
#ifndef MILLRACE_CPU_LINEAR_TILE_AMX_HPP
#define MILLRACE_CPU_LINEAR_TILE_AMX_HPP

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "cpu/linear/int.hpp"
#include "cpu/machine/tiles.hpp"

namespace millrace::cpu {
namespace {

// A line of weights: sixteen columns of each vector.
inline constexpr int kAmxLine = kPanelVectors * kAmxRowBytes;
inline constexpr int kAmxUnit = kAmxRows * kAmxLine;  // bytes of a panel

// Registers: [2 halves][2 vectors] sums, the rows' halves, the vectors' weights.
enum AmxTile { kSums = 0, kRowTiles = 4, kWeightTiles = 6 };

template <class Policy>
struct AddBf16 {
  template <int kTo, int kFrom, int kWeights>
  static void add() {
    Policy::template add_bf16<kTo, kFrom, kWeights>();
  }
};
template <class Policy>
struct AddInt8 {
  template <int kTo, int kFrom, int kWeights>
  static void add() {
    Policy::template add_int8<kTo, kFrom, kWeights>();
  }
};

// The products of a tile of rows and a panel, between configure and release. sums: [2 vectors][rows] lines.
// fetch(weights): before the weights of a unit are read.
template <class Policy, class Products, int kRows, class Fetch>
void amx_panel(const Tile& t, const std::byte* weights, std::byte* sums, Fetch&& fetch) {
  constexpr int kHalf = kAmxRows * kAmxRowBytes;
  constexpr bool kHigh = kRows > kAmxRows;
  std::byte* const second = sums + kRows * kAmxRowBytes;
  if (t.fresh) {
    Policy::template zero<kSums>(), Policy::template zero<kSums + 1>();
    if constexpr (kHigh) {
      Policy::template zero<kSums + 2>(), Policy::template zero<kSums + 3>();
    }
  } else {
    Policy::template load<kSums>(sums, kAmxRowBytes);
    Policy::template load<kSums + 1>(second, kAmxRowBytes);
    if constexpr (kHigh) {
      Policy::template load<kSums + 2>(sums + kHalf, kAmxRowBytes);
      Policy::template load<kSums + 3>(second + kHalf, kAmxRowBytes);
    }
  }
  const auto* operand = static_cast<const std::byte*>(t.operand);
  for (int64_t unit = 0; unit < t.units; ++unit) {
    fetch(weights);
    Policy::template load<kRowTiles>(operand, kAmxRowBytes);
    Policy::template load<kWeightTiles>(weights, kAmxLine);
    Products::template add<kSums, kRowTiles, kWeightTiles>();
    Policy::template load<kWeightTiles + 1>(weights + kAmxRowBytes, kAmxLine);
    Products::template add<kSums + 1, kRowTiles, kWeightTiles + 1>();
    if constexpr (kHigh) {
      Policy::template load<kRowTiles + 1>(operand + kHalf, kAmxRowBytes);
      Products::template add<kSums + 2, kRowTiles + 1, kWeightTiles>();
      Products::template add<kSums + 3, kRowTiles + 1, kWeightTiles + 1>();
    }
    operand += kRows * kAmxRowBytes;
    weights += kAmxUnit;
  }
  Policy::template store<kSums>(sums, kAmxRowBytes);
  Policy::template store<kSums + 1>(second, kAmxRowBytes);
  if constexpr (kHigh) {
    Policy::template store<kSums + 2>(sums + kHalf, kAmxRowBytes);
    Policy::template store<kSums + 3>(second + kHalf, kAmxRowBytes);
  }
}

// The shape for a tile of rows: the first sixteen, and the rest.
constexpr TileShape amx_shape(int rows) {
  const int low = std::min(rows, kAmxRows), high = rows - low;
  return TileShape({low, low, high, high, low, high, kAmxRows, kAmxRows});
}

template <class Policy, class Products, int kRows, int kPanels, Prefetch kPrefetch>
void amx_tile(const Tile& t) {
  static constexpr TileShape kShape = amx_shape(kRows);
  Policy::configure(kShape);
  Prefetcher<kPrefetch> prefetcher(t);
  for (int p = 0; p < kPanels; ++p) {
    amx_panel<Policy, Products, kRows>(
        t, static_cast<const std::byte*>(t.weights) + p * t.panel_stride,
        reinterpret_cast<std::byte*>(t.sums) + p * int64_t{kPanelVectors} * kRows * kAmxRowBytes,
        [&](const std::byte* weights) { prefetcher.template prefetch<kAmxUnit>(weights); });
  }
  Policy::release();
}

// A tile between LinearKernels::configure and release. What it multiplies is in the second-level cache, where
// the processor fetches it by itself; from memory it fetches its part of the next panel.
template <class Policy, class Products, int kRows>
void amx_block(const Tile& t) {
  const std::byte* next = t.next_block;
  const int lines = t.next_lines;
  amx_panel<Policy, Products, kRows>(t, static_cast<const std::byte*>(t.weights),
                                     reinterpret_cast<std::byte*>(t.sums), [&](const std::byte*) {
                                       for (int line = 0; line < lines; ++line, next += kLine)
                                         __builtin_prefetch(next, 0, 2);
                                     });
}

// What make_kernels (cpu/linear/tile.hpp) takes for its tiles.
template <class Policy, class Products, int kDepth>
struct AmxTiles {
  template <int kRows, int kPanels, Prefetch kPrefetch>
  static constexpr TileKernel of() {
    if constexpr (kPrefetch == Prefetch::l1_and_next_block) {
      return amx_block<Policy, Products, kRows>;
    } else {
      return amx_tile<Policy, Products, kRows, kPanels, kPrefetch>;
    }
  }

  static double products(int64_t rounds) {
    static constexpr TileShape kShape = amx_shape(2 * kAmxRows);
    alignas(64) static constexpr std::byte kZeroes[kAmxRows * kAmxRowBytes] = {};
    Policy::configure(kShape);
    Policy::template load<kRowTiles>(kZeroes, kAmxRowBytes);
    Policy::template load<kRowTiles + 1>(kZeroes, kAmxRowBytes);
    Policy::template load<kWeightTiles>(kZeroes, kAmxRowBytes);
    Policy::template load<kWeightTiles + 1>(kZeroes, kAmxRowBytes);
    Policy::template zero<kSums>(), Policy::template zero<kSums + 1>();
    Policy::template zero<kSums + 2>(), Policy::template zero<kSums + 3>();
    for (int64_t i = 0; i < rounds; ++i) {
      Products::template add<kSums, kRowTiles, kWeightTiles>();
      Products::template add<kSums + 1, kRowTiles, kWeightTiles + 1>();
      Products::template add<kSums + 2, kRowTiles + 1, kWeightTiles>();
      Products::template add<kSums + 3, kRowTiles + 1, kWeightTiles + 1>();
    }
    Policy::release();
    return 2.0 * 4 * kAmxRows * kAmxWords * kDepth * static_cast<double>(rounds);
  }
};

// A unit of a row.
struct AmxUnit {
  alignas(4) std::byte bytes[kAmxRowBytes];
};

template <class Floats>
struct AmxBf16 {
  static constexpr int kLanes = kAmxWords, kMaxRows = 2 * kAmxRows, kDepth = 2 * kAmxWords;
  using Pair = AmxUnit;
  static Math<kLanes>::Vector value(const Finish& f, int row, int vector) {
    return plain_value<kLanes>(f, row, vector);
  }
  using Vector = Math<kLanes>::Vector;
  static Vector multiply_add(const Vector& a, const Vector& b, const Vector& c) {
    return Floats::multiply_add(a, b, c);
  }
};

template <class Base>
struct AmxInt8 : Int8<Base> {
  static constexpr int kMaxRows = 2 * kAmxRows, kDepth = 4 * kAmxWords;
  using Pair = AmxUnit;
};

// [units][rows] units, filled up with zeros after the width.
inline void pack_amx_bf16(const OperandRows& rows, void* operand) {
  constexpr int kDepth = 2 * kAmxWords;
  for (int64_t unit = 0; unit < rows.units; ++unit) {
    const int64_t k = unit * kDepth, n = std::min<int64_t>(kDepth, rows.width - k);
    auto* to = static_cast<AmxUnit*>(operand) + unit * rows.rows + rows.first;
    for (int r = 0; r < rows.count; ++r, ++to) {
      const bf16* const in = rows.in + r * rows.width + k;
      if (n == kDepth) {
        std::memcpy(to, in, sizeof *to);
      } else {
        *to = {};
        std::memcpy(to, in, n * sizeof(bf16));
      }
    }
  }
}

template <class Base>
void pack_amx_int8(const OperandRows& rows, void* operand) {
  constexpr int kDepth = 4 * kAmxWords, kUnits = kCodes / kDepth;
  alignas(64) int8_t codes[kCodes];
  for (int r = 0; r < rows.count; ++r) {
    const bf16* const in = rows.in + r * rows.width;
    const RowScale row = row_scale(in, rows.width);
    rows.scales[r] = row.scale;
    typename Math<Base::kLanes>::Ints totals{};
    auto* const to = static_cast<AmxUnit*>(operand) + rows.first + r;
    for (int64_t unit = 0; unit < rows.units; unit += kUnits) {
      const int64_t k = unit * kDepth;
      totals +=
          quantize<Base>(in + k, std::min<int64_t>(kCodes, rows.width - k), kCodes, row, codes);
      const int64_t count = std::min<int64_t>(kUnits, rows.units - unit);
      for (int64_t u = 0; u < count; ++u) {
        std::memcpy(to + (unit + u) * rows.rows, codes + u * kDepth, kDepth);
      }
    }
    rows.totals[r] = Base::total(totals);
  }
}

// [rows] of a tile
template <int... kIndex>
constexpr std::array<TileShape, sizeof...(kIndex) + 1> amx_shapes(
    std::integer_sequence<int, kIndex...>) {
  return {amx_shape(0), amx_shape(kIndex + 1)...};
}

template <class Policy>
void configure_rows(int rows, int /*group*/) {
  static constexpr auto kShapes = amx_shapes(std::make_integer_sequence<int, 2 * kAmxRows>());
  Policy::configure(kShapes[rows]);
}

// What bf16 and int8 have in common.
template <class Policy, class Target, class Products>
constexpr LinearKernels make_amx_kernels(const char* name) {
  LinearKernels k = make_kernels<Target, AmxTiles<Policy, Products, Target::kDepth>>();
  k.name = name;
  k.multi_tile_limit = 1;  // a tile has as many rows as several of the others
  k.configure = configure_rows<Policy>;
  k.release = Policy::release;
  return k;
}

template <class Policy, class Base>
constexpr LinearKernels make_amx_bf16_kernels(const char* name) {
  LinearKernels k = make_amx_kernels<Policy, AmxBf16<Base>, AddBf16<Policy>>(name);
  k.pack_operand = pack_amx_bf16;
  return k;
}

template <class Policy, class Base>
constexpr LinearKernels make_amx_int8_kernels(const char* name) {
  LinearKernels k = make_amx_kernels<Policy, AmxInt8<Base>, AddInt8<Policy>>(name);
  k.weight_offset = Base::kOffset;
  k.pack_operand = pack_amx_int8<Base>;
  return k;
}

}  // namespace
}  // namespace millrace::cpu

#endif
