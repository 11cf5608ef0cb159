// Blocks of keys and values that the cache keeps as codes (cpu/ops/kv_codes.hpp), and their
// expansion to pairs of bf16 for processors that multiply no bytes; included as
// cpu/ops/row_tile.hpp is.
#ifndef MILLRACE_CPU_ATTENTION_CODES_HPP
#define MILLRACE_CPU_ATTENTION_CODES_HPP

#include "cpu/attention/blocks.hpp"

namespace millrace::cpu {
namespace {

// Codes of a block, slab by slab, and its scales as floats.
struct CodeBlock {
  const uint32_t* keys[kBlockSlabs];  // words, as cpu/ops/kv_codes.hpp has them
  const uint32_t* values[kBlockSlabs];
  const float* key_scales[kBlockSlabs];    // [groups][16 tokens], 0 after the last key
  const float* value_scales[kBlockSlabs];  // of a slab without keys: zeros
  size_t ahead[kBlockSlabs];               // bytes to the prefetched codes
};

// Up to two queries that share the read of a slab of codes finish it sooner than memory
// answers: it is prefetched kLongPrefetchSlabs before. More queries lose by it.
constexpr int kLongPrefetchQueries = 2, kLongPrefetchSlabs = 4 * kBlockSlabs;

template <int kBits>
struct Coded {
  using Codes = KvCodes<kBits>;

  struct Room {
    uint32_t *keys, *values;           // [4 slabs][words]: of beams
    float *key_scales, *value_scales;  // [4 slabs][groups][16 tokens]

    Room(std::byte*& at, HeadShape head)
        : keys(take<uint32_t>(at, int64_t{kBlockTokens} * Codes{head.key}.key_words())),
          values(take<uint32_t>(at, int64_t{kBlockTokens} / 4 * Codes{head.value}.value_words())),
          key_scales(take<float>(at, int64_t{kBlockTokens} * Codes{head.key}.groups())),
          value_scales(take<float>(at, int64_t{kBlockTokens} * Codes{head.value}.groups())) {
      at += 64;  // vectors reach past the last words
    }
  };

  alignas(64) static constexpr float kNoScales[kMaxHeadDim / kKvGroup * kSlabTokens] = {};

  // The block as one row of the tile sees it. Any codes are numbers, so a scale of zero is
  // enough for tokens after the last key.
  static CodeBlock find(const AttentionTile& t, const Keys& keys, int row, const Room& room) {
    const Codes key_codes{t.head.key}, value_codes{t.head.value};
    const int of_keys = key_codes.groups() * kSlabTokens;
    const int of_values = value_codes.groups() * kSlabTokens;
    CodeBlock block{};
    for (const float*& none : block.value_scales) none = kNoScales;
    const int slabs_ahead = t.queries() > kLongPrefetchQueries ? kBlockSlabs : kLongPrefetchSlabs;
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      float* const key_scales = room.key_scales + int64_t{slab} * of_keys;
      float* const value_scales = room.value_scales + int64_t{slab} * of_values;
      block.key_scales[slab] = key_scales;
      block.value_scales[slab] = value_scales;
      if (gathered(t, keys, slab)) {
        auto* key_words = room.keys + int64_t{slab} * kSlabTokens * key_codes.key_words();
        auto* value_words =
            room.values + int64_t{slab} * kSlabTokens / 4 * value_codes.value_words();
        __builtin_memset(key_scales, 0, sizeof(float) * of_keys);
        __builtin_memset(value_scales, 0, sizeof(float) * of_values);
        const int begin = larger(keys.begin, slab * kSlabTokens);
        const int end = smaller(keys.end, (slab + 1) * kSlabTokens);
        for (int key = begin; key < end; ++key) {
          const BeamToken from = beam_token(t, row, keys.block + key);
          const int to = key % kSlabTokens;
          copy_key(key_codes, from, to, key_words);
          copy_value(value_codes, from, to, value_words);
          copy_scale(key_codes, from.keys, from.token, to, key_scales);
          copy_scale(value_codes, from.values, from.token, to, value_scales);
        }
        block.keys[slab] = key_words;
        block.values[slab] = value_words;
        continue;
      }
      const int number = keys.block / kSlabTokens + slab;
      const size_t at = t.slab_bytes * number;
      const int valid = smaller(keys.end - slab * kSlabTokens, kSlabTokens);
      block.keys[slab] = reinterpret_cast<const uint32_t*>(t.keys + at);
      block.values[slab] = reinterpret_cast<const uint32_t*>(t.values + at);
      block.ahead[slab] = ahead(t, number, slabs_ahead);
      copy_scales(key_codes, t.keys + at, valid, key_scales);
      copy_scales(value_codes, t.values + at, valid, value_scales);
    }
    return block;
  }

