// Sums of products of bytes for attention over a cache of codes, a block of keys at a time:
// scores of keys, and values weighed by probabilities. Included as cpu/ops/row_tile.hpp is.
#ifndef MILLRACE_CPU_ATTENTION_PRODUCTS_HPP
#define MILLRACE_CPU_ATTENTION_PRODUCTS_HPP

#include "cpu/attention/codes.hpp"

namespace millrace::cpu {
namespace {

// B, how an instruction set multiplies bytes:
//   Floats                       its target of cpu/ops/row_tile.hpp
//   kQueries, kSums              queries and sums of the register tiles, at most
//   Bytes load(const uint32_t*)  a word in each lane
//   Bytes low(Bytes), high(Bytes)  the halves of bytes, 0 to 15
// Four codes of a query or of four probabilities are a Quad where they meet int8, a word
// where they meet int4:
//   Quad; Spread spread(Quad)    in every lane
//   Bytes splat(uint32_t)
//   Keys keys(Bytes), Values values(Bytes)  unsigned and signed bytes, made ready for several
//                                queries
//   Ints add(Ints, Keys or Values, Spread)  + four products in each lane
// Products of int4 with codes of up to 127 may be summed in fewer bits for kRun words:
//   Short begin(Ints sum)        takes the sum along, or is zero
//   Short add(Short, Bytes x, Bytes y)  + four products of unsigned x and signed y
//   Ints end(Short, Ints sum)    both
// and for rounding (cpu/attention/bytes.hpp):
//   Vector load(const float*, int n)  the first n lanes, the others zero
//   bool finite(Vector)          no lane is NaN
//   Ints round(Vector, bool keep)  the nearest; without keep zeros
//   void store(Ints, int n, Quad* or uint32_t*)  the first n lanes as codes
//   int32_t total(Ints)          the sum of the lanes

template <class B, int kBits>
struct Products {
  using T = typename B::Floats;
  using Vector = typename T::Vector;
  using Ints = typename T::Ints;
  using Codes = KvCodes<kBits>;
  // Four codes as they are kept.
  using Quad = std::conditional_t<kBits == 8, typename B::Quad, uint32_t>;
  static constexpr int kLanes = T::kLanes;
  static constexpr int kSlabVectors = kSlabTokens / kLanes;
  static constexpr int kHalfVectors = kHalfGroup / kLanes;
  static constexpr int kSlabQuads = kSlabTokens / 4;
  static constexpr int kMaxGroups = kBits == 8 ? 1 : kMaxHeadDim / kKvGroup;
  // What is added to the codes of keys, and of int4 values.
  static constexpr int kOffset = kBits == 8 ? 128 : 8;
  static_assert(kSlabTokens % kLanes == 0 && kHalfGroup % kLanes == 0);

  // Queries as codes.
  struct Queries {
    const Quad* codes;       // [queries][head_dim / 4]
    const float* scales;     // [queries]
    const int32_t* offsets;  // [queries][groups]: the sum of a group's codes times -kOffset
  };

  // Probabilities of a block as codes.
  template <int N>
  struct Weights {
    alignas(64) Quad codes[N][kMaxGroups][kBlockTokens / 4];
    float scales[N][kMaxGroups];
    int32_t offsets[N][kMaxGroups];  // of int4: the sum of the codes times -kOffset
  };

  // Vectors beside N queries: sums enough to hide the latency of the products.
  template <int N>
  static constexpr int kWide = B::kSums / N < 4 ? B::kSums / N : 4;

  // Scores of queries [i, i + N), of which q has the codes, and the block's keys.
  template <int N>
  static void score(int head_dim, const Keys& keys, const CodeBlock& block, const Queries& q, int i,
                    float (&out)[N][kBlockTokens]) {
    if constexpr (kBits == 8) {
      const int end = keys.end_slab() * kSlabVectors;
      int v = keys.first_slab() * kSlabVectors;
      for (; v + kWide<N> <= end; v += kWide<N>) {
        score8<N, kWide<N>>(head_dim, block, q, i, v, out);
      }
      for (; v < end; ++v) score8<N, 1>(head_dim, block, q, i, v, out);
    } else {
      for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
        score4<N>(head_dim, block, q, i, slab, out);
      }
    }
  }

