// Kernels of weights of blocks, over a Base of cpu/linear/int.hpp. A panel's codes become bytes in the first-level cache, span by
// span, and all rows meet them there: a file's types differ in expand() alone.
#ifndef MILLRACE_CPU_LINEAR_BLOCKS_HPP
#define MILLRACE_CPU_LINEAR_BLOCKS_HPP

#include <algorithm>

#include "cpu/linear/block_panels.hpp"
#include "cpu/linear/int.hpp"

namespace millrace::cpu {
namespace {

// Base beside what int8 and int4 take:
//   Bytes lookup(const int8_t* levels, Bytes codes)  a level of 16 for each code
//   Floats halves(const uint8_t*)                    kLanes f16 as floats
//   Floats floats(const int8_t*), floats(const uint8_t*)  kLanes integers as floats

// How far ahead a span is fetched: two spans of most types.
inline constexpr int kSpanAhead = 4096;

// Fetches as many bytes as a span has, two spans ahead of it. Always inlined: GCC leaves out a call that does nothing but that.
[[gnu::always_inline]] inline void fetch_ahead(const uint8_t* span, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(span + kSpanAhead + at);
}

// The scales of a span, or its minimums: where they are, and the number that multiplies integers.
template <class Base, BlockScales kScales, class Integer>
struct ScaleReader {
  static constexpr int kLanes = Base::kLanes;
  using Floats = typename Math<kLanes>::Vector;
  const uint8_t* at;
  Floats number;

