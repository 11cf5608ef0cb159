// out[r] = softmax(scale * q[r] . K^T + mask) . V over the row's own sequence, by tensor cores, for a KV cache of
// operands, without sinks.
//
// Keys are cut into pieces of 64 at fixed positions. A piece has a softmax of its own: the scores' maximum, the
// probabilities rounded to operands, their total, and their sum of values. Pieces are merged into a query's state in
// ascending order. That is all of a query's arithmetic, and its position alone decides it: both kernels below give it the
// same bits. A piece that a query does not see leaves its state as it is: the factor is exp(0) = 1, all products are 0.
//
// mr_attention_prompt: a block takes neighboring queries of a KV head, each warp some of them; the warps share the
// pieces, which come to shared memory one after the other. mr_attention_decode: a block takes up to 16 queries,
// and each of its warps another piece. mr_attention_beams is the same for the rows of beams, of which a task has one:
// there each token has an address of its own.
//
// Keys that several sequences share, whole pieces, are computed by a launch of mr_attention_decode of their own, for rows of
// all of them: it leaves each query's state in memory, and the launch that follows resumes from there.
//
// Products are mma.m16n8k16: 16 queries by 8 keys, then 16 queries by 8 elements of the head. Along the head the first
// one's sum runs in an order of its own: of 32 elements a lane of a quad takes 8 neighbors, which are one load of 16 bytes
// and belong to two products, 4 to each.
#define MR_MOST_ITEMS (8 * MR_LANES)
#include "common.hpp"
#include "ptx.hpp"

static_assert(MR_LANES == 32 && MR_KV_BITS == 16);

namespace mr_attention {

constexpr int kDim = MR_HEAD_DIM;
constexpr int kChunks = mr::chunks(kDim);
constexpr int kKeyChunks = mr::key_chunks(kDim);
constexpr int kValueChunks = mr::value_chunks(kDim);
constexpr int kPartPlaces = mr::kPieceKeys * mr::kPartChunks;
constexpr int kLastRow = mr::part_chunks(kDim, kChunks / mr::kPartChunks);
constexpr int kGroups = kKeyChunks / 4;                   // of 32 elements
constexpr int kSteps = 2 * kGroups;                       // products along the head
constexpr int kKeyTiles = mr::kPieceKeys / 8;             // columns of q . K^T
constexpr int kDimTiles = kChunks;                        // columns of p . V
constexpr int kSlabs = mr::kPieceKeys / mr::kSlabTokens;  // of a piece; products along its keys
constexpr int kSlabChunks = mr::kSlabTokens * kChunks;
constexpr int kTokenBytes = mr::kv_token_bytes(kDim, 16);
constexpr int64_t kHeadBytes = int64_t{mr::kSlabTokens} * kTokenBytes;
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.4426950408889634f;  // scores are logarithms to base 2
constexpr uint32_t kOnes = MR_BF16 ? 0x3f803f80u : 0x3c003c00u;

// What depends on x is computed anew from here on. Else the compiler keeps it in registers, from before a loop on.
template <class T>
MR_INLINE void recomputed(T& x) {
  asm volatile("" : "+r"(x));
}

// Where a chunk of a token lies in shared memory.
MR_INLINE uint32_t key_place(uint32_t token, uint32_t chunk) {
  // A load's 8 lanes take 4 chunks of 2 tokens.
  return token * kKeyChunks + (kKeyChunks % 8 == 0 ? chunk ^ token % 2 * 4 : chunk);
}
MR_INLINE uint32_t value_place(uint32_t token, uint32_t chunk) {
  // 8 tokens, one chunk of each.
  const uint32_t part = kChunks > mr::kPartChunks ? chunk / mr::kPartChunks : 0;
  const uint32_t row = part < kChunks / mr::kPartChunks ? mr::kPartChunks : kLastRow;
  const uint32_t at = chunk - part * mr::kPartChunks;
  return part * kPartPlaces + token * row + (row % 8 == 0 ? at ^ token % 8 : at);
}

// The queries of a task; they see keys [from, last].
struct Task {
  mr::SequenceEntry sequence;
  int kv_head, heads;  // heads: of a KV head
  int first, count;
  int from, last;
  const int32_t* rows = nullptr;  // of several sequences: pairs of row and position
};

// Beams are all at one position.
MR_INLINE int position_of(const mr::SequenceEntry& sequence, int row) {
  return sequence.position + (sequence.prompt == mr::kNoPrompt ? row : 0);
}

MR_INLINE int first_key(const mr::AttentionShape& s, int position) {
  return s.window > 0 && position >= s.window ? position - s.window + 1 : 0;
}

// A part of `count` queries at most.
MR_INLINE Task part(const mr::AttentionShape& s, Task task, int first, int count) {
  const int all = task.sequence.rows * task.heads;
  task.first = first;
  task.count = first >= all ? 0 : all - first < count ? all - first : count;
  task.from = first_key(s, position_of(task.sequence, first / task.heads));
  task.last = position_of(task.sequence, (first + task.count - 1) / task.heads);
  return task;
}

MR_INLINE Task read_task(const mr::AttentionShape& s, const mr::SequenceEntry* sequences,
                         const mr::AttentionTask* tasks, int group, int count) {
  const mr::AttentionTask entry = tasks[group / s.kv.kv_heads];
  Task task;
  task.sequence = sequences[entry.sequence];
  task.kv_head = group % s.kv.kv_heads;
  task.heads = s.heads / s.kv.kv_heads;
  return part(s, task, entry.first, count);
}

// A query: pair of row and head. Lane l has those of rows l / 4 and l / 4 + 8 of a product.
struct Query {
  bool there;
  int position;
  int64_t row;
  int head;
};

MR_INLINE Query query(const mr::AttentionShape& s, const Task& task, int i) {
  Query q;
  q.there = i < task.count;
  const int index = task.first + (q.there ? i : 0);
  const int row = index / task.heads;
  q.row = task.sequence.first_row + row;
  q.head = task.kv_head * task.heads + index % task.heads;
  q.position = position_of(task.sequence, row);
  if (task.rows != nullptr) {
    q.row = task.rows[2 * row];
    q.position = task.rows[2 * row + 1];
  }
  return q;
}

// What scores need to know of a lane's queries.
template <int T>
struct Seen {
  int position[T][2];
  float slope[T][2];
};

template <int T>
MR_INLINE Seen<T> seen_by(const mr::AttentionShape& s, const Task& task, const float* slopes,
                          int lane) {
  Seen<T> seen;
#pragma unroll
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Query q = query(s, task, t * mr::kProductQueries + h * 8 + lane / 4);
      seen.position[t][h] = q.position;
      seen.slope[t][h] = s.alibi ? slopes[q.head] * kLog2E : 0.0f;
    }
  }
  return seen;
}

