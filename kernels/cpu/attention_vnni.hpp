// Attention over a cache of codes by products of bytes: vpdpbusd adds four products of an
// unsigned byte with a signed one to each of 16 sums. Included as row_tile.hpp is.
//
// A query is rounded to int8 by its largest magnitude; so are a block's probabilities, each
// times the scale of its value: over int8 to 0 to 255, over int4, whose scales may be
// negative, to -127 to 127. Sums of codes' products are exact integers, so that the
// arithmetic of a query is the same whatever tile it stands in.
#ifndef MILLRACE_CPU_ATTENTION_VNNI_HPP
#define MILLRACE_CPU_ATTENTION_VNNI_HPP

#include "attention_codes.hpp"
#include "simd_avx512.hpp"

namespace millrace::cpu {
namespace {

template <int kBits>
struct VnniAttention {
  using T = Avx512Ops;
  using S = Softmax<T>;
  using State = S::State;
  using Vector = T::Vector;
  using Codes = KvCodes<kBits>;
  static constexpr int kLanes = T::kLanes;
  static constexpr int kQueries = 8;
  static constexpr int kMaxGroups = kBits == 8 ? 1 : kMaxHeadDim / kKvGroup;
  static constexpr int kMostCode = 127, kMostProbability = kBits == 8 ? 255 : 127;
  // What is added to the codes of keys.
  static constexpr int kOffset = kBits == 8 ? 128 : 8;
  static_assert(kSlabTokens == kLanes && kHalfGroup == kLanes);

  struct Scratch {
    std::byte* end;
    uint32_t* queries;  // [queries][head_dim / 4] words of four codes
    float* scales;      // [queries]
    int32_t* offsets;   // [queries][groups]: the sum of a group's codes times -kOffset
    float* sums;        // [queries][lanes]: of the probabilities
    Coded<kBits>::Room room;

    Scratch(void* memory, int head_dim)
        : end(static_cast<std::byte*>(memory)),
          queries(take<uint32_t>(end, int64_t{tile_queries(head_dim)} * head_dim / 4)),
          scales(take<float>(end, tile_queries(head_dim))),
          offsets(take<int32_t>(end, int64_t{tile_queries(head_dim)} * Codes{head_dim}.groups())),
          sums(take<float>(end, int64_t{tile_queries(head_dim)} * kLanes)),
          room(end, head_dim) {}
  };

  static size_t scratch_bytes(int head_dim) {
    const Scratch s(nullptr, head_dim);
    return reinterpret_cast<uintptr_t>(s.end);
  }

  static CodeBlock find(const AttentionTile& t, const Keys& keys, int row, const Scratch& s) {
    return Coded<kBits>::find(t, keys, row, s.room);
  }

  static void prepare(const AttentionTile& t, void* memory) {
    const Scratch s(memory, t.head_dim);
    for (int i = 0; i < t.queries(); ++i) {
      const float* q = t.q + i / t.heads * t.q_stride + int64_t{i % t.heads} * t.head_dim;
      prepare(t, q, i, s);
    }
  }

  static void prepare(const AttentionTile& t, const float* q, int i, const Scratch& s) {
    const int groups = Codes{t.head_dim}.groups();
    Vector most = {}, all = {};
    for (int d = 0; d < t.head_dim; d += kLanes) {
      const Vector x = load(q, d, t.head_dim);
      most = T::max(most, _mm512_abs_ps(x));
      all += x * 0.0f;
    }
    const float largest = T::largest(most);
    const float inverse = largest >= __FLT_MIN__ * kMostCode ? kMostCode / largest : 0.0f;
    // What is not finite must not be lost: it has made some lane NaN.
    const bool finite = _mm512_cmp_ps_mask(all, all, _CMP_UNORD_Q) == 0;
    s.scales[i] = finite ? largest * t.scale * kLog2E / kMostCode : __builtin_nanf("");
    auto* const codes = reinterpret_cast<int8_t*>(s.queries + int64_t{i} * t.head_dim / 4);
    __m512i sum = _mm512_setzero_si512();
    for (int d = 0; d < t.head_dim; d += kLanes) {
      const __m512i code =
          _mm512_maskz_cvtps_epi32(finite ? kAll : 0, load(q, d, t.head_dim) * inverse);
      sum = _mm512_add_epi32(sum, code);
      _mm512_mask_cvtepi32_storeu_epi8(codes + d, tail(d, t.head_dim), code);
      const bool ends = d + kLanes >= t.head_dim;
      if (ends || (kBits == 4 && d % kKvGroup == kHalfGroup)) {
        const int g = kBits == 8 ? 0 : d / kKvGroup;
        s.offsets[i * groups + g] = -kOffset * _mm512_reduce_add_epi32(sum);
        sum = _mm512_setzero_si512();
      }
    }
  }

