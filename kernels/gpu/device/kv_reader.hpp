// Keys and values of a block of 16 tokens as the products of attention want them. What the
// cache keeps (shapes.hpp) is widened in registers: codes are whole numbers, which operands hold
// exactly. Their scales are not in them: those of keys are for the scores, those of values for
// the probabilities, both of which a lane has for its own keys.
#ifndef MILLRACE_GPU_DEVICE_KV_READER_HPP
#define MILLRACE_GPU_DEVICE_KV_READER_HPP

#include <type_traits>

#include "matrix.hpp"

namespace mr_attention {
using namespace mr_matrix;

constexpr int kDim = MR_HEAD_DIM;  // of a key
#ifdef MR_VALUE_DIM
constexpr int kValueDim = MR_VALUE_DIM;
#else
constexpr int kValueDim = kDim;
#endif
#ifdef MR_LATENT
constexpr bool kLatent = MR_LATENT != 0;
#else
constexpr bool kLatent = false;
#endif
constexpr int kBits = MR_KV_BITS;
constexpr bool kCodes = kBits != 16;
#ifdef MR_SINKS
constexpr bool kSinks = MR_SINKS != 0;
#else
constexpr bool kSinks = false;
#endif
#ifdef MR_CHUNKED
constexpr bool kChunked = MR_CHUNKED != 0;
#else
constexpr bool kChunked = false;
#endif
#ifndef MR_STRIPES
#define MR_STRIPES 4
#endif
#ifdef MR_SOFTCAP
constexpr bool kSoftcap = MR_SOFTCAP != 0;
#else
constexpr bool kSoftcap = false;
#endif
constexpr int kKeyBytes = mr::kv_token_bytes(kDim, kBits);  // of a token
constexpr int kValueBytes = kLatent ? kKeyBytes : mr::kv_token_bytes(kValueDim, kBits);
// Elements of a head that share a scale.
constexpr int groups_of(int dim) { return kBits == 4 ? mr::kv_groups(dim) : 1; }
constexpr int kDepthBlocks = (kDim + mr::kDepth - 1) / mr::kDepth;  // of q . k
// Blocks whose loads may be under way together: those of a large key would take a GPU of 8 lanes all registers. A CPU's
// compiler would keep a vector of each of all queries' elements, as many bytes as the first cache has.
constexpr int kDepthUnroll = MR_STRIPES == 1 ? 1 : kDepthBlocks > 16 ? 4 : kDepthBlocks;
constexpr int kGroupUnroll = groups_of(kDim) < 4 ? groups_of(kDim) : 4;  // likewise
constexpr int kPadded = kDepthBlocks * mr::kDepth;
// A work-group takes a part of the values.
constexpr int kPart = mr::value_part(kValueDim), kParts = mr::value_parts(kValueDim);
constexpr int kPartPadded = (kPart + mr::kDepth - 1) / mr::kDepth * mr::kDepth;
constexpr int kDimBlocks = kPartPadded / MR_LANES;      // columns of p . V
constexpr int kKeyBlocks = mr::kSlabTokens / MR_LANES;  // columns of q . K^T

constexpr int kGroupDim = kBits == 4 ? mr::kKvGroup : kPadded;
constexpr int kValueGroupDim = kBits == 4 ? mr::kKvGroup : kPartPadded;
constexpr int kHalfGroup = mr::kKvGroup / 2;  // bytes of int4 codes
// Probabilities times scales are of the values' magnitude where codes count as below 1: the
// range of f16 is used as with values that are operands.
constexpr float kValueUnit = kBits == 8 ? 128.0f : kBits == 4 ? 8.0f : 1.0f;

// The tokens of a block lie one after the other in a slab, or, for a beam, each at an address of its
// own (lane n knows token n's address, and the data `offset` after it).
template <int kTokenBytes>
struct Slab {
  const uint8_t* data;
  MR_INLINE const uint8_t* lanes_token(int b, int lane) const {
    return data + (b * MR_LANES + lane) * kTokenBytes;
  }
  // Element i of token's elements of type T.
  template <class T>
  MR_INLINE T at(int token, int i) const {
    return reinterpret_cast<const T*>(data + token * kTokenBytes)[i];
  }
  // The same, where the lanes' elements lie side by side.
  template <class T>
  MR_INLINE T of_lane(int token, int i, int lane) const {
#if MR_XMX  // with other loads, or another sum of i, eight queries of pvc spill
    return at<T>(token, i);
#else
    static_assert(kTokenBytes % 4 == 0);
    return load_lanes(this_item().get_sub_group(),
                      reinterpret_cast<const T*>(data + token * kTokenBytes) + (i - lane));
#endif
  }
};
struct Scattered {
  int64_t offset;
  uint64_t place[kKeyBlocks];
  MR_INLINE const uint8_t* lanes_token(int b, int) const { return kv_memory(place[b]) + offset; }
  template <class T>
  MR_INLINE T at(int token, int i) const {
    const auto* first = reinterpret_cast<const T*>(kv_memory(sycl::group_broadcast(
        this_item().get_sub_group(), place[token / MR_LANES], token % MR_LANES)));
    const int64_t after = offset / static_cast<int64_t>(sizeof(T));
    // One sum, in the order that leaves a GPU of 8 lanes registers (scripts/sycl-isa).
    if constexpr (kBits == 8 && kDim > 128) {
      return first[static_cast<uint32_t>(after) + static_cast<uint32_t>(i)];  // within a slab
    }
    return kCodes && kDim < 128 ? first[after + i] : (first + after)[i];
  }
  template <class T>
  MR_INLINE T of_lane(int token, int i, int) const {
    return at<T>(token, i);
  }
};

// The operand of a code, -128 to 127.
MR_INLINE operand exact(int32_t code) {
#if MR_BF16
  return static_cast<operand>(sycl::bit_cast<uint32_t>(static_cast<float>(code)) >> 16);
#else
  return sycl::bit_cast<operand>(static_cast<sycl::half>(code));
#endif
}

// Two of a word's four signed bytes as a pair of operands.
MR_INLINE uint32_t widened(uint32_t word, int first) {
  const auto code = [&](int k) { return static_cast<int32_t>(word << (24 - 8 * k)) >> 24; };
  return exact(code(first)) | static_cast<uint32_t>(exact(code(first + 1))) << 16;
}

// Keys of a column block as B: lane n is key n, the sum runs along the head.
template <class Tokens>
MR_INLINE Columns load_keys(const Tokens& keys, int key_block, int depth_block, int lane) {
  Columns b;
  const int first = depth_block * mr::kDepth;
  const uint8_t* key = keys.lanes_token(key_block, lane);
  if constexpr (!kCodes) {
    const auto* pairs = reinterpret_cast<const uint32_t*>(key + first * sizeof(operand));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool inside = kDim % mr::kDepth == 0 || first + 2 * i < kDim;  // kDim is even
      b.words[i] = inside ? pairs[i] : 0;
    }
    return b;
  }
  const auto* words =
      reinterpret_cast<const uint32_t*>(key + (kBits == 8 ? first : first / 32 * kHalfGroup));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t word = 0;
    if constexpr (kBits == 8) {
      if (kDim % mr::kDepth == 0 || first + 4 * i < kDim) word = words[i];
    } else {
      word = centered(words[i] >> (first % 32 == 0 ? 0 : 4) & 0x0f0f0f0fu);
    }
    b.words[2 * i] = widened(word, 0);
    b.words[2 * i + 1] = widened(word, 2);
  }
  return b;
}

