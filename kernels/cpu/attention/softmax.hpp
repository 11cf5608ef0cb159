// The online softmax of a tile over blocks of keys (FlashAttention, arXiv:2205.14135,
// algorithm 1), whatever the keys and values are kept as; included as cpu/ops/row_tile.hpp is.
#ifndef MILLRACE_CPU_ATTENTION_SOFTMAX_HPP
#define MILLRACE_CPU_ATTENTION_SOFTMAX_HPP

#include "cpu/ops/kernels.hpp"
#include "cpu/ops/row_tile.hpp"

namespace millrace::cpu {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kNone = -__builtin_inff();  // the maximum over no keys
// Sums are moved to a new maximum only when 2^(score - old one) would be larger than 2^kSlack:
// most new ones are little larger. (FlashAttention-4 rescales so.)
constexpr float kSlack = 8.0f;
constexpr int kBlockSlabs = kBlockTokens / kSlabTokens;

inline int smaller(int a, int b) { return a < b ? a : b; }
inline int larger(int a, int b) { return a > b ? a : b; }
inline float larger(float a, float b) { return a > b ? a : b; }

// Takes arrays one after the other, each at the start of a cache line.
template <class E>
E* take(std::byte*& at, int64_t n) {
  E* here = reinterpret_cast<E*>(at);
  at += (n * sizeof(E) + 63) / 64 * 64;
  return here;
}

// Keys of a block that some query of the tile sees.
struct Keys {
  int block;       // position of its first key
  int begin, end;  // of the block's 64

  int first_slab() const { return begin / kSlabTokens; }
  int end_slab() const { return (end + kSlabTokens - 1) / kSlabTokens; }
};

// Where a beam's token is: its region's block of keys or values, and its number there.
struct BeamToken {
  const std::byte *keys, *values;  // of its slab
  int token;                       // of the slab's 16
};

inline BeamToken beam_token(const AttentionTile& t, int row, int token) {
  const BeamRows& b = t.beams;
  const std::byte *keys = t.keys, *values = t.values;
  if (token >= b.prompt) {
    token -= b.prompt;
    const std::byte* region = b.regions[b.index[int64_t{row} * b.steps + token]];
    keys = region + b.key;
    values = region + b.value;
  }
  const size_t at = t.slab_bytes * (token / kSlabTokens);
  return {keys + at, values + at, token % kSlabTokens};
}

// Whether a slab of the block is gathered: some of its tokens are in beams' regions.
inline bool gathered(const AttentionTile& t, const Keys& keys, int slab) {
  return t.beams.regions != nullptr && keys.block + (slab + 1) * kSlabTokens > t.beams.prompt;
}

// Bytes from a slab to the one that is read n slabs later, of this tile or of the next one, which
// a short tile fetches slab for slab; 0 where neither has it in place.
inline size_t ahead(const AttentionTile& t, int slab, int n) {
  const int slabs = t.slabs_in_place();
  n = smaller(n, slabs - t.begin / kSlabTokens);
  if (slab + n < slabs) return n * t.slab_bytes;
  const int of_next = slab + n - slabs;
  return of_next < t.next_slabs ? t.next + (of_next - slab) * t.slab_bytes : 0;
}

// Prefetches this line of a later slab into the second-level cache. The
// processor's own prefetcher stops at the end of a page, and a slab's share of a head is less.
inline void fetch(const void* here, size_t ahead) {
  __builtin_prefetch(static_cast<const std::byte*>(here) + ahead, 0, 2);
}

template <class T>
struct Softmax {
  using Vector = typename T::Vector;
  static constexpr int kLanes = T::kLanes;
  static constexpr int kSlabVectors = kSlabTokens / kLanes;
  static constexpr int kBlockVectors = kBlockTokens / kLanes;
  static_assert(kSlabTokens % kLanes == 0);

  static int padded(int width) { return (width + kLanes - 1) / kLanes * kLanes; }

  struct State {
    float* largest;  // [queries] score times log2(e), the largest but for kSlack, or kNone
    float* sum;      // [queries] of exp(score - largest), once the piece is complete
    float* lanes;    // [queries][kSumLanes] of the same sum, its parts
    float* out;      // [queries][padded] of exp(score - largest) * value

    State(const AttentionState& s, int value)
        : largest(s.memory + s.first),
          sum(s.memory + s.queries + s.first),
          lanes(s.memory + round_up(2 * s.queries) + s.first * kSumLanes),
          out(s.memory + round_up(2 * s.queries) + s.queries * kSumLanes +
              s.first * padded(value)) {}
  };

  static int round_up(int n) { return (n + 15) / 16 * 16; }

  static size_t state_floats(int value, int queries) {
    return round_up(2 * queries) + size_t(queries) * kSumLanes +
           size_t(round_up(queries * padded(value)));
  }

