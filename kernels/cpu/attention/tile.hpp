// Attention of a tile of queries over the keys of one KV head, written once over
// a Target; included as cpu/ops/row_tile.hpp is. Keys are in the lanes for the scores and head
// elements in the lanes for the sums of values.
//
// The arithmetic of a query is the same whatever tile it stands in: one float
// accumulator per score over pairs of head_dim in ascending order, one per
// element of the output over pairs of keys in ascending order.
#ifndef MILLRACE_CPU_ATTENTION_TILE_HPP
#define MILLRACE_CPU_ATTENTION_TILE_HPP

#include "cpu/attention/blocks.hpp"
#include "cpu/attention/codes.hpp"
#include "cpu/attention/kivi.hpp"
#include "cpu/attention/shares.hpp"
#include "cpu/ops/state_tile.hpp"

namespace millrace::cpu {
namespace {

// Target, beside what cpu/ops/row_tile.hpp lists:
//   Ints              int32 lanes
//   Pair              two neighboring elements of a query or of probabilities
//   Pair make_pair(float, float)
//   kParts            instructions of a product of pairs: one for both
//                     elements, or one for the odd and then one for the even ones
//   Packed load_packed<part>(const uint32_t*)  that part of kLanes bf16 pairs
//   Packed splat<part>(Pair)                   of one pair, in every lane
//   Vector dot(Packed, Packed, Vector sum)     sum + products
//   Vector store_pairs(Vector, Pair*)          neighbors; returns the stored values
//   bool any_greater(Vector a, Vector b)       in some lane
//   kQueries, kSums                       queries and sums of the register tiles, at most

// Pairs as two floats, over a target without pairs: rounded to bf16 as where they are pairs, and
// the odd element first as vdpbf16ps has it.
template <class Ops>
struct FloatPairs : Ops {
  using Vector = typename Ops::Vector;
  using Packed = Vector;
  struct Pair {
    float even, odd;
  };
  static constexpr int kParts = 2;

  static Pair make_pair(float even, float odd) { return {rounded(even), rounded(odd)}; }
  template <int kPart>
  static Vector splat(const Pair& p) {
    return Ops::set1(kPart == 0 ? p.even : p.odd);
  }
  // A bf16 is the upper half of a float.
  template <int kPart>
  static Packed load_packed(const uint32_t* p) {
    typename Ops::Ints x;
    __builtin_memcpy(&x, p, sizeof x);
    return (Vector)(kPart == 0 ? x << 16 : x & ~0xffff);
  }
  static Vector dot(Vector a, Vector b, Vector sum) { return Ops::fma(a, b, sum); }
  static Vector store_pairs(Vector p, Pair* out) {
    const Vector stored = rounded_bf16<Ops::kLanes>(p);
    Ops::store(&out->even, stored);
    return stored;
  }

 private:
  static float rounded(float x) {
    const uint32_t bits = uint32_t{Rows<Ops>::round_bf16(x)} << 16;
    float y;
    __builtin_memcpy(&y, &bits, sizeof y);
    return y;
  }
};

// Kv is where the pairs come from: InPlace or Expanded.
template <class T, class Kv>
struct Attention {
  using S = Softmax<T>;
  using State = typename S::State;
  using Vector = typename T::Vector;
  using Pair = typename T::Pair;
  static constexpr int kQueries = T::kQueries;
  static constexpr int kLanes = T::kLanes;
  static constexpr int kSlabVectors = S::kSlabVectors;
  static constexpr int kBlockVectors = S::kBlockVectors;
  // Vectors of keys or of head elements beside N queries: sums enough to hide the latency of
  // the products.
  template <int N>
  static constexpr int kWide = T::kSums / N < 4 ? T::kSums / N : 4;

  static int padded(int width) { return S::padded(width); }

  struct Scratch {
    std::byte* end;
    Pair* queries;  // [queries][key width / 2]
    typename Kv::Room room;

    Scratch(void* memory, HeadShape head)
        : end(static_cast<std::byte*>(memory)),
          queries(take<Pair>(end, int64_t{tile_queries(head)} * head.key / 2)),
          room(end, head) {}
  };

  static size_t scratch_bytes(HeadShape head) {
    const Scratch s(nullptr, head);
    return reinterpret_cast<uintptr_t>(s.end);
  }

  static void prepare(const AttentionTile& t, void* memory) {
    const Scratch s(memory, t.head);
    round_queries(t, s.queries, t.head.key / 2);
  }

  // The scaled queries, `stride` pairs apart: zeros after a key's width.
  static void round_queries(const AttentionTile& t, Pair* to, int stride) {
    const float scale = t.scale * kLog2E;
    const Vector nan = T::set1(__builtin_nanf(""));
    for (int i = 0; i < t.queries(); ++i) {
      const float* q = t.query(i);
      Pair* pairs = to + int64_t{i} * stride;
      int d = 0;
      for (; d + kLanes <= t.head.key; d += kLanes) {
        const Vector x = T::load(q + d) * scale;
        T::store_pairs(x == x ? x : nan, pairs + d / 2);  // as rounded_bf16 wants it
      }
      for (; d < t.head.key; d += 2) pairs[d / 2] = T::make_pair(q[d] * scale, q[d + 1] * scale);
      for (; d < 2 * stride; d += 2) pairs[d / 2] = Pair{};
    }
  }

  static Block find(const AttentionTile& t, const Keys& keys, int row, const Scratch& s) {
    return Kv::find(t, keys, row, s.room);
  }