  [[gnu::always_inline]] Floats of(int group) const {
    const uint8_t* from = at + group * kLanes * scale_size(kScales);
    if constexpr (kScales == BlockScales::integers) {
      return number * Base::floats(reinterpret_cast<const Integer*>(from));
    } else if constexpr (kScales == BlockScales::fp8) {
      // Sign, exponent and mantissa as those of a float, whose exponent is 120 too small: of subnormals, too.
      using Ints = typename Math<kLanes>::Ints;
      const Ints code = __builtin_convertvector(Base::floats(from), Ints);
      return number * ((Floats)((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f);
    } else if constexpr (kScales == BlockScales::floats) {
      return Math<kLanes>::load(reinterpret_cast<const float*>(from));
    } else if constexpr (kScales == BlockScales::half || kScales == BlockScales::zeros) {
      return Base::halves(from);
    } else {
      return load_scales<kLanes>(from);
    }
  }
};

template <class Base, BlockScales kScales>
struct SpanScales {
  ScaleReader<Base, kScales, int8_t> scales{};
  ScaleReader<Base, kScales, uint8_t> minimums{};

  [[gnu::always_inline]] SpanScales(const BlockType& type, const uint8_t* span, int elements) {
    constexpr int kLanes = Base::kLanes;
    const int64_t bytes = scale_bytes(type, kLanes, elements);
    scales.at = span + code_bytes(type, kLanes, elements);
    minimums.at = scales.at + bytes;
    if constexpr (in_bytes(kScales)) {
      const auto* numbers =
          reinterpret_cast<const float*>(scales.at + (type.minimums ? 2 : 1) * bytes);
      scales.number = Math<kLanes>::load(numbers);
      if (type.minimums) minimums.number = Math<kLanes>::load(numbers + kLanes);
    }
  }

  [[gnu::always_inline]] typename Math<Base::kLanes>::Vector minimum(int group) const {
    if constexpr (kScales == BlockScales::zeros) {
      return -scales.of(group) * Base::floats(minimums.at + group * Base::kLanes);
    } else {
      return minimums.of(group);
    }
  }
};

// A row's total with a group more, by the row's scale of the group and its codes' sum times that. By value: with the
// address of one total GCC keeps all of them on the stack.
template <class Base, bool kMinimums>
[[gnu::always_inline]] inline typename Math<Base::kLanes>::Vector add_group(
    typename Math<Base::kLanes>::Vector total, typename Base::Ints sum,
    typename Math<Base::kLanes>::Vector scale, typename Math<Base::kLanes>::Vector minimum,
    float row_scale, float row_total) {
  using M = Math<Base::kLanes>;
  const auto products = __builtin_convertvector((typename M::Ints)sum, typename M::Vector);
  total = Base::multiply_add(products, scale * row_scale, total);
  if constexpr (kMinimums) total = Base::multiply_add(minimum, M::splat(row_total), total);
  return total;
}

template <class Base>
struct Span {
  static constexpr int kLanes = Base::kLanes, kLine = 4 * kLanes, kQuads = kSpanUnit / 4;
  typedef uint64_t Words __attribute__((vector_size(kLine)));
  typedef uint8_t Codes __attribute__((vector_size(kLine)));
  using Floats = typename Math<kLanes>::Vector;

  static constexpr uint64_t every(uint8_t byte) { return byte * 0x0101010101010101u; }
  static Words load(const uint8_t* p) { return (Words)Base::load(p); }

  // The codes of a quad of kSpanUnit elements.
  template <int kBits>
  static Words quad_codes(const uint8_t* from, int quad) {
    if constexpr (kBits == 8) return load(from + quad * kLine);
    if constexpr (kBits >= 4) {
      Words codes = (load(from + quad % 4 * kLine) >> (quad / 4 * 4)) & every(15);
      if constexpr (kBits == 5) codes |= (load(from + 4 * kLine) >> quad & every(1)) << 4;
      if constexpr (kBits == 6) {
        codes |= (load(from + (4 + quad / 4) * kLine) >> (quad % 4 * 2) & every(3)) << 4;
      }
      return codes;
    }
    Words codes = load(from + quad / 4 * kLine) >> (quad % 4 * 2) & every(3);
    if constexpr (kBits == 3) codes |= (load(from + 2 * kLine) >> quad & every(1)) << 2;
    return codes;
  }

  // kSpanUnit elements of kBits.
  template <int kBits>
  static void unit(const uint8_t* from, const BlockType& type, uint8_t* to) {
#pragma GCC unroll 8
    for (int quad = 0; quad < kQuads; ++quad, to += kLine) {
      const Words codes = quad_codes<kBits>(from, quad);
      Codes bytes;
      if (kBits <= 4 && type.levels != nullptr) {
        bytes =
            (Codes)Base::lookup(type.levels, (typename Base::Bytes)codes) + uint8_t{Base::kOffset};
      } else {
        bytes = (Codes)codes + static_cast<uint8_t>(Base::kOffset - type.offset);
      }
      std::memcpy(to, &bytes, sizeof bytes);
    }
  }

  template <int kBits>
  static void units(const BlockExpand& e) {
    for (int i = 0; i < e.elements / kSpanUnit; ++i) {
      unit<kBits>(e.span + i * kBits * kLine, *e.type, e.codes + i * kSpanUnit * kLanes);
    }
  }

  // Scales of the type's groups as scales of the op's. Where those are larger, the type's are alike in each of them.
  template <class F>
  static void groups(const BlockExpand& e, float* to, F scale_of) {
    for (int k = 0; k < e.elements; k += e.group, to += kLanes) {
      const Floats x = scale_of(k / e.type->group);
      std::memcpy(to, &x, sizeof x);
    }
  }

  template <BlockScales kScales>
  static void scales(const BlockExpand& e) {
    const SpanScales<Base, kScales> all(*e.type, e.span, e.elements);
    groups(e, e.scales, [&](int group) { return all.scales.of(group); });
    if (e.type->minimums) {
      groups(e, e.minimums, [&](int group) { return all.minimum(group); });
    } else if (e.minimums != nullptr) {
      std::memset(e.minimums, 0, e.elements / e.group * kLanes * sizeof(float));
    }
  }

  static void scales(const BlockExpand& e) {
    switch (e.type->scales) {
      case BlockScales::half:
        return scales<BlockScales::half>(e);
      case BlockScales::bfloat:
        return scales<BlockScales::bfloat>(e);
      case BlockScales::integers:
        return scales<BlockScales::integers>(e);
      case BlockScales::fp8:
        return scales<BlockScales::fp8>(e);
      case BlockScales::floats:
        return scales<BlockScales::floats>(e);
      case BlockScales::zeros:
        return scales<BlockScales::zeros>(e);
    }
  }
};

template <class Base>
const uint8_t* expand_blocks(const BlockExpand& e) {
  using S = Span<Base>;
  S::scales(e);
  switch (e.type->bits) {
    case 8:
      return e.span;
    case 6:
      S::template units<6>(e);
      break;
    case 5:
      S::template units<5>(e);
      break;
    case 4:
      S::template units<4>(e);
      break;
    case 3:
      S::template units<3>(e);
      break;
    default:
      S::template units<2>(e);
  }
  return e.codes;
}

// What a tile fetches for the next one, a share with each group: its operand and sums from the second-level cache, and a part of the next span
// from memory.
struct TileAhead {
  const std::byte *operand, *sums, *sums_end, *span[kPanelVectors];
  int lines, sum_lines;

  TileAhead(const SpanTile& t, int64_t sum_bytes)
      : operand(static_cast<const std::byte*>(t.next_operand)),
        sums(reinterpret_cast<const std::byte*>(t.next_sums)),
        sums_end(sums + sum_bytes),
        span{t.next_span[0], t.next_span[1]},
        lines(t.next_lines),
        sum_lines(static_cast<int>((sum_bytes / kLine + t.groups - 1) / t.groups)) {}

  template <int64_t kOperand>
  [[gnu::always_inline]] void group() {
#pragma GCC unroll 16
    for (int64_t at = 0; at < kOperand; at += kLine) __builtin_prefetch(operand + at);
    operand += kOperand;
    for (int i = 0; i < sum_lines && sums < sums_end; ++i, sums += kLine)
      __builtin_prefetch(sums, 1);
    for (int i = 0; i < lines; ++i) {
      for (const std::byte*& from : span) {
        __builtin_prefetch(from);
        from += kLine;
      }
    }
  }
};

// Products of a group are summed as integers, groups as floats in ascending order:
//   sum += codes * (scale * row's scale), sum += minimum * row's total
template <class Base, int kRows, int kGroup, bool kMinimums>
void block_tile(const SpanTile& t) {
  constexpr int kLanes = Base::kLanes, kLine = 4 * kLanes;
  using M = Math<kLanes>;
  using Floats = typename M::Vector;
  // One by one: for the whole array GCC takes instructions of strings, whose result cannot be forwarded to the loads.
  Floats totals[kPanelVectors][kRows];
  for (int v = 0; v < kPanelVectors; ++v) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      totals[v][r] = t.fresh ? Floats{} : M::load(t.sums + (v * kRows + r) * kLanes);
    }
  }
  constexpr int64_t kOperand = kRows * block_operand_bytes(kGroup);
  const auto* operand = static_cast<const uint8_t*>(t.operand);
  TileAhead ahead(t, sizeof totals);
  for (int g = 0; g < t.groups; ++g) {
    ahead.group<kOperand>();
    const uint8_t *first = t.codes[0] + g * kGroup * kLanes,
                  *second = t.codes[1] + g * kGroup * kLanes;
    const auto* offsets = reinterpret_cast<const int32_t*>(operand + kRows * kGroup);
    const auto* scales = reinterpret_cast<const float*>(offsets + kRows);
    typename Base::Ints sums[kPanelVectors][kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sums[0][r] = sums[1][r] = typename Base::Ints{} + offsets[r];
    for (int quad = 0; quad < kGroup / 4; ++quad) {
      const auto w0 = Base::load(first + quad * kLine), w1 = Base::load(second + quad * kLine);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        int32_t x;
        std::memcpy(&x, operand + (quad * kRows + r) * sizeof x, sizeof x);
        sums[0][r] = Base::dot8(sums[0][r], w0, x);
        sums[1][r] = Base::dot8(sums[1][r], w1, x);
      }
    }
    for (int v = 0; v < kPanelVectors; ++v) {
      const Floats scale = M::load(t.scales[v] + g * kLanes);
      Floats minimum{};
      if constexpr (kMinimums) minimum = M::load(t.minimums[v] + g * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        totals[v][r] = add_group<Base, kMinimums>(totals[v][r], sums[v][r], scale, minimum,
                                                  scales[r], scales[kRows + r]);
      }
    }
    operand += kOperand;
  }
  for (int v = 0; v < kPanelVectors; ++v) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(t.sums + (v * kRows + r) * kLanes, &totals[v][r], sizeof(Floats));
    }
  }
}