  // 2^x for x <= kSlack, relative error below 2^-23; exactly 1 at 0 and exactly 0
  // below -126. The polynomial is a minimax fit of (2^r - 1) / r on [-1/2, 1/2].
  static Vector exp2(Vector x) {
    const Vector shifter = T::set1(0x1.8p23f);  // adding it rounds to an integer
    const Vector shifted = x + shifter;
    const Vector r = x - (shifted - shifter);
    Vector p = T::set1(0x1.41fbcap-13f);
    p = T::fma(p, r, T::set1(0x1.5f3e52p-10f));
    p = T::fma(p, r, T::set1(0x1.3b2d4cp-7f));
    p = T::fma(p, r, T::set1(0x1.c6aee8p-5f));
    p = T::fma(p, r, T::set1(0x1.ebfbdcp-3f));
    p = T::fma(p, r, T::set1(0x1.62e430p-1f));
    p = T::fma(p, r, T::set1(1.0f));
    // The integer is in the low bits. Unsigned, because that of an x far below -126 wraps around.
    typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
    const Vector y = (Vector)((Words)p + ((Words)shifted << 23));
    return x < -126.0f ? Vector{} : y;
  }

  static float exp2(float x) { return exp2(T::set1(x))[0]; }

  // The tile's queries over the keys of a piece, block by block, by A:
  //   Scratch     its memory
  //   find        a block as a row of the tile sees it
  //   attend<N>   adds it to the state of N queries, A::kQueries at most
  template <class A>
  static void piece(const AttentionTile& t, int piece, void* memory, const AttentionState& of) {
    const typename A::Scratch s(memory, t.head);
    const State state(of, t.head.value);
    if (!t.resumes || piece > t.first_piece()) {
      for (int i = 0; i < t.queries(); ++i) state.largest[i] = kNone;
      __builtin_memset(state.lanes, 0, sizeof(float) * t.queries() * kSumLanes);
      __builtin_memset(state.out, 0, sizeof(float) * t.queries() * padded(t.head.value));
    }

    const int begin = larger(piece * kPieceTokens, t.begin);
    const int end = smaller((piece + 1) * kPieceTokens, t.end);
    for (int first = begin / kBlockTokens * kBlockTokens; first < end; first += kBlockTokens) {
      const Keys keys{first, larger(first, begin) - first,
                      smaller(first + kBlockTokens, end) - first};
      // Beams read what they have in common once.
      const bool common = t.beams.regions == nullptr || first + keys.end <= t.beams.shared;
      const int rows = common ? t.rows : 1;
      for (int row = 0; row < t.rows; row += rows) {
        const auto block = A::find(t, keys, row, s);
        attend<A, A::kQueries>(t, keys, block, s, row * t.heads, (row + rows) * t.heads, state);
      }
    }
    for (int i = 0; i < t.queries(); ++i)
      state.sum[i] = Sums<T>::load(state.lanes + i * kSumLanes).total();
  }

  // One block of keys for queries [i, end), N at a time and then fewer: the keys that some of
  // the N see. An A with kAnyCount takes any number up to N.
  template <class A, int N, class Block>
  static void attend(const AttentionTile& t, const Keys& keys, const Block& block,
                     const typename A::Scratch& s, int i, int end, const State& state) {
    constexpr bool kAny = requires { A::kAnyCount; };
    for (; i + (kAny ? 1 : N) <= end; i += N) {
      const int n = kAny ? smaller(N, end - i) : N;
      const int first = t.row_position(i / t.heads), last = t.row_position((i + n - 1) / t.heads);
      const Keys seen{keys.block, larger(keys.begin, t.first_visible(first) - keys.block),
                      smaller(keys.end, t.last_visible(last) + 1 - keys.block)};
      if (seen.begin >= seen.end) continue;
      if constexpr (kAny) {
        A::attend(t, seen, block, s, i, n, state);
      } else {
        A::template attend<N>(t, seen, block, s, i, state);
      }
    }
    if constexpr (N > 1 && !kAny) attend<A, N / 2>(t, keys, block, s, i, end, state);
  }

  static Vector lane_numbers() {
    Vector x;
    for (int i = 0; i < kLanes; ++i) x[i] = static_cast<float>(i);
    return x;
  }

  // most * tanh(score / most), with tanh |u| = (1 - e) / (1 + e), e = exp(-2 |u|).
  static void cap(float most, float* scores) {
    const Vector each = T::set1(-2.0f * kLog2E / most), one = T::set1(1.0f);
    for (int v = 0; v < kBlockVectors; ++v) {
      const Vector x = T::load(scores + v * kLanes);
      const Vector e = exp2((x < 0.0f ? -x : x) * each);
      const Vector y = (one - e) / (one + e) * most;
      T::store(scores + v * kLanes, x < 0.0f ? -y : y);
    }
  }