MR_INLINE uint32_t operands(float low, float high) {
#if MR_BF16
  return mr_ptx::pair_of(low, high);
#else
  return to_operand(low) | static_cast<uint32_t>(to_operand(high)) << 16;  // no infinities
#endif
}

// Queries of products 2g and 2g + 1 along the head.
MR_INLINE void load_query(uint32_t (&q)[2][4], const float* qkv, const mr::AttentionShape& s,
                          const Task& task, int tile, int g, int lane) {
  const int64_t width = s.in_width;
  const int chunk = 4 * g + lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Query from = query(s, task, tile * mr::kProductQueries + h * 8 + lane / 4);
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = 0;
    if (from.there && (kChunks % 4 == 0 || chunk < kChunks)) {
      const auto* data = reinterpret_cast<const sycl::vec<float, 4>*>(
          qkv + from.row * width + int64_t{from.head} * kDim + chunk * 8);
      const sycl::vec<float, 4> low = data[0], high = data[1];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = low[i];
        x[4 + i] = high[i];
      }
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      q[step][h] = operands(x[4 * step], x[4 * step + 1]);
      q[step][2 + h] = operands(x[4 * step + 2], x[4 * step + 3]);
    }
  }
}

// A warp's queries: in registers, or, [tile][step][lane] chunks, in shared memory.
template <int T, bool kKept>
struct Queries {
  uint32_t words[T][kGroups][2][4];

  MR_INLINE explicit Queries(mr_ptx::Words4*) {}
  MR_INLINE void set(const uint32_t (&q)[2][4], int t, int g) {
#pragma unroll
    for (int i = 0; i < 8; ++i) words[t][g][i / 4][i % 4] = q[i / 4][i % 4];
  }
  MR_INLINE void get(uint32_t (&q)[2][4], int t, int g) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i / 4][i % 4] = words[t][g][i / 4][i % 4];
  }
};
template <int T>
struct Queries<T, true> {
  mr_ptx::Words4* chunks;  // a lane reads only what it wrote

  MR_INLINE explicit Queries(mr_ptx::Words4* data) : chunks(data) {}
  MR_INLINE void set(const uint32_t (&q)[2][4], int t, int g) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      mr_ptx::Words4 four;
#pragma unroll
      for (int i = 0; i < 4; ++i) four.at[i] = q[step][i];
      chunks[((t * kGroups + g) * 2 + step) * MR_LANES] = four;
    }
  }
  MR_INLINE void get(uint32_t (&q)[2][4], int t, int g) const {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const mr_ptx::Words4 four = chunks[((t * kGroups + g) * 2 + step) * MR_LANES];
#pragma unroll
      for (int i = 0; i < 4; ++i) q[step][i] = four.at[i];
    }
  }
};

