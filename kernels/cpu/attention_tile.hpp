// Attention of a tile of queries over the keys of one KV head, written once over
// a Target; included as row_tile.hpp is. FlashAttention's online softmax
// (arXiv:2205.14135, algorithm 1) with keys in the lanes for the scores and head
// elements in the lanes for the sums of values.
//
// The arithmetic of a query is the same whatever tile it stands in: one float
// accumulator per score over pairs of head_dim in ascending order, one per
// element of the output over pairs of keys in ascending order.
#ifndef MILLRACE_CPU_ATTENTION_TILE_HPP
#define MILLRACE_CPU_ATTENTION_TILE_HPP

#include "op_kernels.hpp"
#include "row_tile.hpp"

namespace millrace::cpu {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kNone = -__builtin_inff();  // the maximum over no keys
constexpr int kBlockSlabs = kBlockTokens / kSlabTokens;

// Target, beside what row_tile.hpp lists:
//   Ints              int32 lanes
//   Pair              two neighbouring elements of a query or of probabilities
//   Pair make_pair(float, float)
//   kParts            a product of pairs takes so many instructions: one for both
//                     elements, or one for the even and one for the odd ones
//   Packed load_packed<part>(const uint32_t*)  that part of kLanes bf16 pairs
//   Packed splat<part>(Pair)                   of one pair, in every lane
//   Vector dot(Packed, Packed, Vector sum)     sum + products
//   Vector store_pairs(Vector, Pair*)          neighbours; what was stored
//   bool any_greater(Vector a, Vector b)       in some lane
//   kQueries, kKeyVectors, kDimVectors    sizes of the register tiles
template <class T>
struct Attention {
  using Vector = typename T::Vector;
  using Ints = typename T::Ints;
  using Pair = typename T::Pair;
  static constexpr int kLanes = T::kLanes;
  static constexpr int kSlabVectors = kSlabTokens / kLanes;
  static constexpr int kBlockVectors = kBlockTokens / kLanes;
  static_assert(kSlabTokens % kLanes == 0);

  static int padded(int head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

  // ---- Memory

  struct Scratch {
    Pair* queries;     // [queries][head_dim / 2]
    uint32_t* keys;    // [4 slabs][head_dim / 2][16] pairs of elements: of beams
    uint32_t* values;  // [4 slabs][8][padded] pairs of tokens: of what cannot be read in place
    float* sums;       // [queries][lanes]: of the probabilities

    Scratch(void* memory, int head_dim) {
      auto* at = static_cast<std::byte*>(memory);
      queries = take<Pair>(at, int64_t{tile_queries(head_dim)} * head_dim / 2);
      keys = take<uint32_t>(at, int64_t{kBlockTokens} * head_dim / 2);
      values = take<uint32_t>(at, int64_t{kBlockTokens} / 2 * padded(head_dim));
      sums = take<float>(at, int64_t{tile_queries(head_dim)} * kLanes);
      end = at;
    }

    std::byte* end;

   private:
    template <class E>
    static E* take(std::byte*& at, int64_t n) {
      E* here = reinterpret_cast<E*>(at);
      at += (n * sizeof(E) + 63) / 64 * 64;
      return here;
    }
  };

  static size_t scratch_bytes(int head_dim) {
    const Scratch s(nullptr, head_dim);
    return reinterpret_cast<uintptr_t>(s.end);
  }

  struct State {
    float* largest;  // [queries] largest score times log2(e), or kNone
    float* sum;      // [queries] of exp(score - largest)
    float* out;      // [queries][padded] of exp(score - largest) * value

    State(float* memory, int queries)
        : largest(memory), sum(memory + queries), out(memory + round_up(2 * queries)) {}
  };

  static int round_up(int n) { return (n + 15) / 16 * 16; }

  static size_t state_floats(int head_dim, int queries) {
    return round_up(2 * queries) + size_t(round_up(queries * padded(head_dim)));
  }

  // ---- Arithmetic

  // 2^x for x <= 0, relative error below 2^-23; exactly 1 at 0 and exactly 0
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
    const Ints exponent = (Ints)shifted << 23;  // the integer is in the low bits
    const Vector y = (Vector)((Ints)p + exponent);
    return x < -126.0f ? Vector{} : y;
  }

  static float exp2(float x) { return exp2(T::set1(x))[0]; }

