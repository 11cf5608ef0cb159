// Blocks of bf16 keys and values as the products of pairs read them; included as
// cpu/ops/row_tile.hpp is.
#ifndef MILLRACE_CPU_ATTENTION_BLOCKS_HPP
#define MILLRACE_CPU_ATTENTION_BLOCKS_HPP

#include "cpu/attention/softmax.hpp"

namespace millrace::cpu {
namespace {

// Where the keys and values of a block are, slab by slab.
struct Block {
  const uint32_t* keys[kBlockSlabs];    // [head_dim / 2][16] pairs of elements
  const uint32_t* values[kBlockSlabs];  // [8][padded] pairs of tokens
  // Bytes from these to the prefetched lines.
  size_t keys_ahead[kBlockSlabs], values_ahead[kBlockSlabs];
};

// Memory of a thread for what cannot be read in place.
struct PairRoom {
  uint32_t* keys;    // [4 slabs][head_dim / 2][16] pairs of elements
  uint32_t* values;  // [4 slabs][8][padded] pairs of tokens

  PairRoom(std::byte*& at, int head_dim, int padded)
      : keys(take<uint32_t>(at, int64_t{kBlockTokens} * head_dim / 2)),
        values(take<uint32_t>(at, int64_t{kBlockTokens} / 2 * padded)) {}
};

// A cache of bf16.
template <class T>
struct InPlace {
  struct Room : PairRoom {
    Room(std::byte*& at, int head_dim) : PairRoom(at, head_dim, padded(head_dim)) {}
  };

  static int padded(int head_dim) { return Softmax<T>::padded(head_dim); }

  // The block as one row of the tile sees it: in place, but for what beams gather and
  // for values that end inside a slab or a vector. After the last key there may be values of another
  // sequence. They must not count, not even times a probability of zero: they might be NaN.
  static Block find(const AttentionTile& t, const Keys& keys, int row, const Room& room) {
    const int d = t.head_dim, width = padded(d);
    Block block{};
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      const int number = keys.block / kSlabTokens + slab;
      const size_t at = t.slab_bytes * number;
      auto* values = room.values + int64_t{slab} * kSlabTokens / 2 * width;
      const int valid = keys.end - slab * kSlabTokens;
      if (gathered(t, keys, slab)) {
        auto* pairs = room.keys + int64_t{slab} * kSlabTokens * d / 2;
        gather(t, keys, slab, row, pairs, values);
        block.keys[slab] = pairs;
        block.values[slab] = values;
        continue;
      }
      block.keys[slab] = reinterpret_cast<const uint32_t*>(t.keys + at);
      block.values[slab] = reinterpret_cast<const uint32_t*>(t.values + at);
      block.keys_ahead[slab] = block.values_ahead[slab] = ahead(t, number, kBlockSlabs);
      if (valid < kSlabTokens || width != d) {
        copy_values(block.values[slab], valid, d, values);
        block.values_ahead[slab] += t.values + at - reinterpret_cast<const std::byte*>(values);
        block.values[slab] = values;
      }
    }
    return block;
  }

  // The first `valid` tokens of a slab's values, and zeros.
  static void copy_values(const uint32_t* from, int valid, int d, uint32_t* to) {
    const int width = padded(d);
    for (int k = 0; k < kSlabTokens; k += 2, from += d, to += width) {
      const uint32_t mask = k >= valid ? 0 : k + 1 == valid ? 0xffff : ~uint32_t{0};
      for (int i = 0; i < d; ++i) to[i] = mask == 0 ? 0 : from[i] & mask;
    }
  }

  // Sixteen tokens of a beam's past, of the prompt and of the regions that the
  // index names; zeros where the block has no keys.
  static void gather(const AttentionTile& t, const Keys& keys, int slab, int row, uint32_t* to_keys,
                     uint32_t* to_values) {
    const int d = t.head_dim, width = padded(d);
    __builtin_memset(to_keys, 0, sizeof(uint32_t) * kSlabTokens * d / 2);
    __builtin_memset(to_values, 0, sizeof(uint32_t) * kSlabTokens / 2 * width);
    const int begin = larger(keys.begin, slab * kSlabTokens);
    const int end = smaller(keys.end, (slab + 1) * kSlabTokens);
    for (int key = begin; key < end; ++key) {
      const BeamToken from = beam_token(t, row, keys.block + key);
      const int to = key % kSlabTokens;
      const auto* pairs = reinterpret_cast<const uint32_t*>(from.keys) + from.token;
      for (int k = 0; k < d / 2; ++k) to_keys[k * kSlabTokens + to] = pairs[k * kSlabTokens];
      pairs = reinterpret_cast<const uint32_t*>(from.values) + from.token / 2 * d;
      uint32_t* const out = to_values + to / 2 * width;
      const int right = from.token % 2 * 16, left = to % 2 * 16;
      for (int i = 0; i < d; ++i) out[i] |= (pairs[i] >> right & 0xffff) << left;
    }
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