template <int T, class Q>
MR_INLINE void load_queries(Q& q, const float* qkv, const mr::AttentionShape& s, const Task& task,
                            int lane) {
#pragma unroll
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint32_t words[2][4];
      load_query(words, qkv, s, task, t, g, lane);
      q.set(words, t, g);
    }
  }
}

// scores += q * keys of 32 elements; keys: a lane's chunk of key lane / 4.
MR_INLINE void multiply_group(float (&scores)[4], const uint32_t (&q)[2][4],
                              const mr_ptx::Words4& keys) {
  mr_ptx::multiply(scores, q[0], keys.at[0], keys.at[1]);
  mr_ptx::multiply(scores, q[1], keys.at[2], keys.at[3]);
}

template <int T, int N>
MR_INLINE void set_zero(float (&sums)[T][N][4]) {
#pragma unroll
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t][n][i] = 0;
    }
  }
}

// A piece's probabilities, as the second product wants them, by steps of 16 keys, and the scores' maxima.
template <int T>
struct Piece {
  uint32_t p[T][kSlabs][4];
  float most[T][2];
};

template <int T>
MR_INLINE void softmax(Piece<T>& piece, float (&scores)[T][kKeyTiles][4], const Seen<T>& seen,
                       const mr::AttentionShape& s, bool masked, int first, int lane) {
  const int key = first + lane % 4 * 2;
  const float scale = s.scale * kLog2E;
  const int window = s.window > 0 ? s.window : std::numeric_limits<int>::max();
#pragma unroll
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // The query sees the lane's keys (oldest, newest], counted from its first one.
      const int newest = seen.position[t][h] - key, oldest = newest - window;
      float most = kNone;
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) scores[t][j][2 * h + i] *= scale;
      }
      if (s.alibi) {
        const float position = static_cast<float>(newest);
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float distance = static_cast<float>(j * 8 + i) - position;
            scores[t][j][2 * h + i] =
                sycl::fma(seen.slope[t][h], distance, scores[t][j][2 * h + i]);
          }
        }
      }
      if (masked) {
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const bool sees = j * 8 + i <= newest && j * 8 + i > oldest;
            scores[t][j][2 * h + i] = sees ? scores[t][j][2 * h + i] : kNone;
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
        most = sycl::fmax(most, sycl::fmax(scores[t][j][2 * h], scores[t][j][2 * h + 1]));
      }
      const auto warp = this_item().get_sub_group();
      most = sycl::fmax(most, sycl::permute_group_by_xor(warp, most, 1));
      most = sycl::fmax(most, sycl::permute_group_by_xor(warp, most, 2));
      piece.most[t][h] = most;
      const float shift = most == kNone ? 0.0f : most;
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
        piece.p[t][j / 2][j % 2 * 2 + h] =
            mr_ptx::pair_of(mr_ptx::exp2(scores[t][j][2 * h] - shift),
                            mr_ptx::exp2(scores[t][j][2 * h + 1] - shift));
      }
    }
  }
}

// Totals of a piece's probabilities, as the products see them.
template <int T>
MR_INLINE void total(const Piece<T>& piece, float (&totals)[T][2]) {
#pragma unroll
  for (int t = 0; t < T; ++t) {
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int step = 0; step < kSlabs; ++step) {
      mr_ptx::multiply(sums, piece.p[t][step], kOnes, kOnes);
    }
    totals[t][0] = sums[0];
    totals[t][1] = sums[2];
  }
}

// done(t, tile, sums) for each tile of 8 elements of the head in [kFirst, kEnd): its sums of p * v.
template <int T, int kFirst, int kEnd, class Done>
MR_INLINE void multiply_values(const Piece<T>& piece, const mr_ptx::Words4* values, int lane,
                               const Done& done) {
  constexpr int kAtOnce = 4;
  const int token = lane % 16;
#pragma unroll
  for (int from = kFirst; from < kEnd; from += kAtOnce) {
    float sums[T][kAtOnce][4];
    set_zero(sums);
#pragma unroll
    for (int step = 0; step < kSlabs; ++step) {
#pragma unroll
      for (int d = 0; d < kAtOnce; d += 2) {
        const int tile = from + d;
        if (tile >= kEnd) continue;
        // Two tiles; of an odd number of tiles the last one twice.
        const int chunk = tile + 1 < kEnd ? tile + lane / 16 : tile;
        uint32_t words[4];
        mr_ptx::load_transposed(words, values + value_place(step * mr::kSlabTokens + token, chunk));
#pragma unroll
        for (int t = 0; t < T; ++t) {
          mr_ptx::multiply(sums[t][d], piece.p[t][step], words[0], words[1]);
          if (tile + 1 < kEnd) {
            mr_ptx::multiply(sums[t][d + 1], piece.p[t][step], words[2], words[3]);
          }
        }
      }
    }
#pragma unroll
    for (int d = 0; d < kAtOnce; ++d) {
      if (from + d >= kEnd) continue;
#pragma unroll
      for (int t = 0; t < T; ++t) done(t, from + d, sums[t][d]);
    }
  }
}

