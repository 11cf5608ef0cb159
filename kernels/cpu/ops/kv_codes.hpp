// How keys and values lie in a slab as codes: in the order in which bytes are multiplied,
// four at a time.
//
// A block is one KV head's 16 tokens, its codes and then their scales, in whole
// cache lines. Words are four bytes:
//   int8  keys    [head_dim / 4][16 tokens] words of four elements, each plus 128
//         values  [4][head_dim] words of four tokens
//         scales  [16 tokens] float32
//   int4  keys    [head_dim / 8][16 tokens] words of eight elements: byte i has element i
//                 in its low half and element i + 4 in its high one, each plus 8
//         values  [4][groups][16] words of four tokens: word i of a group has its element
//                 i in the low halves and its element i + 16 in the high ones, each plus 8
//         scales  [groups][16 tokens] bf16, a group being 32 elements
#ifndef MILLRACE_CPU_OPS_KV_CODES_HPP
#define MILLRACE_CPU_OPS_KV_CODES_HPP

#include <cstddef>
#include <cstdint>

#include "millrace_kernels.h"

namespace millrace::cpu {

// Tokens of a KV cache slab; the ABI's MR_SLAB_TOKENS.
inline constexpr int kSlabTokens = 16;

// Elements that share a scale of int4; the ABI's MR_KV_GROUP.
inline constexpr int kKvGroup = 32;
inline constexpr int kHalfGroup = kKvGroup / 2;

// Bits is 8 or 4.
template <int kBits>
struct KvCodes {
  int head_dim;

  static constexpr size_t kLine = 64;
  static constexpr size_t kScaleBytes = kBits == 8 ? 4 : 2;

  constexpr int groups() const { return kBits == 8 ? 1 : (head_dim + kKvGroup - 1) / kKvGroup; }
  // Words of a token's key, and of the values of four tokens.
  constexpr int key_words() const { return head_dim * kBits / 32; }
  constexpr int value_words() const { return kBits == 8 ? head_dim : groups() * kHalfGroup; }
  // Where the scales begin.
  constexpr size_t scales() const {
    const size_t keys = size_t(key_words()) * kSlabTokens * 4, values = size_t(value_words()) * 16;
    return keys > values ? keys : values;
  }
  constexpr size_t block_bytes() const {
    const size_t bytes = scales() + size_t(groups()) * kSlabTokens * kScaleBytes;
    return (bytes + kLine - 1) / kLine * kLine;
  }
};

// KIVI. A word has two bits of each of the 16 tokens:
//   keys    [head_dim] words, then [head_dim] bf16 for the two slabs of MR_KIVI_TOKENS: the scales
//           in the first one, the zeros in the second
//   values  [head_dim] words, then scales and zeros [groups][16 tokens] bf16 each, a group being
//           32 elements
// The last kExactTokens tokens are bf16 in the slabs at the beginning of the region, kExactInSlab
// in each block: token t is number t % kExactTokens there.
struct KiviCodes {
  int head_dim;

  static constexpr size_t kLine = 64;
  constexpr int groups() const { return (head_dim + kKvGroup - 1) / kKvGroup; }
  constexpr size_t parts() const { return sizeof(uint32_t) * head_dim; }  // where they begin
  constexpr size_t block_bytes() const {
    const size_t keys = parts() + sizeof(uint16_t) * head_dim;
    const size_t values = parts() + size_t(groups()) * 2 * kSlabTokens * sizeof(uint16_t);
    return ((keys > values ? keys : values) + kLine - 1) / kLine * kLine;
  }
};

// A row sees up to 2 * MR_KIVI_TOKENS - 1 tokens as bf16, its own included.
inline constexpr int kExactInSlab = 3, kExactSlabs = 2 * MR_KIVI_TOKENS / kExactInSlab + 1;
inline constexpr int kExactTokens = kExactInSlab * kExactSlabs;
static_assert(kExactTokens >= 2 * MR_KIVI_TOKENS - 1);

// Bytes from the KV head's block in the region's first slab to a token's bf16.
constexpr size_t exact_offset(size_t slab_bytes, int head_dim, int token) {
  const int number = token % kExactTokens;
  return slab_bytes * (number / kExactInSlab) +
         sizeof(uint16_t) * head_dim * (number % kExactInSlab);
}

// Quantize the key or value of a head into its token's place in a block.
void store_int8_key(const float* head, int head_dim, int token, std::byte* block);
void store_int8_value(const float* head, int head_dim, int token, std::byte* block);
void store_int4_key(const float* head, int head_dim, int token, std::byte* block);
void store_int4_value(const float* head, int head_dim, int token, std::byte* block);

}  // namespace millrace::cpu

#endif
