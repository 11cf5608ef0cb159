// Spans of blocks as signed bytes in the first-level cache, where tiles of AMX meet them.
#ifndef MILLRACE_CPU_LINEAR_EXPAND_BLOCKS_HPP
#define MILLRACE_CPU_LINEAR_EXPAND_BLOCKS_HPP

#include <cstdint>
#include <cstring>

#include "cpu/linear/blocks.hpp"

namespace millrace::cpu {
namespace {

template <class Base>
struct Expand {
  static constexpr int kLanes = Base::kLanes, kLine = 4 * kLanes, kQuads = kSpanUnit / 4;
  using Codes = typename Span<Base>::Codes;
  using Floats = typename Math<kLanes>::Vector;

  // kSpanUnit elements of kBits. Those of 8 bits lie with the offset of the rows that meet them in memory.
  template <int kBits>
  static void unit(const uint8_t* from, const BlockType& type, uint8_t* to) {
#pragma GCC unroll 8
    for (int quad = 0; quad < kQuads; ++quad, to += kLine) {
      const auto codes = Span<Base>::template quad_codes<kBits>(from, quad);
      Codes bytes;
      if (kBits <= 4 && type.levels != nullptr) {
        bytes = (Codes)Base::lookup(type.levels, (typename Base::Bytes)codes);
      } else {
        bytes = (Codes)codes - static_cast<uint8_t>(kBits == 8 ? Base::kOffset : type.offset);
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
void expand_blocks(const BlockExpand& e) {
  using S = Expand<Base>;
  S::scales(e);
  switch (e.type->bits) {
    case 8:
      S::template units<8>(e);
      break;
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
}

}  // namespace
}  // namespace millrace::cpu

#endif