// A query's running softmax, but for its sums of values.
struct State {
  float most = kNone, total = 0;
};
struct Factors {
  float state, piece;
};

// Merges a piece's maximum and total into the state. The sums follow: sum * state + piece's sum * piece.
MR_INLINE Factors merge(State& state, float most, float total) {
  const float both = sycl::fmax(state.most, most);
  const float shift = both == kNone ? 0.0f : both;  // no key seen yet: all stays at zero
  const Factors f{mr_ptx::exp2(state.most - shift), mr_ptx::exp2(most - shift)};
  state.most = both;
  state.total = sycl::fma(total, f.piece, state.total * f.state);
  return f;
}
MR_INLINE float merged(const Factors& f, float sum, float of_piece) {
  return sycl::fma(of_piece, f.piece, sum * f.state);
}

// Elements 2 * pair and the next of a query's result: sums times `by`.
MR_INLINE void store_pair(void* out, const mr::AttentionShape& s, const Query& q, int pair,
                          float first, float second, float by) {
  const int64_t at = (q.row * s.heads + q.head) * kDim + 2 * pair;
  // + 0: a sum that underflowed to -0 is the same as one that a further piece turned to 0.
  const float x = first * by + 0.0f, y = second * by + 0.0f;
  if (s.out_f32) {
    sycl::vec<float, 2> both;
    both[0] = x;
    both[1] = y;
    *reinterpret_cast<sycl::vec<float, 2>*>(static_cast<float*>(out) + at) = both;
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<operand*>(out) + at) = operands(x, y);
  }
}

// Whether some query does not see all keys of a piece.
MR_INLINE bool partly_seen(const mr::AttentionShape& s, const Task& task, int first) {
  const int least = position_of(task.sequence, task.first / task.heads);
  return first + mr::kPieceKeys - 1 > least || first < first_key(s, task.last);
}

// The slab of tokens [16 * slab, 16 * slab + 16) and the offset of the task's KV head. 0: no query sees it.
MR_INLINE const uint8_t* task_slab(const KvTables& tables, const Task& task, int slab) {
  if (slab < task.from / mr::kSlabTokens || slab > task.last / mr::kSlabTokens) return nullptr;
  return kv_slab(tables, task.sequence, slab) + task.kv_head * kHeadBytes;
}

// ---- Prompts

constexpr int kPromptTiles = mr::kPromptWarpQueries / mr::kProductQueries;
constexpr int kPromptItems = mr::kPromptWarps * MR_LANES;
constexpr int kBuffers = mr::prompt_buffers(kDim);
constexpr int kPieceChunks = mr::kPieceKeys * (kKeyChunks + kValueChunks);
constexpr bool kKeepsQueries = mr::keeps_queries(kDim);

// Begins to copy a piece's keys and values. What no query sees is zero.
MR_INLINE void copy_piece(mr_ptx::Words4* to, const KvTables& tables, const Task& task,
                          const mr::KvShape& kv, int piece, uint32_t item) {
  recomputed(item);
  mr_ptx::Words4* keys = to;
  mr_ptx::Words4* values = to + mr::kPieceKeys * kKeyChunks;
#pragma unroll
  for (int b = 0; b < kSlabs; ++b) {
    const int slab = piece * kSlabs + b;
    const uint8_t* data = task_slab(tables, task, slab);
#pragma unroll
    for (uint32_t from = 0; from < kSlabChunks; from += kPromptItems) {
      const uint32_t i = from + item, token = i / kChunks, chunk = i % kChunks;
      if (kSlabChunks % kPromptItems != 0 && i >= kSlabChunks) continue;
      const int position = slab * mr::kSlabTokens + static_cast<int>(token);
      const bool there = data != nullptr && position <= task.last;
      const uint8_t* source = there ? data + i * 16 : nullptr;
      mr_ptx::copy16(keys + key_place(b * mr::kSlabTokens + token, chunk),
                     there ? source + kv.keys : nullptr, there);
      mr_ptx::copy16(values + value_place(b * mr::kSlabTokens + token, chunk),
                     there ? source + kv.values : nullptr, there);
    }
  }
  mr_ptx::commit_copies();
}