  static void prepare(const AttentionTile& t, void* memory) {
    const Scratch s(memory, t.head_dim);
    const float scale = t.scale * kLog2E;
    const int half = t.head_dim / 2;
    for (int i = 0; i < t.queries(); ++i) {
      const float* q = t.q + i / t.heads * t.q_stride + int64_t{i % t.heads} * t.head_dim;
      Pair* pairs = s.queries + int64_t{i} * half;
      int d = 0;
      for (; d + kLanes <= t.head_dim; d += kLanes) {
        T::store_pairs(T::load(q + d) * scale, pairs + d / 2);
      }
      for (; d < t.head_dim; d += 2) pairs[d / 2] = T::make_pair(q[d] * scale, q[d + 1] * scale);
    }
  }

  static void piece(const AttentionTile& t, int piece, void* memory, float* state_memory) {
    const Scratch s(memory, t.head_dim);
    const State state(state_memory, t.queries());
    for (int i = 0; i < t.queries(); ++i) state.largest[i] = kNone;
    __builtin_memset(s.sums, 0, sizeof(float) * t.queries() * kLanes);
    __builtin_memset(state.out, 0, sizeof(float) * t.queries() * padded(t.head_dim));

    const int begin = larger(piece * kPieceTokens, t.first_visible(t.position));
    const int end = smaller((piece + 1) * kPieceTokens, t.last_position() + 1);
    for (int first = begin / kBlockTokens * kBlockTokens; first < end; first += kBlockTokens) {
      const Keys keys{first, larger(first, begin) - first,
                      smaller(first + kBlockTokens, end) - first};
      // Beams read what they have in common once.
      const bool common = t.beams.regions == nullptr || first + keys.end <= t.beams.shared;
      const int rows = common ? t.rows : 1;
      for (int row = 0; row < t.rows; row += rows) {
        const Block block = find(t, keys, row, s);
        attend_all<T::kQueries>(t, keys, block, s, row * t.heads, (row + rows) * t.heads, state);
      }
    }
    for (int i = 0; i < t.queries(); ++i) state.sum[i] = T::sum(T::load(s.sums + i * kLanes));
  }

  // Keys of a block that some query of the tile sees.
  struct Keys {
    int block;       // position of its first key
    int begin, end;  // of the block's 64

    int first_slab() const { return begin / kSlabTokens; }
    int end_slab() const { return (end + kSlabTokens - 1) / kSlabTokens; }
  };

  // Where the keys and values of a block are, slab by slab.
  struct Block {
    const uint32_t* keys[kBlockSlabs];    // [head_dim / 2][16] pairs of elements
    const uint32_t* values[kBlockSlabs];  // [8][padded] pairs of tokens
    size_t ahead;  // bytes to those of the next block, which are asked for meanwhile
  };

