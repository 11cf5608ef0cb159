// Attention over a bf16 cache by tile registers, over a Policy of cpu/machine/tiles.hpp; included as cpu/ops/row_tile.hpp is.
//
// A tile of queries meets the keys of a slab as they lie: sixteen tokens, a pair of elements in each row. Values become tiles of
// thirty-two tokens, once for all queries of the tile. The softmax between is that of every instruction set.
//
// Sums: a score over the tiles of 32 elements of a key in ascending order, an element of the output over those of 32 tokens at
// absolute positions. A query's sums are the same whatever others its tile has.
#ifndef MILLRACE_CPU_ATTENTION_TILE_AMX_HPP
#define MILLRACE_CPU_ATTENTION_TILE_AMX_HPP

#include <array>
#include <utility>

#include "cpu/attention/shares.hpp"
#include "cpu/attention/tile.hpp"
#include "cpu/machine/tiles.hpp"

namespace millrace::cpu {
namespace {

// T: the Target of the softmax, whose Pair is a word of two bf16.
template <class Policy, class T>
struct TileAttention {
  using Pairs = Attention<T, InPlace<T>>;
  using S = Softmax<T>;
  using State = typename S::State;
  using Pair = typename T::Pair;
  static_assert(sizeof(Pair) == 4 && T::kLanes == kAmxWords && kSlabTokens == kAmxWords);
  static constexpr int kQueries = kAmxRows;
  static constexpr bool kAnyCount = true;
  static constexpr int kTileBytes = kAmxRows * kAmxRowBytes;
  static constexpr int kSlabRows = kSlabTokens / 2;  // of a tile of values

  // Registers: sums, the rows' tile, and weights in turn.
  static constexpr int kSums = 4, kRowTile = 4, kWeightTile = 5, kWeightTiles = 3;

  // Tiles of a key, of two elements in a word.
  static int key_tiles(HeadShape head) { return (head.key / 2 + kAmxRows - 1) / kAmxRows; }
  static int value_tiles(HeadShape head) { return S::padded(head.value) / kAmxWords; }

  struct Block {
    const std::byte* keys[kBlockSlabs];  // [key tiles]
    const std::byte* last[kBlockSlabs];  // the last of them
    const std::byte* values;             // [2][value tiles]
  };

  // Has the registers configured while it lives, once configure() was called.
  struct Scratch {
    std::byte* end;
    Pair* queries;  // [queries][key tiles][16]
    typename InPlace<T>::Room room;
    std::byte *last, *values;  // of a Block: [4 slabs] tiles, and values

    Scratch(void* memory, HeadShape head)
        : end(static_cast<std::byte*>(memory)),
          queries(take<Pair>(end, int64_t{tile_queries(head)} * key_tiles(head) * kAmxWords)),
          room(end, head),
          last(take<std::byte>(end, kBlockSlabs * kTileBytes)),
          values(take<std::byte>(end, 2 * int64_t{value_tiles(head)} * kTileBytes)) {}
    Scratch(const Scratch&) = delete;
    ~Scratch() {
      if (configured_ > 0) Policy::release();
    }

    void configure(int rows) const {
      static constexpr auto kShapes = shapes(std::make_integer_sequence<int, kAmxRows + 1>());
      if (rows != configured_) Policy::configure(kShapes[configured_ = rows]);
    }

   private:
    mutable int configured_ = 0;  // rows
  };

  template <int... kRows>
  static constexpr std::array<TileShape, sizeof...(kRows)> shapes(
      std::integer_sequence<int, kRows...>) {
    return {TileShape({kRows, kRows, kRows, kRows, kRows, kAmxRows, kAmxRows, kAmxRows})...};
  }

  static size_t scratch_bytes(HeadShape head) {
    const Scratch s(nullptr, head);
    return reinterpret_cast<uintptr_t>(s.end);
  }

  static void prepare(const AttentionTile& t, void* memory) {
    const Scratch s(memory, t.head);
    Pairs::round_queries(t, s.queries, key_tiles(t.head) * kAmxWords);
  }