MR_INLINE void run_prompt(const float* qkv, const mr::SequenceEntry* sequences,
                          const mr::AttentionTask* tasks, const KvTables& tables,
                          const float* slopes, void* out, float*, float* local,
                          const mr::AttentionShape& s) {
  constexpr int T = kPromptTiles;
  constexpr int kQueries = mr::kPromptWarpQueries;
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto group = item.get_group();
  const int id = item.get_local_id(0);
  int lane = id % MR_LANES;
  const int warp = sub_group_index(item);
  const Task all = read_task(s, sequences, tasks, item.get_group(0), mr::kPromptQueries);
  const Task mine = part(s, all, all.first + warp * kQueries, kQueries);
  const int first_piece = all.from / mr::kPieceKeys, last_piece = all.last / mr::kPieceKeys;
  auto* buffers = reinterpret_cast<mr_ptx::Words4*>(local);
  if (kBuffers > 1) copy_piece(buffers, tables, all, s.kv, first_piece, id);

  Queries<T, kKeepsQueries> q(buffers + kBuffers * kPieceChunks + warp * T * kSteps * MR_LANES +
                              lane);
  load_queries<T>(q, qkv, s, mine, lane);
  const Seen<T> seen = seen_by<T>(s, mine, slopes, lane);

  State state[T][2];
  float sums[T][kDimTiles][4];
  set_zero(sums);
#pragma unroll 1
  for (int piece = first_piece; piece <= last_piece; ++piece) {
    const mr_ptx::Words4* keys = buffers;
    if (kBuffers > 1) {
      const int buffer = (piece - first_piece) % kBuffers;
      keys += buffer * kPieceChunks;
      mr_ptx::wait_copies<0>();
      sycl::group_barrier(group);  // the piece has arrived, and the one before it is done with
      if (piece < last_piece) {
        copy_piece(buffers + (buffer + 1) % kBuffers * kPieceChunks, tables, all, s.kv, piece + 1,
                   id);
      }
    } else {
      sycl::group_barrier(group);
      copy_piece(buffers, tables, all, s.kv, piece, id);
      mr_ptx::wait_copies<0>();
      sycl::group_barrier(group);
    }
    const int first = piece * mr::kPieceKeys;
    if (mine.count == 0 || first > mine.last || first + mr::kPieceKeys <= mine.from) continue;
    recomputed(lane);

    float scores[T][kKeyTiles][4];
    set_zero(scores);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint32_t words[T][2][4];
#pragma unroll
      for (int t = 0; t < T; ++t) q.get(words[t], t, g);
      // After the head's end anything finite is right: there the queries are 0.
      const int chunk = 4 * g + lane % 4 < kChunks ? 4 * g + lane % 4 : kChunks - 1;
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
        const mr_ptx::Words4 four = keys[key_place(j * 8 + lane / 4, chunk)];
#pragma unroll
        for (int t = 0; t < T; ++t) multiply_group(scores[t][j], words[t], four);
      }
    }
    Piece<T> p;
    softmax(p, scores, seen, s, partly_seen(s, mine, first), first, lane);
    float totals[T][2];
    total(p, totals);
    Factors factors[T][2];
#pragma unroll
    for (int t = 0; t < T; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        factors[t][h] = merge(state[t][h], p.most[t][h], totals[t][h]);
      }
    }
    multiply_values<T, 0, kDimTiles>(
        p, keys + mr::kPieceKeys * kKeyChunks,
        lane, [&](int t, int d, const float(&of_piece)[4]) __attribute__((always_inline)) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[t][d][i] = merged(factors[t][i / 2], sums[t][d][i], of_piece[i]);
          }
        });
  }

  Task again = mine;
  recomputed(again.first);
  recomputed(again.count);
#pragma unroll
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Query to = query(s, again, t * mr::kProductQueries + h * 8 + lane / 4);
      if (!to.there) continue;
      const float by = 1 / state[t][h].total;
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        store_pair(out, s, to, d * 4 + lane % 4, sums[t][d][2 * h], sums[t][d][2 * h + 1], by);
      }
    }
  }
}

// ---- Some queries, and pieces side by side

constexpr int kDecodeWarps = mr::decode_warps(kDim);
// Tiles of keys whose loads are under way together: 64 registers.
constexpr int kAhead = kGroups <= 2 ? 8 : kGroups <= 4 ? 4 : 1;
// Tiles of the merged sums that a warp holds: the warps take them in turn.
constexpr int kOwnTiles = (kDimTiles + kDecodeWarps - 1) / kDecodeWarps;

// Where the tokens of a piece lie, for the task's KV head: the i-th one of slab b. key() is a token that is mapped in
// any case; value() is null if no query sees it.
struct SlabTokens {
  static constexpr bool kOneRow = false;  // of a task
  const uint8_t *slabs[kSlabs], *last;

