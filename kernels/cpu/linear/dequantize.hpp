// Linear kernels of FP8 and NF4 weights: codes are widened to floats in registers and multiplied
// with the rows as they are. Written over a target of 16-bit weights, whose products and sums
// these are too.
#ifndef MILLRACE_CPU_LINEAR_DEQUANTIZE_HPP
#define MILLRACE_CPU_LINEAR_DEQUANTIZE_HPP

#include "cpu/linear/float.hpp"

namespace millrace::cpu {
namespace {

// ---- FP8 -------------------------------------------------------------------

// The codes' values are summed; the scale of a column follows the sums.
template <class Base>
struct Fp8 : Base {
  using Weight = uint8_t;
  static constexpr int kLanes = Base::kLanes;

  static typename Math<kLanes>::Vector value(const Finish& f, int row, int vector) {
    return plain_value<kLanes>(f, row, vector) *
           Math<kLanes>::load(f.column_scales + vector * kLanes);
  }
};

template <int kVectorLanes, int kTileRows, class Fma>
struct Fp8Floats : Fp8<FloatTarget<kVectorLanes, kTileRows, Fma>> {
  static constexpr int kLanes = kVectorLanes;
  using Ints = typename Math<kLanes>::Ints;
  using Vector = typename Math<kLanes>::Vector;
  using Weights = typename FloatTarget<kVectorLanes, kTileRows, Fma>::Weights;

  // A lane's bytes are the pair of either vector.
  static Weights load(const uint8_t* unit, int vector) {
    Ints codes;
    std::memcpy(&codes, unit, sizeof codes);
    return {widen(codes << (24 - 16 * vector)), widen(codes << (16 - 16 * vector))};
  }

 private:
  // Widens the code in the upper byte. Its bits as a float have an exponent that is 120 too
  // small; the product corrects it, for subnormals too.
  static Vector widen(Ints code) {
    constexpr auto kSignAndMagnitude = static_cast<int32_t>(0x87f00000);
    return (Vector)(code >> 4 & kSignAndMagnitude) * 0x1p120f;
  }
};

// The codes of one pair of K in a line of a group, for grouped_tile.
template <class Base>
struct Fp8Groups : Base {
  static constexpr int kLinePairs = 1, kLineBytes = 4 * Base::kLanes;

  static typename Base::Weights load(const uint8_t* line, int, int vector) {
    return Base::load(line, vector);
  }
  static typename Math<Base::kLanes>::Vector value(const Finish& f, int row, int vector) {
    return plain_value<Base::kLanes>(f, row, vector);
  }
};

// ---- NF4 -------------------------------------------------------------------

// The bytes of a lane: of four of K, of two vectors.
inline constexpr int kNf4Word = 4;

// Lookup:
//   levels(Ints)           the level for the low half byte of each lane, whatever is above it
// and what Fma has.
template <int kVectorLanes, int kTileRows, class Lookup>
struct Nf4Floats : FloatTarget<kVectorLanes, kTileRows, Lookup> {
  using Weight = uint8_t;
  static constexpr int kLinePairs = 2, kLineBytes = 4 * kVectorLanes;
  using Base = FloatTarget<kVectorLanes, kTileRows, Lookup>;

  static typename Base::Weights load(const uint8_t* line, int pair, int vector) {
    typename Math<kVectorLanes>::Ints codes;
    std::memcpy(&codes, line, sizeof codes);
    const int shift = 8 * pair + 4 * vector;
    return {Lookup::levels(codes >> shift), Lookup::levels(codes >> (16 + shift))};
  }
};

// ---- Groups ------------------------------------------------------------------

// A vector of scales of a group: of bf16, or of float.
template <class Scale, int kLanes>
typename Math<kLanes>::Vector group_scales(const uint8_t* p) {
  if constexpr (sizeof(Scale) == sizeof(bf16)) return load_scales<kLanes>(p);
  typename Math<kLanes>::Vector scales;
  std::memcpy(&scales, p, sizeof scales);
  return scales;
}

// As tile(), group by group: the products of a group are summed from zero, and its sum,
// scaled, is added to those of the groups before it, which stay in memory. Target beside what tile() takes:
//   kLinePairs, kLineBytes                pairs of K in a line, the bytes of their weights of both vectors
//   Weights load(line, int pair, int vector)
template <class Target, class Scale, int kRows, int kPanels, Prefetch kPrefetch,
          bool kExpand = false>
void grouped_tile(const Tile& t) {
  constexpr int kLanes = Target::kLanes, kLineBytes = Target::kLineBytes;
  constexpr int kPairs = Target::kLinePairs, kVector = 2 * kLanes;  // weights of a pair
  constexpr int kScales = kPanelVectors * kLanes * sizeof(Scale);
  using M = Math<kLanes>;
  using Vector = typename Target::Vector;
  const auto* operand = static_cast<const typename Target::Pair*>(t.operand);
  const auto* weights = static_cast<const uint8_t*>(t.weights);
  float* expanded = t.expanded;
  Prefetcher<kPrefetch> prefetcher(t);
  if (t.fresh) std::fill_n(t.sums, kPanels * kPanelVectors * kRows * kLanes, 0.0f);
  for (int64_t unit = 0; unit < t.units; ++unit) {
    Vector sums[kPanels][kPanelVectors][kRows] = {};
    for (int k = 0; k < t.group; k += 2 * kPairs) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const uint8_t* line = weights + p * t.panel_stride;
        prefetcher.template prefetch<kLineBytes>(line);
#pragma GCC unroll 2
        for (int pair = 0; pair < kPairs; ++pair) {
          const auto first = Target::load(line, pair, 0), second = Target::load(line, pair, 1);
          if constexpr (kExpand) {
            Target::store(expanded, first);
            Target::store(expanded + kVector, second);
            expanded += kPanelVectors * kVector;
          }
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const auto x = Target::spread(operand + pair * kRows + r);
            Target::multiply(sums[p][0][r], first, x);
            Target::multiply(sums[p][1][r], second, x);
          }
        }
      }
      operand += kPairs * kRows;
      weights += kLineBytes;
    }
    float* total = t.sums;
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const uint8_t* scales = weights + p * t.panel_stride;
      prefetcher.template prefetch<kScales>(scales);
      for (int v = 0; v < kPanelVectors; ++v) {
        const auto scale = group_scales<Scale, kLanes>(scales + v * kLanes * sizeof(Scale));
        if constexpr (kExpand) {
          std::memcpy(expanded, &scale, sizeof scale);
          expanded += kLanes;
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r, total += kLanes) {
          const auto sum = (typename M::Vector)sums[p][v][r];
          const typename M::Vector grown = Target::multiply_add(sum, scale, M::load(total));
          std::memcpy(total, &grown, sizeof grown);
        }
      }
    }
    weights += kScales;
  }
}