  // The block as one row of the tile sees it: in place, but for what beams gather and
  // for values that end inside a slab or a vector. Behind the last key lies what another
  // sequence left, which even times a probability of zero must not count: it might be
  // no number.
  static Block find(const AttentionTile& t, const Keys& keys, int row, const Scratch& s) {
    const int d = t.head_dim, width = padded(d);
    const bool beams = t.beams.regions != nullptr;
    const int direct = beams ? t.beams.prompt : t.last_position() + 1;
    Block block{};
    block.ahead = keys.block + kBlockTokens < direct ? t.slab_bytes * kBlockSlabs : 0;
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      const size_t at = t.slab_bytes * (keys.block / kSlabTokens + slab);
      auto* values = s.values + int64_t{slab} * kSlabTokens / 2 * width;
      const int valid = keys.end - slab * kSlabTokens;
      block.keys[slab] = reinterpret_cast<const uint32_t*>(t.keys + at);
      block.values[slab] = reinterpret_cast<const uint32_t*>(t.values + at);
      if (beams && keys.block + (slab + 1) * kSlabTokens > t.beams.prompt) {
        auto* gathered = s.keys + int64_t{slab} * kSlabTokens * d / 2;
        gather(t, keys, slab, row, gathered, values);
        block.keys[slab] = gathered;
        block.values[slab] = values;
      } else if (valid < kSlabTokens || width != d) {
        copy_values(block.values[slab], valid, d, values);
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

  // Sixteen tokens of a beam's past, of the prompt and of the regions that the
  // index names; zeros where the block has no keys.
  static void gather(const AttentionTile& t, const Keys& keys, int slab, int row, uint32_t* to_keys,
                     uint32_t* to_values) {
    const int d = t.head_dim, width = padded(d);
    const BeamRows& b = t.beams;
    __builtin_memset(to_keys, 0, sizeof(uint32_t) * kSlabTokens * d / 2);
    __builtin_memset(to_values, 0, sizeof(uint32_t) * kSlabTokens / 2 * width);
    const int begin = larger(keys.begin, slab * kSlabTokens);
    const int end = smaller(keys.end, (slab + 1) * kSlabTokens);
    for (int key = begin; key < end; ++key) {
      int token = keys.block + key;
      const std::byte *from_keys = t.keys, *from_values = t.values;
      if (token >= b.prompt) {
        token -= b.prompt;
        const std::byte* region = b.regions[b.index[int64_t{row} * b.steps + token]];
        from_keys = region + b.key;
        from_values = region + b.value;
      }
      const size_t at = t.slab_bytes * (token / kSlabTokens);
      const int from = token % kSlabTokens, to = key % kSlabTokens;
      const auto* pairs = reinterpret_cast<const uint32_t*>(from_keys + at) + from;
      for (int k = 0; k < d / 2; ++k) to_keys[k * kSlabTokens + to] = pairs[k * kSlabTokens];
      pairs = reinterpret_cast<const uint32_t*>(from_values + at) + from / 2 * d;
      uint32_t* const out = to_values + to / 2 * width;
      const int right = from % 2 * 16, left = to % 2 * 16;
      for (int i = 0; i < d; ++i) out[i] |= (pairs[i] >> right & 0xffff) << left;
    }
  }

  // One block of keys for queries [i, end), N at a time and then fewer.
  template <int N>
  static void attend_all(const AttentionTile& t, const Keys& keys, const Block& block,
                         const Scratch& s, int i, int end, const State& state) {
    for (; i + N <= end; i += N) attend<N>(t, keys, block, s, i, state);
    if constexpr (N > 1) attend_all<N / 2>(t, keys, block, s, i, end, state);
  }

  // One block of keys for queries [i, i + N).
  template <int N>
  static void attend(const AttentionTile& t, const Keys& keys, const Block& block, const Scratch& s,
                     int i, const State& state) {
    alignas(64) float scores[N][kBlockTokens];
    alignas(64) Pair probabilities[N][kBlockTokens / 2];
    const int begin = keys.first_slab() * kSlabVectors, end = keys.end_slab() * kSlabVectors;
    int v = begin;
    for (; v + T::kKeyVectors <= end; v += T::kKeyVectors) {
      score<N, T::kKeyVectors>(t, block, s, i, v, scores);
    }
    for (; v < end; ++v) score<N, 1>(t, block, s, i, v, scores);

    for (int n = 0; n < N; ++n) {
      softmax(t, keys, i + n, scores[n], probabilities[n], s.sums + (i + n) * kLanes, state);
    }
    const int width = padded(t.head_dim);
    float* out = state.out + int64_t{i} * width;
    int d = 0;
    for (; d + T::kDimVectors * kLanes <= width; d += T::kDimVectors * kLanes) {
      weigh<N, T::kDimVectors>(keys, block, d, width, probabilities, out + d);
    }
    for (; d < width; d += kLanes) {
      weigh<N, 1>(keys, block, d, width, probabilities, out + d);
    }
  }

  // Asks for the line that the next block has here, for the second-level cache. The
  // processor's own fetching ends with the page, and a slab's share of a head is less.
  static void fetch(const uint32_t* here, size_t ahead) {
    __builtin_prefetch(reinterpret_cast<const std::byte*>(here) + ahead, 0, 2);
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
    const int half = t.head_dim / 2;
    const uint32_t* keys[M];
    for (int m = 0; m < M; ++m) {
      keys[m] = block.keys[(v + m) / kSlabVectors] + (v + m) % kSlabVectors * kLanes;
    }
    const Pair* q = s.queries + int64_t{i} * half;
    Vector sums[N][M] = {};
    for (int k = 0; k < half; ++k) {
      const uint32_t* here[M];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        here[m] = keys[m] + k * kSlabTokens;
        fetch(here[m], block.ahead);
      }
      const Pair* pairs = q + k;
      multiply<0>(here, pairs, half, sums);
      if constexpr (T::kParts == 2) multiply<1>(here, pairs, half, sums);
    }
    for (int n = 0; n < N; ++n) {
      for (int m = 0; m < M; ++m) T::store(out[n] + (v + m) * kLanes, sums[n][m]);
    }
  }

  static Vector lane_numbers() {
    Vector x;
    for (int i = 0; i < kLanes; ++i) x[i] = static_cast<float>(i);
    return x;
  }

  // Bias and mask the scores of query i, move its sums to the new maximum, turn
  // the scores into probabilities.
  static void softmax(const AttentionTile& t, const Keys& keys, int i, float* scores, Pair* out,
                      float* sums, const State& state) {
    const int position = t.row_position(i / t.heads);
    // Visible keys of the block.
    const int first = t.first_visible(position) - keys.block, last = position - keys.block;
    if (t.slopes != nullptr) {
      const Vector slope = T::set1(t.slopes[i % t.heads] * kLog2E);
      for (int v = 0; v < kBlockVectors; ++v) {
        const Vector distance = lane_numbers() + static_cast<float>(v * kLanes - last);
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
    Vector most = T::load(scores);
#pragma GCC unroll 4
    for (int v = 1; v < kBlockVectors; ++v) most = T::max(most, T::load(scores + v * kLanes));
    const float before = state.largest[i];
    // Most blocks bring no new maximum, and finding it among the lanes takes time.
    const float now = T::any_greater(most, T::set1(before)) ? T::largest(most) : before;
    if (now == kNone) {  // no key seen yet
      __builtin_memset(out, 0, sizeof(Pair) * kBlockTokens / 2);
      return;
    }
    Vector sum = T::load(sums);
    if (now != before && before != kNone) {
      const Vector shrink = exp2(T::set1(before - now));
      sum = sum * shrink;
      float* o = state.out + int64_t{i} * padded(t.head_dim);
      for (int d = 0; d < padded(t.head_dim); d += kLanes) T::store(o + d, T::load(o + d) * shrink);
    }
    state.largest[i] = now;
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVectors; ++v) {
      const Vector p = exp2(T::load(scores + v * kLanes) - now);
      sum += T::store_pairs(p, out + v * kLanes / 2);
    }
    T::store(sums, sum);
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
      const Pair* pairs = &p[0][slab * kSlabTokens / 2];
      for (int k = 0; k < kSlabTokens / 2; ++k, values += width, ++pairs) {
        const uint32_t* here[M];
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          here[m] = values + m * kLanes;
          fetch(here[m], block.ahead);
        }
        multiply<0>(here, pairs, kBlockTokens / 2, sums);
        if constexpr (T::kParts == 2) multiply<1>(here, pairs, kBlockTokens / 2, sums);
      }
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) T::store(out + n * width + m * kLanes, sums[n][m]);
    }
  }