// Keys of kKeyDepths depth blocks.
#if MR_STRIPES == 1 && MR_LANES == 16
constexpr int kKeyDepths = !kCodes && kDim % (2 * mr::kDepth) == 0 ? 2 : 1;
#else
constexpr int kKeyDepths = 1;
#endif
template <class Tokens>
MR_INLINE void load_keys(const Tokens& keys, int key_block, int depth_block, int lane,
                         Columns (&b)[kKeyDepths]) {
#pragma unroll
  for (int i = 0; i < kKeyDepths; ++i) b[i] = load_keys(keys, key_block, depth_block + i, lane);
}
#if MR_STRIPES == 1 && MR_LANES == 16
// x[i] of lane j becomes x[j] of lane i.
MR_INLINE void turn(const sycl::sub_group& sub_group, int lane, uint32_t (&x)[MR_LANES]) {
#pragma unroll
  for (int step = MR_LANES / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < MR_LANES; ++i) {
      if (i & step) continue;
      const bool upper = (lane & step) != 0;
      const uint32_t low = x[i], high = x[i + step];
      const uint32_t other = sycl::permute_group_by_xor(sub_group, upper ? low : high, step);
      x[i] = upper ? other : low;
      x[i + step] = upper ? high : other;
    }
}
// A CPU loads a token with one instruction, and a word of each lane's token with 16.
template <int kTokenBytes>
MR_INLINE void load_keys(const Slab<kTokenBytes>& keys, int, int depth_block, int lane,
                         Columns (&b)[2]) {
  const auto sub_group = this_item().get_sub_group();
  const int first = depth_block * mr::kDepth / 2;
  uint32_t words[MR_LANES];
#pragma unroll
  for (int token = 0; token < MR_LANES; ++token) {
    words[token] = keys.template of_lane<uint32_t>(token, first + lane, lane);
  }
  turn(sub_group, lane, words);
#pragma unroll
  for (int i = 0; i < MR_LANES; ++i) b[i / 8].words[i % 8] = words[i];
}
#endif