  // One block of keys for queries [i, i + N).
  template <int N>
  static void attend(const AttentionTile& t, const Keys& keys, const Block& block, const Scratch& s,
                     int i, const State& state) {
    alignas(64) float scores[N][kBlockTokens];
    alignas(64) Pair probabilities[N][kBlockTokens / 2];
    const int begin = keys.first_slab() * kSlabVectors, end = keys.end_slab() * kSlabVectors;
    score_all<N, kWide<N>>(t, block, s, i, begin, end, scores);
    for (int n = 0; n < N; ++n) {
      softmax(t, keys, i + n, scores[n], probabilities[n], state);
    }
    const int width = padded(t.head.value);
    float* out = state.out + int64_t{i} * width;
    weigh_all<N, kWide<N>>(keys, block, 0, width, probabilities, out);
  }

  // Key vectors [v, end), M at a time and then fewer.
  template <int N, int M>
  static void score_all(const AttentionTile& t, const Block& block, const Scratch& s, int i, int v,
                        int end, float (&out)[N][kBlockTokens]) {
    for (; v + M <= end; v += M) score<N, M>(t, block, s, i, v, out);
    if constexpr (M > 1) score_all<N, M / 2>(t, block, s, i, v, end, out);
  }

  // Elements [d, width), M vectors at a time and then fewer.
  template <int N, int M>
  static void weigh_all(const Keys& keys, const Block& block, int d, int width,
                        const Pair (&p)[N][kBlockTokens / 2], float* out) {
    for (; d + M * kLanes <= width; d += M * kLanes) {
      weigh<N, M>(keys, block, d, width, p, out + d);
    }
    if constexpr (M > 1) weigh_all<N, M / 2>(keys, block, d, width, p, out);
  }

  // Adds a part of pairs[n * stride] * packed[m] to N times M sums.
  template <int kPart, int N, int M>
  static void multiply(const uint32_t* const (&packed)[M], const Pair* pairs, int stride,
                       Vector (&sums)[N][M]) {
    typename T::Packed x[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) x[m] = T::template load_packed<kPart>(packed[m]);
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const auto y = T::template splat<kPart>(pairs[n * stride]);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[n][m] = T::dot(y, x[m], sums[n][m]);
    }
  }

  // Scores of queries [i, i + N) and key vectors [v, v + M) of the block.
  template <int N, int M>
  static void score(const AttentionTile& t, const Block& block, const Scratch& s, int i, int v,
                    float (&out)[N][kBlockTokens]) {
    const int half = t.head.key / 2;
    const uint32_t* keys[M];
    size_t ahead[M];
    for (int m = 0; m < M; ++m) {
      keys[m] = block.keys[(v + m) / kSlabVectors] + (v + m) % kSlabVectors * kLanes;
      ahead[m] = block.keys_ahead[(v + m) / kSlabVectors];
    }
    const Pair* q = s.queries + int64_t{i} * half;
    Vector sums[N][M] = {};
    for (int k = 0; k < half; ++k) {
      const uint32_t* here[M];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        here[m] = keys[m] + k * kSlabTokens;
        fetch(here[m], ahead[m]);
      }
      const Pair* pairs = q + k;
      if constexpr (T::kParts == 2) multiply<1>(here, pairs, half, sums);
      multiply<0>(here, pairs, half, sums);
    }
    for (int n = 0; n < N; ++n) {
      for (int m = 0; m < M; ++m) T::store(out[n] + (v + m) * kLanes, sums[n][m]);
    }
  }

  // Turns the scores of query i into probabilities.
  static void softmax(const AttentionTile& t, const Keys& keys, int i, float* scores, Pair* out,
                      const State& state) {
    S::mask(t, keys, i, scores);
    const float now = S::raise(t, i, scores, state);
    if (now == kNone) {
      __builtin_memset(out, 0, sizeof(Pair) * kBlockTokens / 2);
      return;
    }
    float* const sums = state.lanes + i * kSumLanes;
    auto sum = Sums<T>::load(sums);
#pragma GCC unroll 16
    for (int v = 0; v < kBlockVectors; ++v) {
      const Vector p = S::exp2(T::load(scores + v * kLanes) - now);
      sum.of[v % Sums<T>::kVectors] += T::store_pairs(p, out + v * kLanes / 2);
    }
    sum.store(sums);
  }

  // Adds probability * value to M vectors of the output of N queries.
  template <int N, int M>
  static void weigh(const Keys& keys, const Block& block, int d, int width,
                    const Pair (&p)[N][kBlockTokens / 2], float* out) {
    Vector sums[N][M];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[n][m] = T::load(out + n * width + m * kLanes);
    }
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      const uint32_t* values = block.values[slab] + d;
      const size_t ahead = block.values_ahead[slab];
      const Pair* pairs = &p[0][slab * kSlabTokens / 2];
      for (int k = 0; k < kSlabTokens / 2; ++k, values += width, ++pairs) {
        const uint32_t* here[M];
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          here[m] = values + m * kLanes;
          fetch(here[m], ahead);
        }
        if constexpr (T::kParts == 2) multiply<1>(here, pairs, kBlockTokens / 2, sums);
        multiply<0>(here, pairs, kBlockTokens / 2, sums);
      }
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) T::store(out + n * width + m * kLanes, sums[n][m]);
    }
  }
};

template <class T>
constexpr OpKernels make_op_kernels(Isa isa, const char* numerics, bool flush) {
  return {isa,
          numerics,
          flush,
          Rows<T>::norm,
          Rows<T>::rotate,
          Rows<T>::to_bf16,
          States<T>::conv_rows,
          States<T>::recur,
          States<T>::scan,
          States<T>::gate,
          States<T>::altup,
          make_attention<T, Attention<T, InPlace<T>>>(),
          make_attention<T, Attention<T, KiviPairs<T>>>(),
          Shares<T, Attention<T, InPlace<T>>>::add};
}

}  // namespace
}  // namespace millrace::cpu

#endif
