// Blocks of bf16 keys and values as the products of pairs read them; included as
// cpu/ops/row_tile.hpp is.
#ifndef MILLRACE_CPU_ATTENTION_BLOCKS_HPP
#define MILLRACE_CPU_ATTENTION_BLOCKS_HPP

#include "cpu/attention/softmax.hpp"

namespace millrace::cpu {
namespace {

// Where the keys and values of a block are, slab by slab.
struct Block {
  const uint32_t* keys[kBlockSlabs];    // [key width / 2][16] pairs of elements
  const uint32_t* values[kBlockSlabs];  // [8][padded] pairs of tokens
  // Bytes from these to the prefetched lines.
  size_t keys_ahead[kBlockSlabs], values_ahead[kBlockSlabs];
};

// Memory of a thread for what cannot be read in place.
struct PairRoom {
  uint32_t* keys;    // [4 slabs][key width / 2][16] pairs of elements
  uint32_t* values;  // [4 slabs][8][padded] pairs of tokens

  PairRoom(std::byte*& at, int key, int padded)
      : keys(take<uint32_t>(at, int64_t{kBlockTokens} * key / 2)),
        values(take<uint32_t>(at, int64_t{kBlockTokens} / 2 * padded)) {}
};

// A cache of bf16.
template <class T>
struct InPlace {
  struct Room : PairRoom {
    Room(std::byte*& at, HeadShape head) : PairRoom(at, head.key, padded(head.value)) {}
  };

  static int padded(int width) { return Softmax<T>::padded(width); }

  // The block as one row of the tile sees it: in place, but for what beams gather, for
  // values that end inside a slab or a vector, and for those of latents. After the last key there may be values of another
  // sequence. They must not count, not even times a probability of zero: they might be NaN.
  static Block find(const AttentionTile& t, const Keys& keys, int row, const Room& room) {
    const int d = t.head.value, width = padded(d);
    Block block{};
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      const int number = keys.block / kSlabTokens + slab;
      const size_t at = t.slab_bytes * number;
      auto* values = room.values + int64_t{slab} * kSlabTokens / 2 * width;
      const int valid = keys.end - slab * kSlabTokens;
      if (gathered(t, keys, slab)) {
        auto* pairs = room.keys + int64_t{slab} * kSlabTokens * t.head.key / 2;
        gather(t, keys, slab, row, pairs, values);
        block.keys[slab] = pairs;
        block.values[slab] = values;
        if (t.head.latent) turn(pairs, kSlabTokens, d, values);
        continue;
      }
      block.keys[slab] = reinterpret_cast<const uint32_t*>(t.keys + at);
      if (t.head.latent) {
        block.keys_ahead[slab] = ahead(t, number, kBlockSlabs);
        turn(block.keys[slab], valid, d, values);
        block.values[slab] = values;
        continue;
      }
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

  // The first d elements of the first `valid` tokens of a slab's keys as values, and zeros.
  static void turn(const uint32_t* keys, int valid, int d, uint32_t* to) {
    const int width = padded(d);
    for (int k = 0; k < kSlabTokens; k += 2, to += width) {
      const uint32_t even = k < valid ? 0xffff : 0, odd = k + 1 < valid ? 0xffff : 0;
      for (int i = 0; i < d; i += 2) {
        const uint32_t x = keys[i / 2 * kSlabTokens + k], y = keys[i / 2 * kSlabTokens + k + 1];
        to[i] = (x & even) | (y & odd) << 16;
        to[i + 1] = (x >> 16 & even) | (y >> 16 & odd) << 16;
      }
      for (int i = d; i < width; ++i) to[i] = 0;
    }
  }

  // Sixteen tokens of a beam's past, of the prompt and of the regions that the
  // index names; zeros where the block has no keys.
  static void gather(const AttentionTile& t, const Keys& keys, int slab, int row, uint32_t* to_keys,
                     uint32_t* to_values) {
    const int d = t.head.value, width = padded(d);
    __builtin_memset(to_keys, 0, sizeof(uint32_t) * kSlabTokens * t.head.key / 2);
    __builtin_memset(to_values, 0, sizeof(uint32_t) * kSlabTokens / 2 * width);
    const int begin = larger(keys.begin, slab * kSlabTokens);
    const int end = smaller(keys.end, (slab + 1) * kSlabTokens);
    for (int key = begin; key < end; ++key) {
      const BeamToken from = beam_token(t, row, keys.block + key);
      const int to = key % kSlabTokens;
      const auto* pairs = reinterpret_cast<const uint32_t*>(from.keys) + from.token;
      for (int k = 0; k < t.head.key / 2; ++k)
        to_keys[k * kSlabTokens + to] = pairs[k * kSlabTokens];
      if (t.head.latent) continue;
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