// What a type has, for the compiler.
template <int kCodeBits, int kTypeGroup, BlockScales kScaleKind, bool kHasMinimums, bool kHasLevels>
struct Format {
  static constexpr int kBits = kCodeBits, kGroup = kTypeGroup;
  static constexpr BlockScales kScales = kScaleKind;
  static constexpr bool kMinimums = kHasMinimums, kLevels = kHasLevels;
  // For the sizes of its spans, which are constants then.
  static constexpr BlockType kLayout = {0,       "",        0, 0,       kBits,  kGroup,
                                        kScales, kMinimums, 0, nullptr, nullptr};

  static bool is(const BlockType& t) {
    return t.bits == kBits && t.group == kGroup && t.scales == kScales && t.minimums == kMinimums &&
           (t.levels != nullptr) == kLevels;
  }
};

// As block_tile, without the way through the cache. Integers may be summed in any order.
template <class Base, class F, int kOpGroup, int kRows>
void block_rows(const BlockRows& t) {
  constexpr int kLanes = Base::kLanes, kLine = 4 * kLanes,
                kChains = kRows == 1   ? 4
                          : kRows == 2 ? 2
                                       : 1;
  constexpr int kQuads = kOpGroup / 4;
  // The share of a whole span that is fetched with each unit: all at once are more than a core has in flight.
  constexpr int64_t kUnitBytes = span_bytes(F::kLayout, kLanes, kSpan) / (kSpan / kSpanUnit);
  using S = Span<Base>;
  using M = Math<kLanes>;
  using Ints = typename Base::Ints;
  using Floats = typename M::Vector;
  const BlockType& type = *t.type;
  alignas(16) int8_t levels[16] = {};
  if constexpr (F::kLevels) {
    for (int i = 0; i < 16; ++i) levels[i] = static_cast<int8_t>(type.levels[i] + Base::kOffset);
  }
  // Where bytes are unsigned, codes may stay as they are: their offset takes the place of the bytes'.
  constexpr bool kAsTheyAre = F::kBits < 8 && !F::kLevels && Base::kOffset > 0;
  constexpr bool kShifted = F::kBits < 8 && !F::kLevels && Base::kOffset == 0;
  const typename S::Codes shift = typename S::Codes{} + static_cast<uint8_t>(type.offset);
  Floats totals[kRows] = {};
  const auto* operand = static_cast<const uint8_t*>(t.operand);
  const uint8_t* span = t.span;
  for (int64_t k = 0, bytes = 0; k < t.width; k += kSpan, span += bytes) {
    const auto elements = static_cast<int>(std::min<int64_t>(kSpan, t.width - k));
    bytes = span_bytes(F::kLayout, kLanes, elements);
    const SpanScales<Base, F::kScales> scales(F::kLayout, span, elements);
    for (int unit = 0; unit < elements / kSpanUnit; ++unit) {
      fetch_ahead(span + unit * kUnitBytes, kUnitBytes);
      const uint8_t* codes = span + unit * F::kBits * kLine;
#pragma GCC unroll 2
      for (int half = 0; half < kSpanUnit / kOpGroup; ++half) {
        const auto* offsets = reinterpret_cast<const int32_t*>(operand + kRows * kOpGroup);
        const auto* row_scales = reinterpret_cast<const float*>(offsets + kRows);
        Ints sums[kRows][kChains] = {};
        for (int r = 0; r < kRows; ++r) {
          sums[r][0] = Ints{} + (kAsTheyAre ? offsets[r] / (Base::kOffset > 0 ? Base::kOffset : 1) *
                                                  type.offset
                                            : offsets[r]);
        }
#pragma GCC unroll 8
        for (int q = 0; q < kQuads; ++q) {
          auto bytes_of =
              (typename S::Codes)S::template quad_codes<F::kBits>(codes, half * kQuads + q);
          if constexpr (F::kLevels)
            bytes_of = (typename S::Codes)Base::lookup(levels, (typename Base::Bytes)bytes_of);
          if constexpr (kShifted) bytes_of -= shift;
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            int32_t x;
            std::memcpy(&x, operand + (q * kRows + r) * sizeof x, sizeof x);
            Ints& sum = sums[r][q % kChains];
            sum = Base::dot8(sum, (typename Base::Bytes)bytes_of, x);
          }
        }
        const int group = (unit * kSpanUnit + half * kOpGroup) / F::kGroup;
        const Floats scale = scales.scales.of(group);
        Floats minimum{};
        if constexpr (F::kMinimums) minimum = scales.minimum(group);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          Ints sum = sums[r][0];
          for (int c = 1; c < kChains; ++c) sum += sums[r][c];
          totals[r] = add_group<Base, F::kMinimums>(totals[r], sum, scale, minimum, row_scales[r],
                                                    row_scales[kRows + r]);
        }
        operand += kRows * block_operand_bytes(kOpGroup);
      }
    }
  }
  std::memcpy(t.sums, totals, sizeof totals);
}