  MR_INLINE void find(const KvTables& tables, const Task& task, int piece, uint64_t*, int) {
#pragma unroll
    for (int b = 0; b < kSlabs; ++b) slabs[b] = task_slab(tables, task, piece * kSlabs + b);
    last = task_slab(tables, task, task.last / mr::kSlabTokens);
  }
  MR_INLINE const uint8_t* key(int b, int i) const {
    return (slabs[b] == nullptr ? last : slabs[b]) + i * kTokenBytes;
  }
  MR_INLINE const uint8_t* value(int b, int i) const {
    return slabs[b] == nullptr ? nullptr : slabs[b] + i * kTokenBytes;
  }
};
struct BeamTokens {
  static constexpr bool kOneRow = true;
  const uint64_t* places;  // addresses, which are even; plus 1 if no query sees the token

  MR_INLINE void find(const KvTables& tables, const Task& task, int piece, uint64_t* shared,
                      int lane) {
    places = shared;
    const auto warp = this_item().get_sub_group();
    sycl::group_barrier(warp);  // the piece before is done with
#pragma unroll
    for (int i = lane; i < mr::kPieceKeys; i += MR_LANES) {
      const int key = piece * mr::kPieceKeys + i;
      const bool there = key >= task.from && key <= task.last;  // others may not be mapped
      shared[i] = kv_token(kTokenBytes, tables, task.sequence, task.first / task.heads,
                           there ? key : task.last) +
                  static_cast<uint64_t>(task.kv_head * kHeadBytes + (there ? 0 : 1));
    }
    sycl::group_barrier(warp);
  }
  MR_INLINE const uint8_t* key(int b, int i) const {
    return kv_memory(places[b * mr::kSlabTokens + i] & ~uint64_t{1});
  }
  MR_INLINE const uint8_t* value(int b, int i) const {
    const uint64_t place = places[b * mr::kSlabTokens + i];
    return place % 2 != 0 ? nullptr : kv_memory(place);
  }
};

// Begins to copy a piece's values. What no query sees is zero.
template <class Tokens>
MR_INLINE void copy_values(mr_ptx::Words4* to, const Tokens& tokens, const Task& task,
                           const mr::KvShape& kv, int piece, uint32_t lane) {
  recomputed(lane);
#pragma unroll
  for (int b = 0; b < kSlabs; ++b) {
#pragma unroll
    for (uint32_t from = 0; from < kSlabChunks; from += MR_LANES) {
      const uint32_t i = from + lane, token = i / kChunks, chunk = i % kChunks;
      if (kSlabChunks % MR_LANES != 0 && i >= kSlabChunks) continue;
      const uint8_t* data = tokens.value(b, token);
      const int at = b * mr::kSlabTokens + static_cast<int>(token);
      const bool there = data != nullptr && piece * mr::kPieceKeys + at <= task.last;
      mr_ptx::copy16(to + value_place(at, chunk), there ? data + kv.values + chunk * 16 : nullptr,
                     there);
    }
  }
  mr_ptx::commit_copies();
}

// A lane's chunks of kAhead tiles of keys.
template <class Tokens>
MR_INLINE void load_keys(mr_ptx::Words4 (&keys)[kAhead][kGroups], const Tokens& tokens,
                         const mr::KvShape& kv, int first_tile, int lane) {
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    const int token = (first_tile + j) * 8;
    const uint8_t* data =
        kv.keys + tokens.key(token / mr::kSlabTokens, token % mr::kSlabTokens + lane / 4);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      // After the head's end anything finite is right: there the queries are 0.
      const int chunk = 4 * g + lane % 4 < kChunks ? 4 * g + lane % 4 : kChunks - 1;
      keys[j][g] = mr_ptx::load_once(data + chunk * 16);
    }
  }
}

// Where a tile of a warp's sums lies: [tile][query half][lane] pairs in each part of the values.
using Pair = sycl::vec<float, 2>;
MR_INLINE int sum_place(int tile, int h, int lane) {
  const int part = kDimTiles > mr::kPartChunks ? tile / mr::kPartChunks : 0;
  return part * kPartPlaces * 2 + ((tile - part * mr::kPartChunks) * 2 + h) * MR_LANES + lane;
}

// Puts a part's sums into the place of its values.
template <int kFirst>
MR_INLINE void replace_values(mr_ptx::Words4* values, const Piece<1>& p, bool second_half,
                              int lane) {
  constexpr int kEnd = kDimTiles < kFirst + mr::kPartChunks ? kDimTiles : kFirst + mr::kPartChunks;
  float products[kEnd - kFirst][4];
  multiply_values<1, kFirst, kEnd>(
      p, values, lane, [&](int, int d, const float(&x)[4]) __attribute__((always_inline)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) products[d - kFirst][i] = x[i];
      });
  sycl::group_barrier(this_item().get_sub_group());  // no lane reads the values any more
  auto* pairs = reinterpret_cast<Pair*>(values);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (h == 1 && !second_half) continue;