  // Caps, biases and masks the scores of query i.
  static void mask(const AttentionTile& t, const Keys& keys, int i, float* scores) {
    const int position = t.row_position(i / t.heads);
    // Visible keys of the block.
    const int first = t.first_visible(position) - keys.block;
    const int last = t.last_visible(position) - keys.block;
    if (t.softcap > 0) cap(t.softcap * kLog2E, scores);
    if (t.slopes != nullptr) {
      const Vector slope = T::set1(t.slopes[i % t.heads] * kLog2E);
      for (int v = 0; v < kBlockVectors; ++v) {
        const Vector distance =
            lane_numbers() + static_cast<float>(v * kLanes + keys.block - position);
        T::store(scores + v * kLanes, T::fma(slope, distance, T::load(scores + v * kLanes)));
      }
    }
    if (first > 0 || last < kBlockTokens - 1) {
      for (int v = 0; v < kBlockVectors; ++v) {
        const Vector key = lane_numbers() + static_cast<float>(v * kLanes);
        Vector x = T::load(scores + v * kLanes);
        x = key < static_cast<float>(first) ? T::set1(kNone) : x;
        x = key > static_cast<float>(last) ? T::set1(kNone) : x;
        T::store(scores + v * kLanes, x);
      }
    }
  }

  // A score of query i that none so far exceeds by more than kSlack. Where these scores raise
  // it, the sums are moved to it; kNone: no key has been seen yet.
  static float raise(const AttentionTile& t, int i, const float* scores, const State& state) {
    Vector most = T::load(scores);
#pragma GCC unroll 4
    for (int v = 1; v < kBlockVectors; ++v) most = T::max(most, T::load(scores + v * kLanes));
    const float before = state.largest[i];
    // Most blocks do not raise it, and finding the maximum among the lanes takes time.
    const float now = T::any_greater(most, T::set1(before + kSlack)) ? T::largest(most) : before;
    if (now != before && before != kNone) {
      const Vector shrink = exp2(T::set1(before - now));
      float* const sums = state.lanes + i * kSumLanes;
      for (int v = 0; v < kSumLanes; v += kLanes) T::store(sums + v, T::load(sums + v) * shrink);
      float* o = state.out + int64_t{i} * padded(t.head.value);
      for (int d = 0; d < padded(t.head.value); d += kLanes)
        T::store(o + d, T::load(o + d) * shrink);
    }
    state.largest[i] = now;
    return now;
  }

  static void merge(const AttentionTile& t, const AttentionState& from_state,
                    const AttentionState& to_state) {
    const State piece(from_state, t.head.value), total(to_state, t.head.value);
    const int width = padded(t.head.value);
    for (int i = 0; i < t.queries(); ++i) {
      if (piece.largest[i] == kNone) continue;  // a piece that this query does not see
      const float* from = piece.out + int64_t{i} * width;
      float* to = total.out + int64_t{i} * width;
      if (total.largest[i] == kNone) {
        total.largest[i] = piece.largest[i];
        total.sum[i] = piece.sum[i];
        __builtin_memcpy(to, from, sizeof(float) * width);
        continue;
      }
      const float now = larger(total.largest[i], piece.largest[i]);
      const float keep = exp2(total.largest[i] - now), add = exp2(piece.largest[i] - now);
      total.largest[i] = now;
      total.sum[i] = total.sum[i] * keep + piece.sum[i] * add;
      for (int d = 0; d < width; d += kLanes) {
        T::store(to + d, T::fma(T::load(from + d), T::set1(add), T::load(to + d) * keep));
      }
    }
  }

  // What the values of a query are multiplied with, where a key without a value has a score too.
  static float beside(float score, float largest, float sum) {
    const float now = larger(largest, score), keep = exp2(largest - now);
    return keep / (sum * keep + exp2(score - now));
  }

  static void finish(const AttentionTile& t, const AttentionState& state, int64_t out_stride,
                     bool out_f32, void* out) {
    const State total(state, t.head.value);
    const int width = padded(t.head.value);
    for (int i = 0; i < t.queries(); ++i) {
      const float* from = total.out + int64_t{i} * width;
      const int64_t at = i / t.heads * out_stride + int64_t{i % t.heads} * t.head.value;
      alignas(64) float y[kMaxHeadDim];
      const float scale = t.null_scores == nullptr ? 1.0f / total.sum[i]
                                                   : beside(t.null_scores[i % t.heads] * kLog2E,
                                                            total.largest[i], total.sum[i]);
      for (int d = 0; d < width; d += kLanes) T::store(y + d, T::load(from + d) * scale);
      if (out_f32) {
        __builtin_memcpy(static_cast<float*>(out) + at, y, sizeof(float) * t.head.value);
      } else {
        Rows<T>::to_bf16(y, t.head.value, static_cast<bf16*>(out) + at);
      }
    }
  }
};

// The kernels of A over the softmax of T.
template <class T, class A>
constexpr AttentionKernels make_attention() {
  using S = Softmax<T>;
  return {A::scratch_bytes, S::state_floats, A::prepare, S::template piece<A>, S::merge, S::finish};
}

}  // namespace
}  // namespace millrace::cpu

#endif
