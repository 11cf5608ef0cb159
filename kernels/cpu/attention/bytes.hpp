// Attention over a cache of codes by products of bytes. Included as cpu/ops/row_tile.hpp is.
//
// A query is rounded to int8 by its largest magnitude; so are a block's probabilities, each
// times the scale of its value: over int8 to 0 to 255, over int4, whose scales may be
// negative, to -127 to 127. Sums of codes' products are exact integers, so that the
// arithmetic of a query is the same whatever tile it stands in.
#ifndef MILLRACE_CPU_ATTENTION_BYTES_HPP
#define MILLRACE_CPU_ATTENTION_BYTES_HPP

#include "cpu/attention/products.hpp"

namespace millrace::cpu {
namespace {

// B as cpu/attention/products.hpp describes it.
template <class B, int kBits>
struct ByteAttention {
  using P = Products<B, kBits>;
  using T = typename B::Floats;
  using S = Softmax<T>;
  using State = typename S::State;
  using Vector = typename T::Vector;
  using Ints = typename T::Ints;
  using Codes = KvCodes<kBits>;
  using Quad = typename P::Quad;
  static constexpr int kLanes = T::kLanes;
  static constexpr int kBlockVectors = S::kBlockVectors;
  static constexpr int kQueries = B::kQueries;
  static constexpr int kMostCode = 127, kMostProbability = kBits == 8 ? 255 : 127;

  struct Scratch {
    std::byte* end;
    Quad* queries;     // [queries][key width / 4]
    float* scales;     // [queries]
    int32_t* offsets;  // [queries][groups]
    typename Coded<kBits>::Room room;

    Scratch(void* memory, HeadShape head)
        : end(static_cast<std::byte*>(memory)),
          queries(take<Quad>(end, int64_t{tile_queries(head)} * head.key / 4)),
          scales(take<float>(end, tile_queries(head))),
          offsets(take<int32_t>(end, int64_t{tile_queries(head)} * Codes{head.key}.groups())),
          room(end, head) {}

    typename P::Queries codes() const { return {queries, scales, offsets}; }
  };

  static size_t scratch_bytes(HeadShape head) {
    const Scratch s(nullptr, head);
    return reinterpret_cast<uintptr_t>(s.end);
  }

  static CodeBlock find(const AttentionTile& t, const Keys& keys, int row, const Scratch& s) {
    return Coded<kBits>::find(t, keys, row, s.room);
  }

  static void prepare(const AttentionTile& t, void* memory) {
    const Scratch s(memory, t.head);
    for (int i = 0; i < t.queries(); ++i) prepare(t, t.query(i), i, s);
  }

  static void prepare(const AttentionTile& t, const float* q, int i, const Scratch& s) {
    const int groups = Codes{t.head.key}.groups();
    Vector most = {}, all = {};
    for (int d = 0; d < t.head.key; d += kLanes) {
      const Vector x = B::load(q + d, t.head.key - d);
      most = T::max(most, magnitude(x));
      all += x * 0.0f;
    }
    const float largest = T::largest(most);
    const float inverse = largest >= __FLT_MIN__ * kMostCode ? kMostCode / largest : 0.0f;
    // What is not finite must not be lost: it has made some lane NaN.
    const bool finite = B::finite(all);
    s.scales[i] = finite ? largest * t.scale * kLog2E / kMostCode : __builtin_nanf("");
    Quad* const codes = s.queries + int64_t{i} * t.head.key / 4;
    Ints sum = {};
    for (int d = 0; d < t.head.key; d += kLanes) {
      const int left = t.head.key - d;
      const Ints code = B::round(B::load(q + d, left) * inverse, finite);
      sum += code;
      B::store(code, smaller(left, kLanes), codes + d / 4);
      const int next = d + kLanes;
      if (next >= t.head.key || (kBits == 4 && next % kKvGroup == 0)) {
        const int g = kBits == 8 ? 0 : d / kKvGroup;
        s.offsets[i * groups + g] = -P::kOffset * B::total(sum);
        sum = Ints{};
      }
    }
  }

  // One block of keys for queries [i, i + N).
  template <int N>
  static void attend(const AttentionTile& t, const Keys& keys, const CodeBlock& block,
                     const Scratch& s, int i, const State& state) {
    alignas(64) float scores[N][kBlockTokens];
    typename P::template Weights<N> weights;
    P::template score<N>(t.head.key, keys, block, s.codes(), i, scores);
    for (int n = 0; n < N; ++n) {
      softmax(t, keys, block, i + n, n, scores[n], weights, state);
    }
    float* out = state.out + int64_t{i} * S::padded(t.head.value);
    P::template weigh<N>(t.head.value, keys, block, weights, out);
  }

  // Turns the scores of query i, the n-th of a tile, into codes of probabilities.
  template <class Weights>
  static void softmax(const AttentionTile& t, const Keys& keys, const CodeBlock& block, int i,
                      int n, float* scores, Weights& weights, const State& state) {
    S::mask(t, keys, i, scores);
    const float now = S::raise(t, i, scores, state);
    if (now == kNone) {
      __builtin_memset(weights.codes[n], 0, sizeof weights.codes[n]);
      __builtin_memset(weights.scales[n], 0, sizeof weights.scales[n]);
      __builtin_memset(weights.offsets[n], 0, sizeof weights.offsets[n]);
      return;
    }
    Vector p[kBlockVectors];
    float* const sums = state.lanes + i * kSumLanes;
    auto sum = Sums<T>::load(sums);
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; ++v) {
      p[v] = S::exp2(T::load(scores + v * kLanes) - now);
      sum.of[v % Sums<T>::kVectors] += p[v];
    }
    sum.store(sums);
    for (int g = 0; g < Codes{t.head.value}.groups(); ++g) {
      Vector x[kBlockVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kBlockVectors; ++v) {
        const float* scales = block.value_scales[v / P::kSlabVectors] + g * kSlabTokens;
        x[v] = p[v] * T::load(scales + v % P::kSlabVectors * kLanes);
      }
      quantize(x, n, g, weights);
    }
  }

  template <class Weights>
  static void quantize(const Vector (&x)[kBlockVectors], int n, int g, Weights& weights) {
    Vector most = size(x[0]);
    // A value that is not finite has made some x NaN.
    Vector all = x[0];
#pragma GCC unroll 8
    for (int v = 1; v < kBlockVectors; ++v) {
      most = T::max(most, size(x[v]));
      all += x[v];
    }
    const float largest = T::largest(most);
    const float inverse =
        largest >= __FLT_MIN__ * kMostProbability ? kMostProbability / largest : 0.0f;
    const bool finite = B::finite(all);
    weights.scales[n][g] = finite ? largest * (1.0f / kMostProbability) : __builtin_nanf("");
    Ints sum = {};
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; ++v) {
      const Ints code = B::round(x[v] * inverse, finite);
      sum += code;
      B::store(code, kLanes, weights.codes[n][g] + v * kLanes / 4);
    }
    if constexpr (kBits == 4) weights.offsets[n][g] = -P::kOffset * B::total(sum);
  }

  // The magnitude of what over int8 has no sign.
  static Vector size(Vector x) { return kBits == 8 ? x : magnitude(x); }

  static Vector magnitude(Vector x) { return (Vector)((Ints)x & 0x7fffffff); }
};

// The kernels for a cache of int8 or int4.
template <class B, int kBits>
constexpr AttentionKernels make_byte_attention() {
  return make_attention<typename B::Floats, ByteAttention<B, kBits>>();
}

}  // namespace
}  // namespace millrace::cpu

#endif