  static float scale_at(const std::byte* scales, int i) {
    if constexpr (kBits == 8) return reinterpret_cast<const float*>(scales)[i];
    const uint32_t bits = uint32_t{reinterpret_cast<const bf16*>(scales)[i]} << 16;
    float scale;
    __builtin_memcpy(&scale, &bits, sizeof scale);
    return scale;
  }

  static void copy_scales(const Codes& codes, const std::byte* block, int valid, float* to) {
    const std::byte* from = block + codes.scales();
    for (int g = 0; g < codes.groups(); ++g, to += kSlabTokens) {
      if constexpr (kBits == 8) {
        __builtin_memcpy(to, from, sizeof(float) * kSlabTokens);
      } else {
        typedef bf16 Halves __attribute__((vector_size(2 * kSlabTokens)));
        typedef uint32_t Words __attribute__((vector_size(4 * kSlabTokens)));
        Halves halves;
        __builtin_memcpy(&halves, from + g * sizeof halves, sizeof halves);
        const Words words = __builtin_convertvector(halves, Words) << 16;
        __builtin_memcpy(to, &words, sizeof words);
      }
      for (int i = valid; i < kSlabTokens; ++i) to[i] = 0;
    }
  }

  static void copy_scale(const Codes& codes, const std::byte* block, int from, int to,
                         float* scales) {
    for (int g = 0; g < codes.groups(); ++g) {
      scales[g * kSlabTokens + to] = scale_at(block + codes.scales(), g * kSlabTokens + from);
    }
  }

  static void copy_key(const Codes& codes, const BeamToken& from, int to, uint32_t* words) {
    const auto* source = reinterpret_cast<const uint32_t*>(from.keys) + from.token;
    for (int w = 0; w < codes.key_words(); ++w) {
      words[w * kSlabTokens + to] = source[w * kSlabTokens];
    }
  }

  static void copy_value(const Codes& codes, const BeamToken& from, int to, uint32_t* words) {
    const int n = codes.value_words();
    const auto* source = reinterpret_cast<const uint8_t*>(from.values) +
                         int64_t{from.token / 4} * n * 4 + from.token % 4;
    auto* bytes = reinterpret_cast<uint8_t*>(words) + int64_t{to / 4} * n * 4 + to % 4;
    for (int w = 0; w < n; ++w) bytes[4 * w] = source[4 * w];
  }
};

// Pairs of bf16, each the nearest to scale * code.
template <class T, int kBits>
struct Expanded {
  using Vector = typename T::Vector;
  using Ints = typename T::Ints;
  using Codes = KvCodes<kBits>;
  static constexpr int kLanes = T::kLanes;
  static constexpr int kWordElements = 32 / kBits;

  struct Room : PairRoom {
    typename Coded<kBits>::Room codes;

    Room(std::byte*& at, HeadShape head)
        : PairRoom(at, head.key, Softmax<T>::padded(head.value)), codes(at, head) {}
  };