#pragma unroll
    for (int d = kFirst; d < kEnd; ++d) {
      Pair pair;
      pair[0] = products[d - kFirst][2 * h];
      pair[1] = products[d - kFirst][2 * h + 1];
      pairs[sum_place(d, h, lane)] = pair;
    }
  }
}

// The state of a query in memory. first: the place of the task's first row among those of all groups.
MR_INLINE float* state_at(float* states, const mr::AttentionShape& s, const Task& task, int first,
                          int i) {
  const int64_t query = int64_t{first} * task.heads + task.first + i;
  return states + (query * s.kv.kv_heads + task.kv_head) * mr::mma_state_floats(kDim);
}

template <class Tokens>
MR_INLINE void run_pieces(const float* qkv, const mr::SequenceEntry* sequences,
                          const mr::AttentionTask* tasks, const KvTables& tables,
                          const float* slopes, void* out, float* states, float* local,
                          const mr::AttentionShape& s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto group = item.get_group();
  const auto sub_group = item.get_sub_group();
  int lane = sub_group.get_local_linear_id();
  const int warp = sub_group_index(item);
  Task task = read_task(s, sequences, tasks, item.get_group(0), mr::kProductQueries);
  if (Tokens::kOneRow) {
    const int left = task.heads - task.first % task.heads;  // heads of the row
    if (left < task.count) task = part(s, task, task.first, left);
  }
  const bool leaves = !Tokens::kOneRow && s.keys == mr::kSharedKeys;
  const bool resumes = !Tokens::kOneRow && s.keys == mr::kOwnKeys && task.sequence.shared > 0;
  if (leaves) {
    task.rows = tables.beams + task.sequence.index;
    task.last = task.sequence.shared - 1;
  }
  if (resumes) task.from = task.sequence.shared;
  const int first_piece = task.from / mr::kPieceKeys, last_piece = task.last / mr::kPieceKeys;
  const bool second_half = task.count > 8;

  // [warp] values, in whose place their sums come; then [warp][query] maxima and totals;
  // then the places of beams' tokens.
  constexpr int kWarpChunks = mr::kPieceKeys * kValueChunks;
  auto* values = reinterpret_cast<mr_ptx::Words4*>(local);
  mr_ptx::Words4* my_values = values + warp * kWarpChunks;
  float* maxima = local + kDecodeWarps * kWarpChunks * 4;
  float* totals = maxima + kDecodeWarps * mr::kProductQueries;
  auto* places = reinterpret_cast<uint64_t*>(totals + kDecodeWarps * mr::kProductQueries);

  // The first piece is on its way before the queries are looked at.
  Tokens tokens;
  mr_ptx::Words4 keys[kAhead][kGroups];
  const auto begin = [&](int piece) __attribute__((always_inline)) {
    if (piece > last_piece) return;
    recomputed(lane);
    tokens.find(tables, task, piece, places + warp * mr::kPieceKeys, lane);
    copy_values(my_values, tokens, task, s.kv, piece, lane);
    load_keys(keys, tokens, s.kv, 0, lane);
  };
  begin(first_piece + warp);

  Queries<1, false> q(nullptr);
  load_queries<1>(q, qkv, s, task, lane);
  const Seen<1> seen = seen_by<1>(s, task, slopes, lane);

  State state[2];
  float sums[1][kOwnTiles][4];
  set_zero(sums);
  // Calls visit(its two sums, pair) for each pair of elements that this lane has of its query h.
  const auto own_pairs = [&](int h, const auto& visit) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < kOwnTiles; ++i) {
      const int tile = i * kDecodeWarps + warp;
      if (kDimTiles % kDecodeWarps != 0 && tile >= kDimTiles) continue;
      visit(&sums[0][i][2 * h], tile * 4 + lane % 4);
    }
  };
  if (resumes) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = h * 8 + lane / 4;
      if (i >= task.count) continue;
      const float* from = state_at(states, s, task, task.sequence.states, i);
      state[h] = {from[0], from[1]};
      own_pairs(
          h, [&](float* own, int pair) __attribute__((always_inline)) {
            own[0] = from[2 + 2 * pair];
            own[1] = from[3 + 2 * pair];
          });
    }
  }