  static constexpr __mmask16 kAll = 0xffff;

  // Lanes of [d, d + 16) that are below n.
  static __mmask16 tail(int d, int n) {
    return static_cast<__mmask16>(n - d >= kLanes ? kAll : (1 << (n - d)) - 1);
  }
  static Vector load(const float* x, int d, int n) {
    return _mm512_maskz_loadu_ps(tail(d, n), x + d);
  }

  template <int N>
  static void attend_all(const AttentionTile& t, const Keys& keys, const CodeBlock& block,
                         const Scratch& s, int i, int end, const State& state) {
    for (; i + N <= end; i += N) attend<N>(t, keys, block, s, i, state);
    if constexpr (N > 1) attend_all<N / 2>(t, keys, block, s, i, end, state);
  }

  // Probabilities of a block as codes.
  template <int N>
  struct Weights {
    alignas(64) uint32_t codes[N][kMaxGroups][kBlockTokens / 4];
    float scales[N][kMaxGroups];
    int32_t offsets[N][kMaxGroups];  // of int4: the sum of the codes times -kOffset
  };

  // Vectors beside N queries: sums enough to hide the latency of the products.
  template <int N>
  static constexpr int kWide = N > 4 ? 2 : 4;

  // One block of keys for queries [i, i + N).
  template <int N>
  static void attend(const AttentionTile& t, const Keys& keys, const CodeBlock& block,
                     const Scratch& s, int i, const State& state) {
    alignas(64) float scores[N][kBlockTokens];
    Weights<N> weights;
    int slab = keys.first_slab();
    if constexpr (kBits == 8) {
      for (; slab + kWide<N> <= keys.end_slab(); slab += kWide<N>) {
        score8<N, kWide<N>>(t, block, s, i, slab, scores);
      }
      for (; slab < keys.end_slab(); ++slab) score8<N, 1>(t, block, s, i, slab, scores);
    } else {
      for (; slab < keys.end_slab(); ++slab) score4<N>(t, block, s, i, slab, scores);
    }
    for (int n = 0; n < N; ++n) {
      softmax(t, keys, block, i + n, n, scores[n], weights, s.sums + (i + n) * kLanes, state);
    }
    const int width = S::padded(t.head_dim);
    float* out = state.out + int64_t{i} * width;
    if constexpr (kBits == 8) {
      int d = 0;
      for (; d + kWide<N> * kLanes <= width; d += kWide<N> * kLanes) {
        weigh8<N, kWide<N>>(t, keys, block, d, width, weights, out + d);
      }
      for (; d < width; d += kLanes) weigh8<N, 1>(t, keys, block, d, width, weights, out + d);
    } else {
      for (int g = 0; g < Codes{t.head_dim}.groups(); ++g) {
        weigh4<N>(t, keys, block, g, width, weights, out + g * kKvGroup);
      }
    }
  }