// The same on weights that were made floats before: [pairs][2 vectors][even, odd][lanes] of a group, then [2 vectors][lanes] scales.
template <class Target>
struct ExpandedGroups : Target {
  static constexpr int kLanes = Target::kLanes, kLinePairs = 1;
  static constexpr int kLineBytes = kPanelVectors * 2 * kLanes * sizeof(float);

  static typename Target::Weights load(const uint8_t* line, int, int vector) {
    const auto* at = reinterpret_cast<const float*>(line) + vector * 2 * kLanes;
    return {Math<kLanes>::load(at), Math<kLanes>::load(at + kLanes)};
  }
};

// What make_kernels (cpu/linear/tile.hpp) takes for its tiles. Base: the target whose products
// these are.
template <class Target, class Base, class Scale>
struct GroupedTiles {
  static double products(int64_t rounds) { return cpu::products<Base>(rounds); }
  template <int kRows, int kPanels, Prefetch kPrefetch>
  static constexpr TileKernel of() {
    return grouped_tile<Target, Scale, kRows, kPanels, kPrefetch>;
  }
};

// Base's rows, filled up with zeros to whole groups.
template <class Pair, void (*kPack)(const OperandRows&, void*)>
void pack_groups(const OperandRows& rows, void* operand) {
  kPack(rows, operand);
  const int64_t pairs = (rows.width + 1) / 2, whole = rows.units * rows.group / 2;
  for (int64_t k = pairs; k < whole; ++k) {
    std::memset(static_cast<Pair*>(operand) + k * rows.rows + rows.first, 0,
                rows.count * sizeof(Pair));
  }
}

template <class Target, class Base, class Scale, void (*kPack)(const OperandRows&, void*)>
constexpr LinearKernels make_grouped_kernels(const char* name) {
  LinearKernels k = make_kernels<Target, GroupedTiles<Target, Base, Scale>>();
  k.name = name;
  k.unit = 0;
  k.pack_operand = pack_groups<typename Target::Pair, kPack>;
  return k;
}

template <class Target, class Scale, int... kIndex>
constexpr void expand_groups(LinearKernels& k, std::integer_sequence<int, kIndex...>) {
  ((k.expanding[kIndex + 1] =
        grouped_tile<Target, Scale, kIndex + 1, 1, Prefetch::l1_and_l2, true>),
   ...);
  ((k.expanded[kIndex + 1] =
        grouped_tile<ExpandedGroups<Target>, float, kIndex + 1, 1, Prefetch::l1>),
   ...);
  k.multi_tile_limit = 1;  // codes are slow to widen for each tile anew
}

// The kernels of targets that multiply floats.
template <int kLanes, int kRows, class Fma>
constexpr LinearKernels make_fp8_float_kernels(const char* name) {
  LinearKernels k = make_float_kernels<Fp8Floats<kLanes, kRows, Fma>>(
      name, std::make_integer_sequence<int, kRows>());
  k.multi_tile_limit = 1;  // codes are slow to widen for each tile anew
  k.fp8_columns = 1;
  return k;
}

template <int kLanes, int kRows, class Lookup, class Scale>
constexpr LinearKernels make_nf4_float_kernels(const char* name) {
  using Base = FloatTarget<kLanes, kRows, Lookup>;
  using Target = Nf4Floats<kLanes, kRows, Lookup>;
  LinearKernels k = make_grouped_kernels<Target, Base, Scale, pack_pairs<Base>>(name);
  expand_groups<Target, Scale>(k, std::make_integer_sequence<int, kRows>());
  return k;
}

template <int kLanes, int kRows, class Fma>
constexpr LinearKernels make_fp8_block_kernels(const char* name) {
  using Base = FloatTarget<kLanes, kRows, Fma>;
  using Target = Fp8Groups<Fp8Floats<kLanes, kRows, Fma>>;
  LinearKernels k = make_grouped_kernels<Target, Base, float, pack_pairs<Base>>(name);
  expand_groups<Target, float>(k, std::make_integer_sequence<int, kRows>());
  k.fp8_columns = 1;
  return k;
}

}  // namespace
}  // namespace millrace::cpu

#endif