#pragma unroll 1
  for (int round = first_piece; round <= last_piece; round += kDecodeWarps) {
    const int piece = round + warp, first = piece * mr::kPieceKeys;
    if (piece <= last_piece) {
      float scores[1][kKeyTiles][4];
      set_zero(scores);
#pragma unroll
      for (int from = 0; from < kKeyTiles; from += kAhead) {
        if (from > 0) load_keys(keys, tokens, s.kv, from, lane);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          uint32_t words[2][4];
          q.get(words, 0, g);
#pragma unroll
          for (int j = 0; j < kAhead; ++j) multiply_group(scores[0][from + j], words, keys[j][g]);
        }
      }
      Piece<1> p;
      softmax(p, scores, seen, s, partly_seen(s, task, first), first, lane);
      float of_piece[1][2];
      total(p, of_piece);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (lane % 4 == 0) {
          maxima[warp * mr::kProductQueries + h * 8 + lane / 4] = p.most[0][h];
          totals[warp * mr::kProductQueries + h * 8 + lane / 4] = of_piece[0][h];
        }
      }
      mr_ptx::wait_copies<0>();
      sycl::group_barrier(sub_group);
      replace_values<0>(my_values, p, second_half, lane);
      if constexpr (kDimTiles > mr::kPartChunks) {
        replace_values<mr::kPartChunks>(my_values, p, second_half, lane);
      }
    }
    sycl::group_barrier(group);
    const int pieces =
        last_piece - round + 1 < kDecodeWarps ? last_piece - round + 1 : kDecodeWarps;
#pragma unroll 1
    for (int w = 0; w < pieces; ++w) {
      Factors factors[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = w * mr::kProductQueries + h * 8 + lane / 4;
        factors[h] = merge(state[h], maxima[at], totals[at]);
      }
      const auto* its = reinterpret_cast<const Pair*>(values + w * kWarpChunks);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (h == 1 && !second_half) continue;
#pragma unroll
        for (int i = 0; i < kOwnTiles; ++i) {
          const int tile = i * kDecodeWarps + warp;
          if (kDimTiles % kDecodeWarps != 0 && tile >= kDimTiles) continue;
          const Pair pair = its[sum_place(tile, h, lane)];
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            sums[0][i][2 * h + k] = merged(factors[h], sums[0][i][2 * h + k], pair[k]);
          }
        }
      }
    }
    if (last_piece - round < kDecodeWarps) break;
    sycl::group_barrier(group);
    begin(piece + kDecodeWarps);
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = h * 8 + lane / 4;
    if (i >= task.count) continue;
    if (leaves) {
      float* left = state_at(states, s, task, task.sequence.first_row, i);
      if (warp == 0 && lane % 4 == 0) {
        left[0] = state[h].most;
        left[1] = state[h].total;
      }
      own_pairs(
          h, [&](const float* own, int pair) __attribute__((always_inline)) {
            left[2 + 2 * pair] = own[0];
            left[3 + 2 * pair] = own[1];
          });
      continue;
    }
    task.rows = nullptr;  // no register holds them until here
    const Query to = query(s, task, i);
    const float by = 1 / state[h].total;
    own_pairs(
        h, [&](const float* own, int pair) __attribute__((always_inline)) {
          store_pair(out, s, to, pair, own[0], own[1], by);
        });
  }
}

MR_INLINE void run_decode(const float* qkv, const mr::SequenceEntry* sequences,
                          const mr::AttentionTask* tasks, const KvTables& tables,
                          const float* slopes, void* out, float* states, float* local,
                          const mr::AttentionShape& s) {
  run_pieces<SlabTokens>(qkv, sequences, tasks, tables, slopes, out, states, local, s);
}
MR_INLINE void run_beams(const float* qkv, const mr::SequenceEntry* sequences,
                         const mr::AttentionTask* tasks, const KvTables& tables,
                         const float* slopes, void* out, float* states, float* local,
                         const mr::AttentionShape& s) {
  run_pieces<BeamTokens>(qkv, sequences, tasks, tables, slopes, out, states, local, s);
}

}  // namespace mr_attention

// The arguments of all attention kernels; these do not need the sinks' queries and the null scores.
#define MR_ATTENTION(name, run)                                                               \
  MR_KERNEL name(const float* qkv, const float*, const mr::SequenceEntry* sequences,          \
                 const mr::AttentionTask* tasks, const uint64_t* slabs, const int32_t* beams, \
                 const float* slopes, const float*, void* out, float* states,                 \
                 sycl::local_accessor<float, 1> local, mr::AttentionShape s) {                \
    mr_attention::run(qkv, sequences, tasks, {slabs, beams}, slopes, out, states,             \
                      local.get_multi_ptr<sycl::access::decorated::no>().get(), s);           \
  }

MR_ATTENTION(mr_attention_prompt, run_prompt)
MR_ATTENTION(mr_attention_decode, run_decode)
MR_ATTENTION(mr_attention_beams, run_beams)
