// The weights of a linear op that are of blocks: how vectors of columns keep the codes and scales of a file's blocks.
#ifndef MILLRACE_CPU_LINEAR_BLOCK_PANELS_HPP
#define MILLRACE_CPU_LINEAR_BLOCK_PANELS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/blocks.hpp"

namespace millrace::cpu {

// A vector lies in spans of kSpan elements of K, the last one shorter. A span is the codes, for each kSpanUnit elements
//   8 bits  [8][lanes][4] bytes: the values plus the kernels' weight_offset
//   4 bits  [4][lanes][4] bytes: the low halves are of the first four quads of elements, the high ones of the others
//   2 bits  [2][lanes][4] bytes, in pairs of bits: of the first four quads and of the others
//   1 bit   [lanes][4] bytes: bit i is of quad i
// where 3 bits are 2 and then 1, 5 are 4 and 1, and 6 are 4 and 2; then the scales, and then the minimums where the type has them:
//   half, bfloat  [span / group][lanes] 16 bits
//   integers      [span / group][lanes] bytes, of a whole span only
//   fp8           [span / group][lanes] bytes
//   floats        [span / group][lanes]
//   zeros         [span / group][lanes] 16 bits, and as minimums bytes, filled up to whole vectors
// and after both of integers, or of fp8, [lanes] floats that the scales multiply, and those of the minimums.
inline constexpr int kSpan = kMostBlock, kSpanUnit = 32;

// What columns of several types keep in one vector: nothing is lost.
inline constexpr BlockType kMixedBlocks = {
    0, "mixed", kSpanUnit, 0, 8, 16, BlockScales::floats, true, 128, nullptr, nullptr};

constexpr int64_t code_bytes(const BlockType& type, int lanes, int64_t elements) {
  return elements * type.bits * lanes / 8;
}

// The bytes of one scale of a column, or of one minimum.
constexpr int scale_size(BlockScales scales) {
  switch (scales) {
    case BlockScales::integers:
    case BlockScales::fp8:
      return 1;
    case BlockScales::floats:
      return sizeof(float);
    default:
      return sizeof(uint16_t);
  }
}

// Whether scales are beside a number.
constexpr bool in_bytes(BlockScales scales) { return scale_size(scales) == 1; }

// The bytes of the scales of a span, and of its minimums, without the numbers that multiply them.
constexpr int64_t scale_bytes(const BlockType& type, int lanes, int64_t elements) {
  return elements / type.group * lanes * scale_size(type.scales);
}
constexpr int64_t minimum_bytes(const BlockType& type, int lanes, int64_t elements) {
  if (!type.minimums) return 0;
  if (type.scales == BlockScales::zeros) return (elements / type.group + 3) / 4 * 4 * lanes;
  return scale_bytes(type, lanes, elements);
}

constexpr int64_t span_bytes(const BlockType& type, int lanes, int64_t elements) {
  const int64_t numbers = in_bytes(type.scales) ? lanes * int64_t{sizeof(float)} : 0;
  return code_bytes(type, lanes, elements) + scale_bytes(type, lanes, elements) +
         minimum_bytes(type, lanes, elements) + (type.minimums ? 2 : 1) * numbers;
}

// The vectors of an op.
class BlockPanels {
 public:
  // types: [vectors]; width: of K
  BlockPanels(std::vector<const BlockType*> types, int lanes, int64_t width);

  size_t bytes() const { return bytes_; }
  bool minimums() const { return minimums_; }
  const BlockType& type(int64_t vector) const { return *types_[vector]; }
  // Where elements of K from k on lie, which is the begin of a span.
  size_t at(int64_t vector, int64_t k) const {
    return at_[vector] + k / kSpan * span_bytes(*types_[vector], lanes_, kSpan);
  }
  // Packs a row of blocks of a type into a lane of a vector, whose memory is zero.
  void pack(const BlockType& from, const uint8_t* row, int64_t vector, int lane, int weight_offset,
            std::byte* memory) const;

 private:
  void place(const BlockType& from, const Block& block, int first, int elements,
             const BlockType& to, int lane, int weight_offset, uint8_t* span) const;

  std::vector<const BlockType*> types_;
  std::vector<size_t> at_;
  int lanes_;
  int64_t width_;
  size_t bytes_ = 0;
  bool minimums_ = false;
};

}  // namespace millrace::cpu

#endif
