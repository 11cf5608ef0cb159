// The types of blocks (MR_BLOCKS), in common terms.
#ifndef MILLRACE_EXEC_BLOCKS_HPP
#define MILLRACE_EXEC_BLOCKS_HPP

#include <cstddef>
#include <cstdint>

#include "millrace_kernels.h"

namespace millrace {

inline constexpr int kMostBlock = 256, kMostGroups = 16;

// Element i stands for
//   scale * scales[i / group] * value(codes[i]) + minimum * minimums[i / group]
struct Block {
  uint8_t codes[kMostBlock];
  int8_t scales[kMostGroups];
  uint8_t minimums[kMostGroups];
  float scale, minimum;
};

// How scales, and minimums likewise, are kept: an f16 or a bf16 for each group, integers or E4M3 of the groups
// beside a number for all of them, or floats. With zeros the scales are f16, and a minimum is minus the scale times an integer.
enum class BlockScales { half, bfloat, integers, fp8, floats, zeros };

// What a linear op of MR_WEIGHTS_BLOCKS keeps by its types. Those whose codes are floats meet the rows as they are, and are those of
// MR_WEIGHTS_FP8 and MR_WEIGHTS_NF4 with a float scale for each group.
enum BlockWeights : int32_t {
  kIntegerBlocks = MR_WEIGHTS_BLOCKS,
  kFp8Blocks,
  kNf4Blocks,
};

struct BlockType {
  int32_t dtype;  // MR_BLOCKS and a number: ggml_type, or one of our own
  const char* name;
  int elements, bytes;  // of a block
  int bits;             // of a code
  int group;            // elements that share a scale
  BlockScales scales;
  bool minimums;
  int offset;            // value(code) = code - offset, or
  const int8_t* levels;  // [16]
  void (*read)(const uint8_t* from, Block& to);
  BlockWeights weights = kIntegerBlocks;
  const float* floats = nullptr;  // of all codes, where they are no integers

  int value(uint8_t code) const { return levels != nullptr ? levels[code] : code - offset; }
  float scale(const Block& block, int group) const;
};

// nullptr for a type that is not of blocks, or not known.
const BlockType* block_type(int32_t dtype);

// The numbers of a block: [elements].
void block_values(const BlockType& type, const Block& block, float* out);

}  // namespace millrace

#endif