  static Block find(const AttentionTile& t, const Keys& keys, int row, const Scratch& s) {
    const auto found = InPlace<T>::find(t, keys, row, s.room);
    Block block{};
    block.values = s.values;
    for (int slab = keys.first_slab(); slab < keys.end_slab(); ++slab) {
      find_keys(t.head, found, slab, s, block);
      place_values(t.head, found, slab, s.values);
    }
    if (keys.first_slab() % 2 == 1) clear_values(t.head, keys.first_slab() - 1, s.values);
    if (keys.end_slab() % 2 == 1) clear_values(t.head, keys.end_slab(), s.values);
    return block;
  }

  // One block of keys for n queries from i on.
  static void attend(const AttentionTile& t, const Keys& keys, const Block& block, const Scratch& s,
                     int i, int n, const State& state) {
    alignas(64) float scores[kQueries][kBlockTokens];
    alignas(64) Pair probabilities[kQueries][kBlockTokens / 2];
    score(t, block, s, i, n, keys.first_slab(), keys.end_slab(), scores[0]);
    for (int k = 0; k < n; ++k) {
      Pairs::softmax(t, keys, i + k, scores[k], probabilities[k], state);
    }
    weigh(t, keys, block, probabilities[0], state.out + int64_t{i} * S::padded(t.head.value));
  }

  // As Shares requests them: scores of N queries from i on and key vectors [v, end), slabs here.
  template <int N>
  static constexpr int kWide = 1;
  template <int N, int M>
  static void score_all(const AttentionTile& t, const Block& block, const Scratch& s, int i, int v,
                        int end, float (&out)[N][kBlockTokens]) {
    score(t, block, s, i, N, v, end, out[0]);
  }

 private:
  template <int kCount>
  using Registers = std::make_integer_sequence<int, kCount>;

  static void find_keys(HeadShape head, const cpu::Block& found, int slab, const Scratch& s,
                        Block& block) {
    const int half = head.key / 2, rest = half % kAmxRows;
    const auto* keys = reinterpret_cast<const std::byte*>(found.keys[slab]);
    for (int k = 0; k < half; ++k) fetch(keys + k * kAmxRowBytes, found.keys_ahead[slab]);
    block.keys[slab] = keys;
    block.last[slab] = keys + int64_t{key_tiles(head) - 1} * kTileBytes;
    if (rest == 0) return;
    std::byte* const last = s.last + slab * kTileBytes;
    __builtin_memcpy(last, block.last[slab], rest * kAmxRowBytes);
    __builtin_memset(last + rest * kAmxRowBytes, 0, kTileBytes - rest * kAmxRowBytes);
    block.last[slab] = last;
  }

  static std::byte* value_rows(HeadShape head, int slab, std::byte* values) {
    return values + int64_t{slab / 2} * value_tiles(head) * kTileBytes +
           slab % 2 * kSlabRows * kAmxRowBytes;
  }

  static void place_values(HeadShape head, const cpu::Block& found, int slab, std::byte* values) {
    const int tiles = value_tiles(head);
    const auto* from = reinterpret_cast<const std::byte*>(found.values[slab]);
    std::byte* to = value_rows(head, slab, values);
    for (int k = 0; k < kSlabRows; ++k, to += kAmxRowBytes) {
      for (int tile = 0; tile < tiles; ++tile, from += kAmxRowBytes) {
        __builtin_memcpy(to + int64_t{tile} * kTileBytes, from, kAmxRowBytes);
        fetch(from, found.values_ahead[slab]);
      }
    }
  }

  static void clear_values(HeadShape head, int slab, std::byte* values) {
    std::byte* const to = value_rows(head, slab, values);
    for (int tile = 0; tile < value_tiles(head); ++tile) {
      __builtin_memset(to + int64_t{tile} * kTileBytes, 0, kSlabRows * kAmxRowBytes);
    }
  }

  // out: [n][64], of which slabs [slab, end) are written.
  static void score(const AttentionTile& t, const Block& block, const Scratch& s, int i, int n,
                    int slab, int end, float* out) {
    const int tiles = key_tiles(t.head);
    const Pair* q = s.queries + int64_t{i} * tiles * kAmxWords;
    s.configure(n);
    if (end - slab == kBlockSlabs) {
      return score_slabs(block, q, tiles, slab, out, Registers<kBlockSlabs>());
    }
    for (; slab < end; ++slab) score_slabs(block, q, tiles, slab, out, Registers<1>());
  }

