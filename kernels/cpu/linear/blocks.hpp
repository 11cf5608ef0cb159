// Kernels of weights of blocks, over a Base of cpu/linear/int.hpp: vector by vector, whose codes become bytes in registers for the rows
// of a tile. A file's types differ in Format alone.
#ifndef MILLRACE_CPU_LINEAR_BLOCKS_HPP
#define MILLRACE_CPU_LINEAR_BLOCKS_HPP

#include <algorithm>

#include "cpu/linear/block_panels.hpp"
#include "cpu/linear/int.hpp"

namespace millrace::cpu {
namespace {

// Base beside what int8 and int4 take:
//   kBlockRows                                       rows of the largest tile
//   Bytes lookup(const int8_t* levels, Bytes codes)  a level of 16 for each code
//   Floats halves(const uint8_t*)                    kLanes f16 as floats
//   Floats floats(const int8_t*), floats(const uint8_t*)  kLanes integers as floats

// Fetches as many bytes as a span has: to the second-level cache kL2PrefetchDistance ahead of it, and to the first-level one shortly
// before their use. To that one alone fewer lines are on their way than memory needs. Always inlined: GCC leaves out a call that does
// nothing but that.
[[gnu::always_inline]] inline void fetch_ahead(const uint8_t* span, int64_t bytes) {
  constexpr int kNear = 1024;
  for (int64_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(span + kL2PrefetchDistance + at, 0, 2);
    __builtin_prefetch(span + kNear + at);
  }
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
  static constexpr int kLanes = Base::kLanes, kLine = 4 * kLanes;
  typedef uint64_t Words __attribute__((vector_size(kLine)));
  typedef uint8_t Codes __attribute__((vector_size(kLine)));

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
};

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

// The rows of a tile times a vector, whose codes become bytes in registers. Products of a group are summed as integers, in any order,
// groups as floats in ascending order:
//   sum += codes * (scale * row's scale), sum += minimum * row's total
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
      if (t.fetch) fetch_ahead(span + unit * kUnitBytes, kUnitBytes);
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
#pragma GCC unroll 16
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
#pragma GCC unroll 16
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
  // By way of a copy: with the address of one total GCC keeps all of them on the stack.
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Floats copy = totals[r];
    std::memcpy(t.sums + r * kLanes, &copy, sizeof copy);
  }
}

// The kernel of that many rows, of 1 to kRows.
template <class Base, class F, int kOpGroup, int... kIndex>
BlockRowsKernel block_rows_of(int rows, std::integer_sequence<int, kIndex...>) {
  static constexpr BlockRowsKernel kKernels[] = {block_rows<Base, F, kOpGroup, kIndex + 1>...};
  return kKernels[rows - 1];
}

// Groups of an op are those of its types, or smaller; those of kMixedBlocks are alike in a larger one.
template <class Base, int kRows, class F>
BlockRowsKernel block_rows_of(int group, int rows) {
  constexpr auto kAll = std::make_integer_sequence<int, kRows>();
  if constexpr (F::kGroup >= kSpanUnit || F::kScales == BlockScales::floats) {
    if (group == kSpanUnit) return block_rows_of<Base, F, kSpanUnit>(rows, kAll);
  }
  return block_rows_of<Base, F, 16>(rows, kAll);
}

template <class Base, int kRows, class... F>
BlockRowsKernel choose_block_rows(const BlockType& type, int group, int rows) {
  BlockRowsKernel found = nullptr;
  ((F::is(type) ? void(found = block_rows_of<Base, kRows, F>(group, rows)) : void()), ...);
  return found;
}

template <class Base, int kRows>
BlockRowsKernel find_block_rows(const BlockType& type, int group, int rows) {
  constexpr BlockScales kHalf = BlockScales::half, kBfloat = BlockScales::bfloat,
                        kIntegers = BlockScales::integers;
  return choose_block_rows<Base, kRows, Format<8, 32, kHalf, false, false>,  // Q8_0
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

// The codes of a row's groups, then what block_rows takes: minus the weights' offset times their sum, their scale, and their sum
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

// Vector by vector, up to kRows rows at a time.
template <class Base, int kRows>
constexpr LinearKernels make_block_kernels(const char* name) {
  LinearKernels k{};
  k.name = name;
  k.lanes = Base::kLanes;
  k.max_rows = kRows;
  k.weight_offset = Base::kOffset;
  k.block_rows = find_block_rows<Base, kRows>;
  k.pack_operand = pack_blocks<Base>;
  k.finish = finish<Blocks<Base>>;
  k.products = cpu::products<Int8<Base>>;
  return k;
}

template <class Base>
constexpr LinearKernels make_block_kernels(const char* name) {
  return make_block_kernels<Base, Base::kBlockRows>(name);
}

}  // namespace
}  // namespace millrace::cpu

#endif