// An element of a value: an operand, or a code. Each lane's column is one after the lane's before. After
// kValueDim there may be anything.
template <class Tokens>
MR_INLINE int32_t value(const Tokens& values, int token, int column, int lane) {
  using Element = std::conditional_t<kBits == 8, int8_t, operand>;
  if constexpr (kBits == 4) {
    const int group = column / mr::kKvGroup, i = column % mr::kKvGroup;
    const int byte = values.template at<uint8_t>(token, group * kHalfGroup + i % kHalfGroup);
    return (byte >> (i < kHalfGroup ? 0 : 4) & 0xf) - 8;
  } else if constexpr (kValueDim % MR_LANES == 0) {
    return values.template of_lane<Element>(token, column, lane);
  } else {
    // Lanes after the head read too: at() is for all lanes together.
    const bool inside = column < kValueDim;
    const int32_t x = values.template at<Element>(token, inside ? column : 0);
    return inside ? x : 0;
  }
}
MR_INLINE float value_float(int32_t value) {
  return kCodes ? static_cast<float>(value) : to_float(static_cast<operand>(value));
}

// Values of a block as B: lane n is an element of the head, the sum runs along
// the keys. After the last key there may be anything: it counts as 0, codes by their scale.
template <class Tokens>
MR_INLINE Columns load_values(const Tokens& values, int column, int lane, int keys) {
  Columns b;
  const auto element = [&](int token) -> uint32_t {
    if constexpr (kCodes) return exact(value(values, token, column, lane));
    return token < keys ? value(values, token, column, lane) : 0;
  };
#pragma unroll
  for (int i = 0; i < 8; ++i) b.words[i] = element(2 * i) | element(2 * i + 1) << 16;
  return b;
}

// The scale of a group of this lane's token, of `kWidth` elements.
template <int kWidth, class Tokens>
MR_INLINE float scale_of(const Tokens& tokens, int block, int group, int lane) {
  const uint8_t* token = tokens.lanes_token(block, lane);
  if constexpr (kBits == 8) return *reinterpret_cast<const float*>(token + kWidth);
  const uint8_t* scales = token + groups_of(kWidth) * kHalfGroup;
  return bf16_to_float(reinterpret_cast<const uint16_t*>(scales)[group]);
}

}  // namespace mr_attention

#endif