template <class Base, class F, int kOpGroup>
constexpr BlockRowsKernel kBlockRowsKernels[kBlockRows] = {
    block_rows<Base, F, kOpGroup, 1>, block_rows<Base, F, kOpGroup, 2>,
    block_rows<Base, F, kOpGroup, 3>, block_rows<Base, F, kOpGroup, 4>};

// Groups of an op are those of its types, or smaller; those of kMixedBlocks are alike in a larger one.
template <class Base, class F>
BlockRowsKernel block_rows_of(int group, int rows) {
  if constexpr (F::kGroup >= kSpanUnit || F::kScales == BlockScales::floats) {
    if (group == kSpanUnit) return kBlockRowsKernels<Base, F, kSpanUnit>[rows - 1];
  }
  return kBlockRowsKernels<Base, F, 16>[rows - 1];
}

template <class Base, class... F>
BlockRowsKernel choose_block_rows(const BlockType& type, int group, int rows) {
  BlockRowsKernel found = nullptr;
  ((F::is(type) ? void(found = block_rows_of<Base, F>(group, rows)) : void()), ...);
  return found;
}

template <class Base>
BlockRowsKernel find_block_rows(const BlockType& type, int group, int rows) {
  constexpr BlockScales kHalf = BlockScales::half, kBfloat = BlockScales::bfloat,
                        kIntegers = BlockScales::integers;
  return choose_block_rows<Base, Format<8, 32, kHalf, false, false>,         // Q8_0
                           Format<4, 32, kHalf, false, false>,               // Q4_0
                           Format<4, 32, kHalf, true, false>,                // Q4_1
                           Format<5, 32, kHalf, false, false>,               // Q5_0
                           Format<5, 32, kHalf, true, false>,                // Q5_1
                           Format<2, 16, kIntegers, true, false>,            // Q2_K
                           Format<3, 16, kIntegers, false, false>,           // Q3_K
                           Format<4, 32, kIntegers, true, false>,            // Q4_K
                           Format<5, 32, kIntegers, true, false>,            // Q5_K
                           Format<6, 16, kIntegers, false, false>,           // Q6_K
                           Format<3, 16, kIntegers, false, true>,            // IQ1, IQ2
                           Format<4, 32, kIntegers, false, true>,            // IQ3, IQ4_XS
                           Format<4, 32, kHalf, false, true>,                // IQ4_NL
                           Format<4, 32, kBfloat, false, true>,              // MXFP4
                           Format<2, 32, kIntegers, false, false>,           // TQ
                           Format<4, 16, BlockScales::fp8, false, true>,     // NVFP4
                           Format<4, 128, BlockScales::zeros, true, false>,  // Q4_Z
                           Format<4, 32, BlockScales::zeros, true, false>,   // Q4_Z32
                           Format<8, 16, BlockScales::floats, true, false>   // kMixedBlocks
                           >(type, group, rows);
}

