// Random matrices of blocks.
#ifndef MILLRACE_TEST_BLOCK_MATRIX_HPP
#define MILLRACE_TEST_BLOCK_MATRIX_HPP

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "exec/blocks.hpp"
#include "millrace_kernels.h"

namespace millrace {

inline std::vector<const BlockType*> all_types(std::vector<BlockWeights> of = {kIntegerBlocks}) {
  std::vector<const BlockType*> types;
  for (int i = 0; i < 256; ++i) {
    const BlockType* type = block_type(MR_BLOCKS + i);
    if (type != nullptr && std::find(of.begin(), of.end(), type->weights) != of.end()) {
      types.push_back(type);
    }
  }
  return types;
}

inline std::vector<const BlockType*> float_types() { return all_types({kFp8Blocks, kNf4Blocks}); }

// Random blocks whose scales are ordinary numbers.
struct Matrix {
  Matrix(const BlockType& type, int64_t rows, int64_t width, unsigned seed) : of(type) {
    std::mt19937 random(seed);
    bytes.resize(rows * width / type.elements * type.bytes);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    for (size_t at = 0; at < bytes.size(); at += type.bytes) tame(&bytes[at]);
    tensor = {bytes.data(), type.dtype, 2, {rows, width}, 0, nullptr};
  }

  void tame(uint8_t* block) const {
    const std::string name = of.name;
    if (name == "MXFP4") {
      block[0] = 120 + block[0] % 8;
      return;
    }
    if (of.weights != kIntegerBlocks) {  // a float
      block[3] = (block[3] & 0x80) | 0x3c;
      return;
    }
    if (name == "IQ1_M") {  // the upper four bits of four words are the scale, 0x2a15
      const int digits[] = {0x5, 0x1, 0xa, 0x2};
      for (int i = 0; i < 4; ++i) block[49 + 2 * i] = (block[49 + 2 * i] & 15) | digits[i] << 4;
      return;
    }
    if (name == "NVFP4") {  // a float, one for the row
      block[0] = 0x12, block[1] = 0x34, block[2] = 0x56, block[3] = 0x3c;
      for (int i = 4; i < 8; ++i) block[i] %= 0x7f;
      return;
    }
    std::vector<int> at = {0};
    if (of.scales == BlockScales::zeros) {
      block[2] %= 17;
    } else if (of.minimums) {
      at = {0, 2};
    }
    if (name == "Q2_K") at = {80, 82};
    if (name == "Q3_K") at = {108};
    if (name == "Q6_K") at = {208};
    if (name == "TQ1_0") at = {52};
    if (name == "TQ2_0") at = {64};
    for (const int i : at) block[i + 1] = (block[i + 1] & 0x80) | (0x14 + block[i + 1] % 16);
  }

  const BlockType& of;
  std::vector<uint8_t> bytes;
  mr_tensor tensor;
};

}  // namespace millrace

#endif
