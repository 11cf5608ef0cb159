// Expands KIVI's codes, and copies the last tokens, to blocks of pairs of bf16. Included as
// cpu/ops/row_tile.hpp is.
#ifndef MILLRACE_CPU_ATTENTION_KIVI_HPP
#define MILLRACE_CPU_ATTENTION_KIVI_HPP

#include "cpu/attention/blocks.hpp"

namespace millrace::cpu {
namespace {

template <class T>
struct KiviPairs {
  using Vector = typename T::Vector;
  using Ints = typename T::Ints;
  static constexpr int kLanes = T::kLanes;

  struct Room : PairRoom {
    Room(std::byte*& at, HeadShape head) : PairRoom(at, head.key, Softmax<T>::padded(head.value)) {}
  };

  static Block find(const AttentionTile& t, const Keys& keys, int, const Room& room) {
    const int d = t.head.key, width = Softmax<T>::padded(d);
    Block block{};
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      auto* pairs = room.keys + int64_t{slab} * kSlabTokens * d / 2;
      auto* values = room.values + int64_t{slab} * kSlabTokens / 2 * width;
      if (t.recent == Recent::only) {
        gather(t, keys, slab, pairs, values);
      } else {
        const int number = keys.block / kSlabTokens + slab, first = number & ~1;
        expand_keys(t.keys + t.slab_bytes * number, t.keys + t.slab_bytes * first, t.slab_bytes, d,
                    pairs);
        expand_values(t.values + t.slab_bytes * number, d, values);
      }
      block.keys[slab] = pairs;
      block.values[slab] = values;
    }
    return block;
  }

  // Copies tokens of this step from its rows, and the others from the region's first slabs. Places
  // without a key are 0.
  static void gather(const AttentionTile& t, const Keys& keys, int slab, uint32_t* to_keys,
                     uint32_t* to_values) {
    const int d = t.head.key, width = Softmax<T>::padded(d);
    __builtin_memset(to_keys, 0, sizeof(uint32_t) * kSlabTokens * d / 2);
    __builtin_memset(to_values, 0, sizeof(uint32_t) * kSlabTokens / 2 * width);
    const int begin = larger(keys.begin, slab * kSlabTokens);
    const int end = smaller(keys.end, (slab + 1) * kSlabTokens);
    for (int i = begin; i < end; ++i) {
      const int token = keys.block + i, to = i % kSlabTokens, left = to % 2 * 16;
      uint32_t* const out = to_values + to / 2 * width;
      if (token >= t.step_position) {
        const float* k = t.step_keys + (token - t.step_position) * t.q_stride;
        const float* v = t.step_values + (token - t.step_position) * t.q_stride;
        for (int j = 0; j < d; j += 2) {
          to_keys[j / 2 * kSlabTokens + to] =
              uint32_t{from_float(k[j])} | uint32_t{from_float(k[j + 1])} << 16;
        }
        for (int j = 0; j < d; ++j) out[j] |= uint32_t{from_float(v[j])} << left;
        continue;
      }
      const size_t at = exact_offset(t.slab_bytes, d, token);
      const auto* k = reinterpret_cast<const bf16*>(t.recent_keys + at);
      const auto* v = reinterpret_cast<const bf16*>(t.recent_values + at);
      for (int j = 0; j < d; j += 2) {
        to_keys[j / 2 * kSlabTokens + to] = uint32_t{k[j]} | uint32_t{k[j + 1]} << 16;
      }
      for (int j = 0; j < d; ++j) out[j] |= uint32_t{v[j]} << left;
    }
  }

  static float part(const std::byte* parts, int i) {
    return to_float(reinterpret_cast<const bf16*>(parts)[i]);
  }
  // zero + scale * two bits of each lane.
  static Vector element(Ints codes, float scale, float zero) {
    return __builtin_convertvector(codes & 3, Vector) * T::set1(scale) + T::set1(zero);
  }
  static void store(uint32_t* p, Vector even, Vector odd) {
    const Ints half = Ints{} + 0x8000;
    const Ints pairs = ((((Ints)even + half) >> 16) & 0xffff) | (((Ints)odd + half) & ~0xffff);
    __builtin_memcpy(p, &pairs, sizeof pairs);
  }

  // first: the block of the first slab of the group, which is followed by the second one's.
  static void expand_keys(const std::byte* block, const std::byte* first, size_t slab_bytes, int d,
                          uint32_t* to) {
    const auto* words = reinterpret_cast<const int32_t*>(block);
    const std::byte* scales = first + KiviCodes{d}.parts();
    const std::byte* zeros = scales + slab_bytes;
    for (int i = 0; i < kSlabTokens; i += kLanes) {
      Ints shift;
      for (int lane = 0; lane < kLanes; ++lane) shift[lane] = 2 * (i + lane);
      for (int k = 0; k < d; k += 2) {
        store(to + k / 2 * kSlabTokens + i,
              element((Ints{} + words[k]) >> shift, part(scales, k), part(zeros, k)),
              element((Ints{} + words[k + 1]) >> shift, part(scales, k + 1), part(zeros, k + 1)));
      }
    }
  }

  static void expand_values(const std::byte* block, int d, uint32_t* to) {
    const int width = Softmax<T>::padded(d);
    const KiviCodes layout{d};
    const std::byte* scales = block + layout.parts();
    const std::byte* zeros = scales + sizeof(bf16) * layout.groups() * kSlabTokens;
    for (int i = 0; i < width; i += kLanes) {
      Ints words;
      __builtin_memcpy(&words, block + sizeof(uint32_t) * i, sizeof words);
      const int g = i / kKvGroup * kSlabTokens;
      for (int t = 0; t < kSlabTokens; t += 2) {
        store(to + t / 2 * width + i,
              element(words >> (2 * t), part(scales, g + t), part(zeros, g + t)),
              element(words >> (2 * t + 2), part(scales, g + t + 1), part(zeros, g + t + 1)));
      }
    }
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