// The codes of a row's groups, then what block_tile takes: minus the weights' offset times their sum, their scale, and their sum
// times the scale.
template <class Base>
void pack_blocks(const OperandRows& rows, void* operand) {
  constexpr int kUnit = 4;
  by_four_rows(rows.count, [&]<int kCount>(int first) {
    alignas(64) int8_t codes[kCount][kCodes];
    const bf16* const in = rows.in + first * rows.width;
    auto* to = static_cast<uint8_t*>(operand);
    for (int64_t k = 0; k < rows.width;
         k += rows.group, to += rows.rows * block_operand_bytes(rows.group)) {
      int32_t offsets[kCount];
      float scales[kCount], totals[kCount];
      for (int r = 0; r < kCount; ++r) {
        const bf16* x = in + r * rows.width + k;
        const RowScale row = row_scale(x, rows.group);
        const int32_t total = Base::total(quantize<Base>(x, rows.group, rows.group, row, codes[r]));
        offsets[r] = -Base::kOffset * total;
        scales[r] = row.scale;
        totals[r] = row.scale * static_cast<float>(total);
      }
      uint8_t* at = to + (rows.first + first) * kUnit;
      interleave<kCount>(codes, kCodes, rows.group / kUnit, rows.rows, at);
      at += rows.rows * rows.group;
      std::memcpy(at, offsets, sizeof offsets);
      std::memcpy(at + rows.rows * kUnit, scales, sizeof scales);
      std::memcpy(at + 2 * rows.rows * kUnit, totals, sizeof totals);
    }
  });
}

