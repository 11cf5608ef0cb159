// Weights of blocks and of int4 by tiles of AMX, over a Policy of cpu/machine/tiles.hpp and a Base of cpu/linear/int.hpp. The
// products of a group leave a tile as integers, and are added up as those of every instruction set are: the bits are the same.
//
// The operand of a group of a tile is [rows][group] codes, then what cpu/linear/kernels.hpp says; that of a tile of too few rows
// for spans is the one of Base's own tiles.
#ifndef MILLRACE_CPU_LINEAR_SPANS_AMX_HPP
#define MILLRACE_CPU_LINEAR_SPANS_AMX_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/linear/expand_blocks.hpp"
#include "cpu/linear/tile_amx.hpp"

namespace millrace::cpu {
namespace {

// Bytes as tdpbssd takes them, signed.
template <class Base>
void expand_int4_signed(const Int4Expand& e) {
  constexpr int kLanes = Base::kLanes, kVector = 4 * kLanes;  // bytes of a vector
  using Codes = typename Span<Base>::Codes;
  const uint8_t* from = e.units;
  int at = 0;  // in the codes
  for (int unit = 0; unit < e.count; ++unit) {
    for (int eight = 0; eight < e.group / 8; ++eight, at += 2 * kVector) {
      for (uint8_t* codes : e.codes) {
        const auto both = Base::load(from);
        const Codes halves[2] = {(Codes)Base::low(both) - uint8_t{kInt4Offset},
                                 (Codes)Base::high(both) - uint8_t{kInt4Offset}};
        std::memcpy(codes + at, halves, sizeof halves);
        from += kVector;
      }
    }
    for (float* scales : e.scales) {
      const auto x = load_scales<kLanes>(from);
      std::memcpy(scales + unit * kLanes, &x, sizeof x);
      from += kLanes * sizeof(bf16);
    }
  }
}

// Tiles of kTileRows rows. kScaled: as blocks have it, rows have a scale of each group.
template <class Policy, class Base, int kTileRows, int kGroup, bool kScaled, bool kMinimums>
struct AmxSpan {
  static constexpr int kLanes = Base::kLanes, kLow = std::min(kTileRows, kAmxRows),
                       kDepth = std::min(kGroup, kAmxRowBytes);
  static constexpr int64_t kOperand =
      kTileRows * (kScaled ? block_operand_bytes(kGroup) : int4_operand_bytes(kGroup));
  // What a part of a tile fetches of the next one's operand with each group.
  static constexpr int64_t kFetched = kOperand / kPanelVectors / (kTileRows > kLow ? 2 : 1);
  using M = Math<kLanes>;
  using Floats = typename M::Vector;
  using Ints = typename M::Ints;