  static Block find(const AttentionTile& t, const Keys& keys, int row, const Room& room) {
    const CodeBlock coded = Coded<kBits>::find(t, keys, row, room.codes);
    const int d = t.head.key, width = Softmax<T>::padded(t.head.value);
    Block block{};
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      auto* pairs = room.keys + int64_t{slab} * kSlabTokens * d / 2;
      auto* values = room.values + int64_t{slab} * kSlabTokens / 2 * width;
      expand_keys(coded.keys[slab], coded.key_scales[slab], d, pairs);
      if constexpr (kBits == 8) {
        expand_values8(coded.values[slab], coded.value_scales[slab], t.head.value, values);
      } else {
        expand_values4(coded.values[slab], coded.value_scales[slab], t.head.value, values);
      }
      block.keys[slab] = pairs;
      block.values[slab] = values;
    }
    return block;
  }

  // Bits [at, at + kBits) of every lane, signed, times the scale.
  static Vector element(Ints words, int at, Vector scale) {
    const Ints code = (words << (32 - kBits - at)) >> (32 - kBits);
    return __builtin_convertvector(code, Vector) * scale;
  }

  static Ints pair(Vector even, Vector odd) {
    const Ints half = Ints{} + 0x8000;
    return ((((Ints)even + half) >> 16) & 0xffff) | (((Ints)odd + half) & ~0xffff);
  }

  // Words whose codes are signed instead of offset by 128 or 8.
  static Ints load(const uint32_t* p, uint32_t flip) {
    Ints words;
    __builtin_memcpy(&words, p, sizeof words);
    return words ^ static_cast<int32_t>(flip);
  }
  static void store(uint32_t* p, Ints pairs) { __builtin_memcpy(p, &pairs, sizeof pairs); }

  static void expand_keys(const uint32_t* words, const float* scales, int d, uint32_t* to) {
    constexpr uint32_t kFlip = kBits == 8 ? 0x80808080u : 0x88888888u;
    for (int w = 0; w < Codes{d}.key_words(); ++w) {
      const float* group = scales + (kBits == 8 ? 0 : w * kWordElements / kKvGroup) * kSlabTokens;
      for (int i = 0; i < kSlabTokens; i += kLanes) {
        const Ints x = load(words + w * kSlabTokens + i, kFlip);
        const Vector scale = T::load(group + i);
        for (int k = 0; k < kWordElements; k += 2) {
          // Bytes 0 to 3, and of int4 then their high halves.
          const int at = k % 4 * 8 + k / 4 * 4;
          store(to + (w * kWordElements + k) / 2 * kSlabTokens + i,
                pair(element(x, at, scale), element(x, at + 8, scale)));
        }
      }
    }
  }

  // Four tokens of some elements, whose codes begin at bit `at` of each byte.
  static void expand_tokens(Ints x, int at, const float* scales, int width, uint32_t* to) {
    for (int k = 0; k < 4; k += 2) {
      store(to + k / 2 * width, pair(element(x, at + 8 * k, T::set1(scales[k])),
                                     element(x, at + 8 * k + 8, T::set1(scales[k + 1]))));
    }
  }

  static void expand_values8(const uint32_t* words, const float* scales, int d, uint32_t* to) {
    const int width = Softmax<T>::padded(d);
    for (int k = 0; k < kSlabTokens; k += 4, words += d, to += 2 * width) {
      for (int i = 0; i < width; i += kLanes) {
        expand_tokens(load(words + i, 0), 0, scales + k, width, to + i);
      }
    }
  }

  static void expand_values4(const uint32_t* words, const float* scales, int d, uint32_t* to) {
    const int width = Softmax<T>::padded(d), groups = Codes{d}.groups();
    for (int k = 0; k < kSlabTokens; k += 4, words += groups * kHalfGroup, to += 2 * width) {
      for (int i = 0; i < width; i += kLanes) {
        const int g = i / kKvGroup, high = i % kKvGroup / kHalfGroup;
        const Ints x = load(words + g * kHalfGroup + i % kHalfGroup, 0x88888888u);
        expand_tokens(x, 4 * high, scales + g * kSlabTokens + k, width, to + i);
      }
    }
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