  // Adds probability * value to the output of N queries.
  template <int N>
  static void weigh(int head_dim, const Keys& keys, const CodeBlock& block,
                    const Weights<N>& weights, float* out) {
    const int width = Softmax<T>::padded(head_dim);
    if constexpr (kBits == 8) {
      int d = 0;
      for (; d + kWide<N> * kLanes <= width; d += kWide<N> * kLanes) {
        weigh8<N, kWide<N>>(head_dim, keys, block, d, weights, out + d);
      }
      for (; d < width; d += kLanes) weigh8<N, 1>(head_dim, keys, block, d, weights, out + d);
    } else {
      for (int g = 0; g < Codes{head_dim}.groups(); ++g) {
        for (int v = 0; v < kHalfVectors; ++v) {
          weigh4<N>(head_dim, keys, block, g, v * kLanes, weights, out);
        }
      }
    }
  }

 private:
  // Prefetches the next line of the vectors whose first begins one.
  static void fetch_line(const uint32_t* here, int vector, size_t ahead) {
    if (vector * kLanes % kSlabTokens == 0) fetch(here, ahead);
  }

  // The keys of M vectors.
  template <int N, int M>
  static void score8(int head_dim, const CodeBlock& block, const Queries& q, int i, int v,
                     float (&out)[N][kBlockTokens]) {
    const int words = Codes{head_dim}.key_words();
    const Quad* const codes = q.codes + int64_t{i} * words;
    const uint32_t* keys[M];
    const float* scales[M];
    size_t ahead[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const int slab = (v + m) / kSlabVectors, lane = (v + m) % kSlabVectors * kLanes;
      keys[m] = block.keys[slab] + lane;
      scales[m] = block.key_scales[slab] + lane;
      ahead[m] = block.ahead[slab];
    }
    Ints sums[N][M];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) sums[n][m] = Ints{} + q.offsets[i + n];
    }
    for (int w = 0; w < words; ++w) {
      typename B::Keys x[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const uint32_t* here = keys[m] + w * kSlabTokens;
        fetch_line(here, m, ahead[m]);
        x[m] = B::keys(B::load(here));
      }
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const auto y = B::spread(codes[n * words + w]);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) sums[n][m] = B::add(sums[n][m], x[m], y);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      fetch_line(keys[m] + words * kSlabTokens, m, ahead[m]);  // the scales
      const Vector scale = T::load(scales[m]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        T::store(out[n] + (v + m) * kLanes,
                 __builtin_convertvector(sums[n][m], Vector) * (scale * q.scales[i + n]));
      }
    }
  }

  // The keys of a slab, group by group.
  template <int N>
  static void score4(int head_dim, const CodeBlock& block, const Queries& q, int i, int slab,
                     float (&out)[N][kBlockTokens]) {
    constexpr int kWords = kKvGroup / 8;
    static_assert(2 * kWords <= B::kRun);
    const Codes layout{head_dim};
    const int groups = layout.groups(), stride = head_dim / 4;
    const Quad* const codes = q.codes + int64_t{i} * stride;
    Vector totals[N][kSlabVectors] = {};
    for (int g = 0; g < groups; ++g) {
      typename B::Short sums[N][kSlabVectors];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
        for (int v = 0; v < kSlabVectors; ++v) {
          sums[n][v] = B::begin(Ints{} + q.offsets[(i + n) * groups + g]);
        }
      }
      const int end = smaller((g + 1) * kWords, layout.key_words());
      for (int w = g * kWords; w < end; ++w) {
        typename B::Bytes first[kSlabVectors], second[kSlabVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kSlabVectors; ++v) {
          const uint32_t* here = block.keys[slab] + w * kSlabTokens + v * kLanes;
          fetch_line(here, v, block.ahead[slab]);
          const auto x = B::load(here);
          first[v] = B::low(x), second[v] = B::high(x);
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const Quad* four = codes + n * stride + 2 * w;
          const auto y = B::splat(four[0]), z = B::splat(four[1]);
#pragma GCC unroll 2
          for (int v = 0; v < kSlabVectors; ++v) {
            sums[n][v] = B::add(B::add(sums[n][v], first[v], y), second[v], z);
          }
        }
      }
#pragma GCC unroll 2
      for (int v = 0; v < kSlabVectors; ++v) {
        const Vector scale = T::load(block.key_scales[slab] + g * kSlabTokens + v * kLanes);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const Ints sum = B::end(sums[n][v], Ints{} + q.offsets[(i + n) * groups + g]);
          totals[n][v] = T::fma(__builtin_convertvector(sum, Vector), scale, totals[n][v]);
        }
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      for (int v = 0; v < kSlabVectors; ++v) {
        T::store(out[n] + slab * kSlabTokens + v * kLanes, totals[n][v] * T::set1(q.scales[i + n]));
      }
    }
  }

  // M vectors of elements from d on.
  template <int N, int M>
  static void weigh8(int head_dim, const Keys& keys, const CodeBlock& block, int d,
                     const Weights<N>& weights, float* out) {
    Ints sums[N][M] = {};
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      const uint32_t* values = block.values[slab] + d;
      for (int k = 0; k < kSlabQuads; ++k, values += head_dim) {
        typename B::Values x[M];
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          fetch_line(values + m * kLanes, m, block.ahead[slab]);
          x[m] = B::values(B::load(values + m * kLanes));
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const auto y = B::spread(weights.codes[n][0][slab * kSlabQuads + k]);
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) sums[n][m] = B::add(sums[n][m], x[m], y);
        }
      }
      if (d == 0) fetch(values, block.ahead[slab]);  // the scales
    }
    const int width = Softmax<T>::padded(head_dim);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        add(sums[n][m], weights.scales[n][0], out + n * width + m * kLanes);
      }
    }
  }

  // The elements of a group that lie in both halves of words [i, i + kLanes).
  template <int N>
  static void weigh4(int head_dim, const Keys& keys, const CodeBlock& block, int g, int i,
                     const Weights<N>& weights, float* out) {
    constexpr int kRunSlabs = B::kRun / kSlabQuads;
    const int words = Codes{head_dim}.value_words();
    Ints sums[N][2];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sums[n][0] = sums[n][1] = Ints{} + weights.offsets[n][g];
    for (int slab = keys.first_slab(); slab < keys.end_slab();) {
      const int end = smaller(slab + kRunSlabs, keys.end_slab());
      typename B::Short run[N][2];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n)
        run[n][0] = B::begin(sums[n][0]), run[n][1] = B::begin(sums[n][1]);
      for (; slab < end; ++slab) {
        const uint32_t* values = block.values[slab] + g * kHalfGroup + i;
#pragma GCC unroll 1
        for (int k = 0; k < kSlabQuads; ++k, values += words) {
          fetch_line(values, i / kLanes, block.ahead[slab]);
          const auto x = B::load(values), first = B::low(x), second = B::high(x);
#pragma GCC unroll 8
          for (int n = 0; n < N; ++n) {
            const auto y = B::splat(weights.codes[n][g][slab * kSlabQuads + k]);
            run[n][0] = B::add(run[n][0], first, y);
            run[n][1] = B::add(run[n][1], second, y);
          }
        }
      }
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        sums[n][0] = B::end(run[n][0], sums[n][0]);
        sums[n][1] = B::end(run[n][1], sums[n][1]);
      }
    }
    const int width = Softmax<T>::padded(head_dim), d = g * kKvGroup + i;
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const float scale = weights.scales[n][g];
      if (d < width) add(sums[n][0], scale, out + n * width + d);
      if (d + kHalfGroup < width) add(sums[n][1], scale, out + n * width + d + kHalfGroup);
    }
  }

  static void add(Ints sums, float scale, float* out) {
    const Vector products = __builtin_convertvector(sums, Vector);
    T::store(out, T::fma(products, T::set1(scale), T::load(out)));
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