  // kRows of the tile's, from kFirst on, times a vector: the processor multiplies a group's by tiles while it adds the ones before.
  template <int kVector, int kFirst, int kRows>
  static void part(const SpanTile& t) {
    constexpr int kHalf = kFirst / kAmxRows, kPart = kPanelVectors * kHalf + kVector;
    const auto* operand = static_cast<const std::byte*>(t.operand);
    const std::byte* next = static_cast<const std::byte*>(t.next_operand) + kPart * kFetched;
    const float* next_sums = t.next_sums + (kVector * kTileRows + kFirst) * kLanes;
    const std::byte* next_span = t.next_span[kVector] + kHalf * t.groups * t.next_lines * kLine;
    const uint8_t* codes = t.codes[kVector];
    const float *scales = t.scales[kVector], *minimums = t.minimums[kVector];
    float* const sums = t.sums + (kVector * kTileRows + kFirst) * kLanes;
    Floats totals[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) totals[r] = t.fresh ? Floats{} : M::load(sums + r * kLanes);
    alignas(64) int32_t products[2][kRows][kLanes];
    const auto multiply = [&]<int kSlot>() {
      constexpr int kSum = kSums + 2 * kHalf + kSlot;
      Policy::template zero<kSum>();
#pragma GCC unroll 2
      for (int k = 0; k < kGroup; k += kDepth) {
        Policy::template load<kRowTiles + kHalf>(operand + kFirst * kGroup + k, kGroup);
        Policy::template load<kWeightTiles + kSlot>(codes + k * kLanes, kAmxRowBytes);
        Policy::template add_signed<kSum, kRowTiles + kHalf, kWeightTiles + kSlot>();
      }
      Policy::template store<kSum>(products[kSlot], kAmxRowBytes);
#pragma GCC unroll 32
      for (int64_t at = 0; at < kFetched; at += kLine) __builtin_prefetch(next + at);
      for (int r = 0; r < 2; ++r, next_sums += kLanes) __builtin_prefetch(next_sums, 1);
      for (int i = 0; i < t.next_lines; ++i, next_span += kLine) __builtin_prefetch(next_span);
      operand += kOperand;
      next += kOperand;
      codes += kGroup * kLanes;
    };
    const auto* rows = static_cast<const std::byte*>(t.operand) +
                       kTileRows * (kGroup + sizeof(int32_t)) + kFirst * sizeof(float);
    const auto add = [&]<int kSlot>() __attribute__((always_inline)) {
      const Floats scale = M::load(scales);
      [[maybe_unused]] Floats minimum{};
      if constexpr (kMinimums) minimum = M::load(minimums);
      [[maybe_unused]] const auto* own =
          reinterpret_cast<const float*>(rows);  // their scales, then their totals
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const auto sum = *reinterpret_cast<const Ints*>(products[kSlot][r]);
        if constexpr (kScaled) {
          totals[r] = add_group<Base, kMinimums>(totals[r], (typename Base::Ints)sum, scale,
                                                 minimum, own[r], own[kTileRows + r]);
        } else {
          totals[r] = Base::multiply_add(__builtin_convertvector(sum, Floats), scale, totals[r]);
        }
      }
      rows += kOperand;
      scales += kLanes;
      if constexpr (kMinimums) minimums += kLanes;
    };
    multiply.template operator()<0>();
    for (int g = 0; g < t.groups; g += 2) {
      if (g + 1 < t.groups) multiply.template operator()<1>();
      add.template operator()<0>();
      if (g + 2 < t.groups) multiply.template operator()<0>();
      if (g + 1 < t.groups) add.template operator()<1>();
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) std::memcpy(sums + r * kLanes, &totals[r], sizeof totals[r]);
  }