  template <int... kSlab>
  static void score_slabs(const Block& block, const Pair* q, int tiles, int slab, float* out,
                          std::integer_sequence<int, kSlab...>) {
    (Policy::template zero<kSlab>(), ...);
    for (int k = 0; k < tiles; ++k) {
      Policy::template load<kRowTile>(q + k * kAmxWords, int64_t{tiles} * kAmxRowBytes);
      const auto weights = [&](int of) {
        return k + 1 == tiles ? block.last[of] : block.keys[of] + int64_t{k} * kTileBytes;
      };
      (multiply<kSlab>(weights(slab + kSlab)), ...);
    }
    (Policy::template store<kSlab>(out + (slab + kSlab) * kSlabTokens,
                                   kBlockTokens * sizeof(float)),
     ...);
  }

  // Adds the products of the rows' tile and 16 lines of weights to sums kTo.
  template <int kTo>
  static void multiply(const std::byte* weights) {
    constexpr int kFrom = kWeightTile + kTo % kWeightTiles;
    Policy::template load<kFrom>(weights, kAmxRowBytes);
    Policy::template add_bf16<kTo, kRowTile, kFrom>();
  }

  // Adds probability * value to the output of the rows that are configured.
  static void weigh(const AttentionTile& t, const Keys& keys, const Block& block,
                    const Pair* probabilities, float* out) {
    const int tiles = value_tiles(t.head), begin = keys.first_slab() / 2,
              end = (keys.end_slab() + 1) / 2;
    int tile = 0;
    const auto some = [&]<int kCount>() {
      for (; tile + kCount <= tiles; tile += kCount) {
        weigh_tiles(block.values, tiles, tile, begin, end, probabilities, out, Registers<kCount>());
      }
    };
    some.template operator()<kSums>();
    some.template operator()<1>();
  }

  template <int... kTile>
  static void weigh_tiles(const std::byte* values, int tiles, int tile, int begin, int end,
                          const Pair* probabilities, float* out,
                          std::integer_sequence<int, kTile...>) {
    const int64_t stride = int64_t{tiles} * kAmxRowBytes;
    out += tile * kAmxWords;
    (Policy::template load<kTile>(out + kTile * kAmxWords, stride), ...);
    for (int half = begin; half < end; ++half) {
      Policy::template load<kRowTile>(probabilities + half * kAmxWords,
                                      kBlockTokens / 2 * sizeof(Pair));
      (multiply<kTile>(values + (int64_t{half} * tiles + tile + kTile) * kTileBytes), ...);
    }
    (Policy::template store<kTile>(out + kTile * kAmxWords, stride), ...);
  }
};

// The same sums by vectors, for tiles of queries so small that placing values costs more than it saves. A product of two bf16 is exact,
// so that one rounding of an fma is that of the addition.
template <class Policy, class T>
struct TileOrder {
  using Tiles = TileAttention<Policy, T>;
  using S = Softmax<T>;
  using State = typename S::State;
  using Vector = typename T::Vector;
  using Pair = typename T::Pair;
  using Scratch = typename Tiles::Scratch;
  static constexpr int kQueries = 2;
  static constexpr int kLanes = T::kLanes;
  static constexpr int kWide = 4;  // vectors beside the queries

  static Block find(const AttentionTile& t, const Keys& keys, int row, const Scratch& s) {
    return InPlace<T>::find(t, keys, row, s.room);
  }

  template <int N>
  static void attend(const AttentionTile& t, const Keys& keys, const Block& block, const Scratch& s,
                     int i, const State& state) {
    alignas(64) float scores[N][kBlockTokens];
    alignas(64) Pair probabilities[N][kBlockTokens / 2];
    const Pair* q = s.queries + int64_t{i} * Tiles::key_tiles(t.head) * kAmxWords;
    int slab = keys.first_slab();
    for (; slab + kWide <= keys.end_slab(); slab += kWide)
      score<N, kWide>(t, block, q, slab, scores);
    for (; slab < keys.end_slab(); ++slab) score<N, 1>(t, block, q, slab, scores);
    for (int n = 0; n < N; ++n) {
      Tiles::Pairs::softmax(t, keys, i + n, scores[n], probabilities[n], state);
    }
    const int width = S::padded(t.head.value);
    float* const out = state.out + int64_t{i} * width;
    int d = 0;
    for (; d + kWide * kLanes <= width; d += kWide * kLanes) {
      weigh<N, kWide>(keys, block, d, width, probabilities, out + d);
    }
    for (; d < width; d += kLanes) weigh<N, 1>(keys, block, d, width, probabilities, out + d);
  }

