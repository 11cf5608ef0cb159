// The types of GGUF's blocks (MR_BLOCKS), in common terms.
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

// How scales, and minimums likewise, are kept: an f16 or a bf16 for each group, integers of the groups
// beside a number for all of them, or floats.
enum class BlockScales { half, bfloat, integers, floats };

struct BlockType {
  int32_t dtype;  // MR_BLOCKS + ggml_type
  const char* name;
  int elements, bytes;  // of a block
  int bits;             // of a code
  int group;            // elements that share a scale
  BlockScales scales;
  bool minimums;
  int offset;            // value(code) = code - offset, or
  const int8_t* levels;  // [16]
  void (*read)(const uint8_t* from, Block& to);

  int value(uint8_t code) const { return levels != nullptr ? levels[code] : code - offset; }
};

// nullptr for a type that is not of blocks, or not known.
const BlockType* block_type(int32_t dtype);

// The numbers of a block: [elements].
void block_values(const BlockType& type, const Block& block, float* out);

}  // namespace millrace

#endif