  static void merge(const AttentionTile& t, const float* piece_memory, float* total_memory) {
    const State piece(const_cast<float*>(piece_memory), t.queries());
    const State total(total_memory, t.queries());
    const int width = padded(t.head_dim);
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

  static void finish(const AttentionTile& t, const float* total_memory, int64_t out_stride,
                     bool out_f32, void* out) {
    const State total(const_cast<float*>(total_memory), t.queries());
    const int width = padded(t.head_dim);
    for (int i = 0; i < t.queries(); ++i) {
      const float* from = total.out + int64_t{i} * width;
      const int64_t at = i / t.heads * out_stride + int64_t{i % t.heads} * t.head_dim;
      alignas(64) float y[kMaxHeadDim];
      const float scale = 1.0f / total.sum[i];
      for (int d = 0; d < width; d += kLanes) T::store(y + d, T::load(from + d) * scale);
      if (out_f32) {
        __builtin_memcpy(static_cast<float*>(out) + at, y, sizeof(float) * t.head_dim);
      } else {
        Rows<T>::to_bf16(y, t.head_dim, static_cast<bf16*>(out) + at);
      }
    }
  }

  static int smaller(int a, int b) { return a < b ? a : b; }
  static int larger(int a, int b) { return a > b ? a : b; }
  static float larger(float a, float b) { return a > b ? a : b; }
};

template <class T>
constexpr OpKernels make_op_kernels(Isa isa) {
  using A = Attention<T>;
  return {isa,
          Rows<T>::norm,
          Rows<T>::rotate,
          Rows<T>::to_bf16,
          A::scratch_bytes,
          A::state_floats,
          A::prepare,
          A::piece,
          A::merge,
          A::finish};
}

}  // namespace
}  // namespace millrace::cpu

#endif