// The float sums are what finish() takes.
template <class Base>
struct Blocks : Int8<Base> {
  static typename Math<Base::kLanes>::Vector value(const Finish& f, int row, int vector) {
    return plain_value<Base::kLanes>(f, row, vector);
  }
};

// The tile of that many rows, of Tile::of<rows, group, with minimums>().
template <class Tile, int... kIndex>
SpanTileKernel find_span_tile(int group, bool minimums, int rows,
                              std::integer_sequence<int, kIndex...>) {
  static constexpr SpanTileKernel kTiles[2][2][sizeof...(kIndex)] = {
      {{Tile::template of<kIndex + 1, 16, false>()...},
       {Tile::template of<kIndex + 1, 16, true>()...}},
      {{Tile::template of<kIndex + 1, 32, false>()...},
       {Tile::template of<kIndex + 1, 32, true>()...}}};
  return kTiles[group == kSpanUnit][minimums][rows - 1];
}

// What all instruction sets have in common; their tiles are those of Tile.
template <class Base, class Tile, int kRows>
constexpr LinearKernels make_block_kernels(const char* name) {
  LinearKernels k{};
  k.name = name;
  k.lanes = Base::kLanes;
  k.max_rows = kRows;
  k.weight_offset = Base::kOffset;
  k.span_rows = kBlockRows + 1;
  k.span_tile = [](int group, bool minimums, int rows) {
    return find_span_tile<Tile>(group, minimums, rows, std::make_integer_sequence<int, kRows>());
  };
  k.expand = expand_blocks<Base>;
  k.block_rows = find_block_rows<Base>;
  k.pack_operand = pack_blocks<Base>;
  k.finish = finish<Blocks<Base>>;
  k.products = cpu::products<Int8<Base>>;
  return k;
}

template <class Base>
struct BlockTiles {
  template <int kRows, int kGroup, bool kMinimums>
  static constexpr SpanTileKernel of() {
    return block_tile<Base, kRows, kGroup, kMinimums>;
  }
};

template <class Base>
constexpr LinearKernels make_block_kernels(const char* name) {
  // With more rows their totals would not stay in registers beside the sums.
  return make_block_kernels<Base, BlockTiles<Base>, std::min(Base::kRows8, 8)>(name);
}

}  // namespace
}  // namespace millrace::cpu

#endif
