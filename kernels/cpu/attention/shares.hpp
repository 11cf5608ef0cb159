// What queries give each key of a bf16 cache of their attention. Included as cpu/ops/row_tile.hpp
// is.
#ifndef MILLRACE_CPU_ATTENTION_SHARES_HPP
#define MILLRACE_CPU_ATTENTION_SHARES_HPP

#include "cpu/attention/blocks.hpp"

namespace millrace::cpu {
namespace {

// A: an Attention over InPlace, or a TileAttention.
template <class T, class A>
struct Shares {
  using S = Softmax<T>;
  using Vector = typename T::Vector;
  static constexpr int kLanes = T::kLanes;

  // Adds the probabilities of a tile's queries, whose softmax is complete, to a float of each key,
  // query by query. Scratch is as prepare() left it; sums: bytes from a slab's keys to its 16 floats.
  static void add(const AttentionTile& t, const void* memory, const AttentionState& of,
                  size_t sums) {
    const typename A::Scratch s(const_cast<void*>(memory), t.head);
    const typename S::State state(of, t.head.value);
    for (int first = 0; first < t.end; first += kBlockTokens) {
      const Keys keys{first, 0, smaller(kBlockTokens, t.end - first)};
      const auto block = A::find(t, keys, 0, s);
      float* to[kBlockSlabs] = {};
      for (int slab = 0; slab < keys.end_slab(); ++slab) {
        const std::byte* at = t.keys + t.slab_bytes * (first / kSlabTokens + slab);
        to[slab] = reinterpret_cast<float*>(const_cast<std::byte*>(at) + sums);
      }
      add<A::kQueries>(t, keys, block, s, state, 0, to);
    }
  }

  // Queries [i, ...), N at a time and then fewer.
  template <int N, class Block>
  static void add(const AttentionTile& t, const Keys& keys, const Block& block,
                  const typename A::Scratch& s, const typename S::State& state, int i,
                  float* const (&to)[kBlockSlabs]) {
    const int end = keys.end_slab() * S::kSlabVectors;
    for (; i + N <= t.queries(); i += N) {
      alignas(64) float scores[N][kBlockTokens];
      A::template score_all<N, A::template kWide<N>>(t, block, s, i, 0, end, scores);
      for (int n = 0; n < N; ++n) {
        S::mask(t, keys, i + n, scores[n]);
        const Vector largest = T::set1(state.largest[i + n]);
        const Vector scale = T::set1(1.0f / state.sum[i + n]);
        for (int v = 0; v < end; ++v) {
          float* const sum = to[v / S::kSlabVectors] + v % S::kSlabVectors * kLanes;
          const Vector share = S::exp2(T::load(scores[n] + v * kLanes) - largest) * scale;
          T::store(sum, T::load(sum) + share);
        }
      }
    }
    if constexpr (N > 1) add<N / 2>(t, keys, block, s, state, i, to);
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