  static __m512i load(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static __m512i splat(uint32_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }
  static __m512i low(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static __m512i high(__m512i x) { return low(_mm512_srli_epi16(x, 4)); }

  // Scores of queries [i, i + N) and the keys of M slabs.
  template <int N, int M>
  static void score8(const AttentionTile& t, const CodeBlock& block, const Scratch& s, int i,
                     int slab, float (&out)[N][kBlockTokens]) {
    const int words = Codes{t.head_dim}.key_words();
    const uint32_t* const q = s.queries + int64_t{i} * words;
    __m512i sums[N][M];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) sums[n][m] = _mm512_set1_epi32(s.offsets[i + n]);
    }
    for (int w = 0; w < words; ++w) {
      __m512i x[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const uint32_t* here = block.keys[slab + m] + w * kSlabTokens;
        fetch(here, block.ahead[slab + m]);
        x[m] = load(here);
      }
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const __m512i y = splat(q[n * words + w]);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) sums[n][m] = _mm512_dpbusd_epi32(sums[n][m], x[m], y);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      fetch(block.keys[slab + m] + words * kSlabTokens, block.ahead[slab + m]);  // the scales
      const Vector scale = T::load(block.key_scales[slab + m]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        T::store(out[n] + (slab + m) * kSlabTokens,
                 _mm512_cvtepi32_ps(sums[n][m]) * (scale * s.scales[i + n]));
      }
    }
  }

  // The same of one slab, group by group.
  template <int N>
  static void score4(const AttentionTile& t, const CodeBlock& block, const Scratch& s, int i,
                     int slab, float (&out)[N][kBlockTokens]) {
    const Codes layout{t.head_dim};
    const int groups = layout.groups(), stride = t.head_dim / 4;
    const uint32_t* const q = s.queries + int64_t{i} * stride;
    Vector total[N] = {};
    for (int g = 0; g < groups; ++g) {
      __m512i sums[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[n] = _mm512_set1_epi32(s.offsets[(i + n) * groups + g]);
      const int end = smaller((g + 1) * kKvGroup / 8, layout.key_words());
      for (int w = g * kKvGroup / 8; w < end; ++w) {
        const uint32_t* here = block.keys[slab] + w * kSlabTokens;
        fetch(here, block.ahead[slab]);
        const __m512i x = load(here), first = low(x), second = high(x);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const uint32_t* words = q + n * stride + 2 * w;
          sums[n] = _mm512_dpbusd_epi32(sums[n], first, splat(words[0]));
          sums[n] = _mm512_dpbusd_epi32(sums[n], second, splat(words[1]));
        }
      }
      const Vector scale = T::load(block.key_scales[slab] + g * kSlabTokens);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        total[n] = T::fma(_mm512_cvtepi32_ps(sums[n]), scale, total[n]);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      T::store(out[n] + slab * kSlabTokens, total[n] * T::set1(s.scales[i + n]));
    }
  }

  // Turns the scores of query i, the n-th of N, into codes of probabilities.
  template <int N>
  static void softmax(const AttentionTile& t, const Keys& keys, const CodeBlock& block, int i,
                      int n, float* scores, Weights<N>& weights, float* sums, const State& state) {
    S::mask(t, keys, i, scores);
    const float now = S::raise(t, i, scores, sums, state);
    const int groups = Codes{t.head_dim}.groups();
    if (now == kNone) {
      __builtin_memset(weights.codes[n], 0, sizeof weights.codes[n]);
      __builtin_memset(weights.scales[n], 0, sizeof weights.scales[n]);
      __builtin_memset(weights.offsets[n], 0, sizeof weights.offsets[n]);
      return;
    }
    Vector p[kBlockSlabs];
    Vector sum = T::load(sums);
#pragma GCC unroll 4
    for (int v = 0; v < kBlockSlabs; ++v) {
      p[v] = S::exp2(T::load(scores + v * kLanes) - now);
      sum += p[v];
    }
    T::store(sums, sum);
    for (int g = 0; g < groups; ++g) {
      Vector x[kBlockSlabs];
#pragma GCC unroll 4
      for (int v = 0; v < kBlockSlabs; ++v) {
        x[v] = p[v] * T::load(block.value_scales[v] + g * kSlabTokens);
      }
      quantise(x, n, g, weights);
    }
  }