 private:
  // What a tile adds to N times M sums.
  template <int N, int M>
  struct Added {
    Vector even[N][M] = {}, odd[N][M] = {};

    // pairs: of a query each, `stride` apart. What lies `ahead` bytes after the words is fetched.
    void multiply(const Pair* pairs, int stride, const uint32_t* const (&words)[M],
                  const size_t (&ahead)[M]) {
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        typename T::Ints two;
        __builtin_memcpy(&two, words[m], sizeof two);
        fetch(words[m], ahead[m]);
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) {
          // A bf16 is the upper half of a float.
          const Pair pair = pairs[n * stride];
          odd[n][m] = T::fma((Vector)(two & ~0xffff), set1(pair & 0xffff0000u), odd[n][m]);
          even[n][m] = T::fma((Vector)(two << 16), set1(pair << 16), even[n][m]);
        }
      }
    }
    void add_to(Vector (&sums)[N][M]) const {
      for (int n = 0; n < N; ++n) {
        for (int m = 0; m < M; ++m) sums[n][m] += even[n][m] + odd[n][m];
      }
    }
  };

  static Vector set1(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return T::set1(x);
  }

  // Scores of N queries and the keys of M slabs.
  template <int N, int M>
  static void score(const AttentionTile& t, const Block& block, const Pair* q, int slab,
                    float (&out)[N][kBlockTokens]) {
    const int half = t.head.key / 2, stride = Tiles::key_tiles(t.head) * kAmxWords;
    const uint32_t* keys[M];
    size_t ahead[M];
    for (int m = 0; m < M; ++m) {
      keys[m] = block.keys[slab + m];
      ahead[m] = block.keys_ahead[slab + m];
    }
    Vector sums[N][M] = {};
    for (int first = 0; first < half; first += kAmxRows) {
      Added<N, M> added;
      for (int k = first; k < smaller(first + kAmxRows, half); ++k) {
        added.multiply(q + k, stride, keys, ahead);
        for (const uint32_t*& key : keys) key += kSlabTokens;
      }
      added.add_to(sums);
    }
    for (int n = 0; n < N; ++n) {
      for (int m = 0; m < M; ++m) T::store(out[n] + (slab + m) * kSlabTokens, sums[n][m]);
    }
  }

  // Adds probability * value to M vectors of the output of N queries.
  template <int N, int M>
  static void weigh(const Keys& keys, const Block& block, int d, int width,
                    const Pair (&p)[N][kBlockTokens / 2], float* out) {
    Vector sums[N][M];
    for (int n = 0; n < N; ++n) {
      for (int m = 0; m < M; ++m) sums[n][m] = T::load(out + n * width + m * kLanes);
    }
    for (int slab = keys.first_slab(); slab < keys.end_slab();) {
      Added<N, M> added;
      do {
        const uint32_t* values[M];
        size_t ahead[M];
        for (int m = 0; m < M; ++m) {
          values[m] = block.values[slab] + d + m * kLanes;
          ahead[m] = block.values_ahead[slab];
        }
        for (int k = 0; k < kSlabTokens / 2; ++k) {
          added.multiply(&p[0][slab * kSlabTokens / 2 + k], kBlockTokens / 2, values, ahead);
          for (const uint32_t*& value : values) value += width;
        }
        ++slab;
      } while (slab % 2 == 1 && slab < keys.end_slab());
      added.add_to(sums);
    }
    for (int n = 0; n < N; ++n) {
      for (int m = 0; m < M; ++m) T::store(out + n * width + m * kLanes, sums[n][m]);
    }
  }
};

// Attention over bf16 by tiles, or by vectors with the same bits.
template <class Policy, class T>
struct TileKernels {
  using Tiles = TileAttention<Policy, T>;
  using Vectors = TileOrder<Policy, T>;
  using S = Softmax<T>;

  static void piece(const AttentionTile& t, int piece, void* scratch, const AttentionState& state) {
    t.queries() <= Vectors::kQueries ? S::template piece<Vectors>(t, piece, scratch, state)
                                     : S::template piece<Tiles>(t, piece, scratch, state);
  }
  static constexpr AttentionKernels attention() {
    AttentionKernels kernels = make_attention<T, Tiles>();
    kernels.piece = piece;
    return kernels;
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