  // Between configure and release.
  static void tile(const SpanTile& t) {
    part<0, 0, kLow>(t);
    part<1, 0, kLow>(t);
    if constexpr (kTileRows > kLow) {
      part<0, kAmxRows, kTileRows - kLow>(t);
      part<1, kAmxRows, kTileRows - kLow>(t);
    }
  }
};

// The operand of a row's group: its codes, and then, where groups have scales, those.
template <class Base, bool kScaled>
void pack_amx_groups(const OperandRows& rows, void* operand) {
  auto* codes = static_cast<int8_t*>(operand) + rows.first * int64_t{rows.group};
  const int64_t unit =
      rows.rows * (kScaled ? block_operand_bytes(rows.group) : int4_operand_bytes(rows.group));
  for (int r = 0; r < rows.count; ++r, codes += rows.group) {
    const bf16* const in = rows.in + r * rows.width;
    RowScale row{};
    if constexpr (!kScaled) {
      row = row_scale(in, rows.width);
      rows.scales[r] = row.scale;
    }
    int8_t* to = codes;
    for (int64_t k = 0; k < rows.units * rows.group; k += rows.group, to += unit) {
      const int64_t n = std::min<int64_t>(rows.group, rows.width - k);
      if constexpr (kScaled) row = row_scale(in + k, rows.group);
      const auto totals = quantize<Base>(in + k, n, rows.group, row, to);
      if constexpr (kScaled) {
        auto* const scales =
            reinterpret_cast<float*>(to + (rows.rows - rows.first - r) * int64_t{rows.group} +
                                     rows.rows * sizeof(int32_t)) +
            rows.first + r;
        scales[0] = row.scale;
        scales[rows.rows] = row.scale * static_cast<float>(Base::total(totals));
      }
    }
  }
}

// The shape for a tile of rows with groups of that many elements.
template <class Policy>
void configure_spans(int rows, int group) {
  const int depth = std::min(group, kAmxRowBytes);
  TileShape shape = amx_shape(rows);
  for (int i = 0; i < 2; ++i) {
    shape.set_row_bytes(kRowTiles + i, depth);
    shape.rows[kWeightTiles + i] = static_cast<uint8_t>(depth / 4);
  }
  Policy::configure(shape);
}

template <class Policy, class Base, int... kIndex>
SpanTileKernel find_block_span(int group, bool minimums, int rows,
                               std::integer_sequence<int, kIndex...>) {
  static constexpr SpanTileKernel kTiles[2][2][sizeof...(kIndex)] = {
      {{AmxSpan<Policy, Base, kIndex + 1, 16, true, false>::tile...},
       {AmxSpan<Policy, Base, kIndex + 1, 16, true, true>::tile...}},
      {{AmxSpan<Policy, Base, kIndex + 1, 32, true, false>::tile...},
       {AmxSpan<Policy, Base, kIndex + 1, 32, true, true>::tile...}}};
  return kTiles[group == kSpanUnit][minimums][rows - 1];
}

template <class Policy>
constexpr void use_tiles(LinearKernels& k) {
  k.max_rows = 2 * kAmxRows;
  k.configure = configure_spans<Policy>;
  k.release = Policy::release;
  k.products = AmxTiles<Policy, AddInt8<Policy>, 4 * kAmxWords>::products;
}

template <class Policy, class Base>
constexpr LinearKernels make_amx_block_kernels(const char* name) {
  constexpr int kFewRows = 4;  // wait for memory: Base reads it best
  LinearKernels k = make_block_kernels<Base, kFewRows>(name);
  use_tiles<Policy>(k);
  k.span_rows = kFewRows + 1;
  k.span_tile = [](int group, bool minimums, int rows) {
    return find_block_span<Policy, Base>(group, minimums, rows,
                                         std::make_integer_sequence<int, 2 * kAmxRows>());
  };
  k.expand = expand_blocks<Base>;
  k.pack_operand = [](const OperandRows& rows, void* operand) {
    (rows.rows <= kFewRows ? pack_blocks<Base> : pack_amx_groups<Base, true>)(rows, operand);
  };
  return k;
}

template <class Policy, class Base, int... kIndex>
SpanTileKernel find_int4_span(int group, int rows, std::integer_sequence<int, kIndex...>) {
  static constexpr SpanTileKernel kTiles[3][sizeof...(kIndex)] = {
      {AmxSpan<Policy, Base, kIndex + 1, 32, false, false>::tile...},
      {AmxSpan<Policy, Base, kIndex + 1, 64, false, false>::tile...},
      {AmxSpan<Policy, Base, kIndex + 1, 128, false, false>::tile...}};
  return kTiles[group / 64][rows - 1];
}

// Few rows wait for memory: Base's own tiles read it best.
template <class Policy, class Base>
constexpr LinearKernels make_amx_int4_kernels(const char* name) {
  LinearKernels k = make_int4_kernels<Base>(name);
  use_tiles<Policy>(k);
  k.span_rows = Base::kRows4 + 1;
  k.span_tile = [](int group, bool, int rows) {
    return find_int4_span<Policy, Base>(group, rows,
                                        std::make_integer_sequence<int, 2 * kAmxRows>());
  };
  k.expand_int4 = expand_int4_signed<Base>;
  k.pack_operand = [](const OperandRows& rows, void* operand) {
    (rows.rows <= Base::kRows4 ? pack_int4<Base> : pack_amx_groups<Base, false>)(rows, operand);
  };
  return k;
}

}  // namespace
}  // namespace millrace::cpu

#endif