  template <int N>
  static void quantise(const Vector (&x)[kBlockSlabs], int n, int g, Weights<N>& weights) {
    const Vector most = T::max(T::max(size(x[0]), size(x[1])), T::max(size(x[2]), size(x[3])));
    const float largest = T::largest(most);
    const float inverse =
        largest >= __FLT_MIN__ * kMostProbability ? kMostProbability / largest : 0.0f;
    // A value that is not finite has made some x NaN.
    const Vector all = (x[0] + x[1]) + (x[2] + x[3]);
    const bool finite = _mm512_cmp_ps_mask(all, all, _CMP_UNORD_Q) == 0;
    weights.scales[n][g] = finite ? largest * (1.0f / kMostProbability) : __builtin_nanf("");
    auto* const codes = reinterpret_cast<__m128i*>(weights.codes[n][g]);
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int v = 0; v < kBlockSlabs; ++v) {
      const __m512i code = _mm512_maskz_cvtps_epi32(finite ? kAll : 0, x[v] * inverse);
      sum = _mm512_add_epi32(sum, code);
      _mm_store_si128(codes + v, _mm512_cvtepi32_epi8(code));
    }
    if constexpr (kBits == 4) weights.offsets[n][g] = -kOffset * _mm512_reduce_add_epi32(sum);
  }

  // The magnitude of what has a sign.
  static Vector size(Vector x) { return kBits == 8 ? x : _mm512_abs_ps(x); }

  // Adds probability * value to M vectors of the output of N queries.
  template <int N, int M>
  static void weigh8(const AttentionTile& t, const Keys& keys, const CodeBlock& block, int d,
                     int width, const Weights<N>& weights, float* out) {
    __m512i sums[N][M] = {};
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      const uint32_t* values = block.values[slab] + d;
      for (int k = 0; k < kSlabTokens / 4; ++k, values += t.head_dim) {
        __m512i x[M];
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          fetch(values + m * kLanes, block.ahead[slab]);
          x[m] = load(values + m * kLanes);
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const __m512i y = splat(weights.codes[n][0][slab * kSlabTokens / 4 + k]);
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) sums[n][m] = _mm512_dpbusd_epi32(sums[n][m], y, x[m]);
        }
      }
      if (d == 0) fetch(values, block.ahead[slab]);  // the scales
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const Vector scale = T::set1(weights.scales[n][0]);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) add(sums[n][m], scale, out + n * width + m * kLanes);
    }
  }

  // The same of a group of elements.
  template <int N>
  static void weigh4(const AttentionTile& t, const Keys& keys, const CodeBlock& block, int g,
                     int width, const Weights<N>& weights, float* out) {
    const int words = Codes{t.head_dim}.value_words();
    __m512i sums[N][2];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      sums[n][0] = sums[n][1] = _mm512_set1_epi32(weights.offsets[n][g]);
    }
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      const uint32_t* values = block.values[slab] + g * kHalfGroup;
      for (int k = 0; k < kSlabTokens / 4; ++k, values += words) {
        fetch(values, block.ahead[slab]);
        const __m512i x = load(values), first = low(x), second = high(x);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const __m512i y = splat(weights.codes[n][g][slab * kSlabTokens / 4 + k]);
          sums[n][0] = _mm512_dpbusd_epi32(sums[n][0], first, y);
          sums[n][1] = _mm512_dpbusd_epi32(sums[n][1], second, y);
        }
      }
    }
    const bool both = g * kKvGroup + kHalfGroup < width;
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const Vector scale = T::set1(weights.scales[n][g]);
      add(sums[n][0], scale, out + n * width);
      if (both) add(sums[n][1], scale, out + n * width + kLanes);
    }
  }

  static void add(__m512i sums, Vector scale, float* out) {
    T::store(out, T::fma(_mm512_cvtepi32_ps(sums), scale, T::load(out)));
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
