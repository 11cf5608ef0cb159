// out[r] = softmax(scale * q[r] . K^T + mask) . V over the row's own sequence.
//
// Flash attention with an online softmax (FlashAttention, arXiv:2205.14135), for
// prefill and decode rows alike, in one launch. A work-group takes M queries of
// one KV head: rows of a sequence times the heads that share its keys. Its
// sub-groups, MR_STRIPES, take the blocks of 16 keys in turn (block b goes to
// sub-group b mod MR_STRIPES), each with a softmax of its own; in the end they are
// merged by log-sum-exp, in ascending order.
//
// Which keys meet in which order depends on a query's position alone. A block
// that a query does not see leaves its sums as they are, bit for bit: the factor
// is exp(0) = 1 and every product is 0.
//
// Sinks are the first keys, for queries that are rotated otherwise: sub-group 0 takes them
// before its blocks, and no block shows them again.
//
// Keys that several sequences share are computed by a launch of their own, for rows of all of them: it leaves the
// state of each query and stripe in memory, and the launch that follows resumes from there.
#include "kv_reader.hpp"

namespace mr_attention {

constexpr int kStripes = MR_STRIPES;  // sub-groups of a work-group
constexpr float kNone = -std::numeric_limits<float>::infinity();

// c[m] += sum over the 16 keys of p[m][key] * V[key][lane]. p lies as q . K^T
// has left it: lane n of key block b holds key b * MR_LANES + n.
#if MR_XMX
template <int M>
MR_INLINE Rows<M> rows_of(const sycl::sub_group& sub_group, const operand (&p)[kKeyBlocks][M]) {
  Rows<M> a;
#if MR_LANES == 16
#pragma unroll
  for (int m = 0; m < M; ++m) a.cells[m] = static_cast<Cell>(p[0][m]);
#else
  // Lane l wants keys 2l and 2l + 1.
  const int lane = sub_group.get_local_linear_id(), from = 2 * lane % MR_LANES;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    uint32_t pair[kKeyBlocks];
#pragma unroll
    for (int b = 0; b < kKeyBlocks; ++b) {
      const uint32_t mine = p[b][m];
      pair[b] = sycl::select_from_group(sub_group, mine, from) |
                sycl::select_from_group(sub_group, mine, from + 1) << 16;
    }
    a.cells[m] = static_cast<Cell>(2 * lane < MR_LANES ? pair[0] : pair[1]);
  }
#endif
  return a;
}
#endif

// Queries in local memory, [M][kPadded], as products take them: one sub-group has floats there, and loads its lanes'
// elements together.
#if MR_STRIPES > 1
using QueryElement = operand;
template <int M>
MR_INLINE Rows<M> load_queries(const operand* q, int lane) {
  return load_rows<M>(q, kPadded, M, mr::kDepth, lane);
}
#else
using QueryElement = float;
template <class T>
MR_INLINE auto local_lanes(T* first) {
  using namespace sycl::access;
  return sycl::address_space_cast<address_space::local_space, decorated::yes>(first);
}
MR_INLINE void put_query(float* q, const float* row, const sycl::sub_group& sub_group) {
  const int lane = sub_group.get_local_linear_id();
#pragma unroll
  for (int first = 0; first < kPadded; first += MR_LANES) {
    float x = 0;
    if constexpr (kDim % MR_LANES == 0) {
      if (first < kDim) x = load_lanes(sub_group, row + first);
    } else if (first + lane < kDim) {
      x = row[first + lane];
    }
    sub_group.store(local_lanes(q + first), to_float(to_operand(x)));
  }
}
template <int M>
MR_INLINE Rows<M> load_queries(const float* q, int) {
  const auto sub_group = this_item().get_sub_group();
  Rows<M> r;
#pragma unroll
  for (int i = 0; i < r.kParts; ++i)
#pragma unroll
    for (int m = 0; m < M; ++m) {
      r.cells[i][m] = sub_group.load(local_lanes(q + m * kPadded + i * MR_LANES));
    }
  return r;
}
#endif

// M queries and their running softmax over some of the keys.
template <int M>
struct State {
  float most[M];             // largest score
  float total[M];            // this lane's part of the sum of exp(score - most)
  float out[kDimBlocks][M];  // sum of exp(score - most) * v, in kValueUnit
  int part;                  // of the values
};

struct Query {
  int64_t row;
  int head, position, first_key;
  bool there;
};

// kGroup: the rows may be those of a group.
template <bool kGroup>
MR_INLINE Query query(const mr::AttentionShape& s, const KvTables& tables,
                      const mr::SequenceEntry& sequence, int kv_head, int index) {
  const int heads = s.heads / s.kv.kv_heads;
  Query q;
  q.there = index < sequence.rows * heads;
  const int row = q.there ? index / heads : 0;
  q.row = sequence.first_row + row;
  q.head = kv_head * heads + index % heads;
  q.position = sequence.position + (sequence.prompt == mr::kNoPrompt ? row : 0);
  if (kGroup && s.keys == mr::kSharedKeys) {
    const int32_t* of_group = tables.beams + sequence.index + 2 * row;
    q.row = of_group[0];
    q.position = of_group[1];
  }
  q.first_key = s.window > 0 && q.position >= s.window ? q.position - s.window + 1 : 0;
  if (kChunked && s.chunked) q.first_key = q.position - q.position % s.window;
  if (kSinks && q.first_key < s.sinks) q.first_key = s.sinks;
  if (s.both_ways) {  // without slopes: the position only says which keys are seen
    const int end = s.window > 0 ? q.position + s.window : sequence.rows;
    q.position = (end < sequence.rows ? end : sequence.rows) - 1;
  }
  return q;
}

// One block of 16 keys, at positions [16 * block, 16 * block + 16).
template <int M, class Keys, class Values>
MR_INLINE void add_block(State<M>& state, const sycl::sub_group& sub_group, const QueryElement* q,
                         const Keys& keys, const Values& values, int block, int last,
                         const int (&first_key)[M], const int (&position)[M],
                         const float (&slope)[M], const mr::AttentionShape& s) {
  const int lane = sub_group.get_local_linear_id();
  float scores[kKeyBlocks][M];
#pragma unroll
  for (int b = 0; b < kKeyBlocks; ++b) {
#pragma unroll
    for (int m = 0; m < M; ++m) scores[b][m] = 0;
#pragma unroll kGroupUnroll
    for (int g = 0; g < groups_of(kDim); ++g) {
      constexpr int kBlocks = kGroupDim / mr::kDepth;
      float sums[M];
#pragma unroll
      for (int m = 0; m < M; ++m) sums[m] = 0;
#pragma unroll kDepthUnroll
      for (int d = g * kBlocks; d < (g + 1) * kBlocks && d < kDepthBlocks; d += kKeyDepths) {
        Columns columns[kKeyDepths];
        load_keys(keys, b, d, lane, columns);
#pragma unroll
        for (int i = 0; i < kKeyDepths; ++i)
          multiply<M>(load_queries<M>(q + (d + i) * mr::kDepth, lane), columns[i], sums);
      }
      const float by = kCodes ? scale_of<kDim>(keys, b, g, lane) : 1.0f;
#pragma unroll
      for (int m = 0; m < M; ++m) {
        scores[b][m] = kCodes ? sycl::fma(sums[m], by, scores[b][m]) : sums[m];
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
    float most = kNone;
#pragma unroll
    for (int b = 0; b < kKeyBlocks; ++b) {
      const int key = block * mr::kSlabTokens + b * MR_LANES + lane;
      const bool seen = key <= position[m] && key >= first_key[m];
      const float distance = static_cast<float>(key - position[m]);
      float product = scores[b][m] * s.scale;
      if constexpr (kSoftcap) {
        if (s.softcap > 0) product = s.softcap * sycl::tanh(product / s.softcap);
      }
      const float score = sycl::fma(slope[m], distance, product);
      scores[b][m] = seen ? score : kNone;
      most = sycl::fmax(most, scores[b][m]);
    }
    most = sycl::reduce_over_group(sub_group, most, sycl::maximum<float>());
    most = sycl::fmax(state.most[m], most);
    // A query that has seen no key yet stays at zero.
    const float shift = most == kNone ? 0.0f : most;
    const float factor = sycl::exp(state.most[m] - shift);
    state.most[m] = most;
    float total = state.total[m] * factor;
#pragma unroll
    for (int b = 0; b < kKeyBlocks; ++b) {
      const float p = sycl::exp(scores[b][m] - shift);
      scores[b][m] = kCodes ? p : to_float(to_operand(p));  // what the products see
      total += scores[b][m];
    }
    state.total[m] = total;
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) state.out[d][m] *= factor;
  }
  const int there = last + 1 - block * mr::kSlabTokens;  // keys of the block, if fewer than 16
  const int first_column = state.part * kPart + lane, first_group = state.part * groups_of(kPart);
#pragma unroll
  for (int g = 0; g < groups_of(kPart); ++g) {
    if (kParts > 1 && kBits == 4 && first_group + g >= groups_of(kValueDim)) break;
    constexpr int kBlocks = kValueGroupDim / MR_LANES;
    // Blocks of a group in the order in which int4 has them in its bytes.
    const auto dim_block = [&](int i) {
      return g * kBlocks + (kBits == 4 ? i % 2 * (kBlocks / 2) + i / 2 : i);
    };
    operand p[kKeyBlocks][M];
#pragma unroll
    for (int b = 0; b < kKeyBlocks; ++b) {
      float by = 1;
      if constexpr (kCodes) {
        const bool valid = b * MR_LANES + lane < there;
        by = valid ? scale_of<kValueDim>(values, b, kBits == 4 ? first_group + g : 0, lane) *
                         kValueUnit
                   : 0.0f;
      }
#pragma unroll
      for (int m = 0; m < M; ++m) p[b][m] = to_operand(scores[b][m] * by);
    }
#if MR_XMX
    const auto a = rows_of<M>(sub_group, p);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int d = dim_block(i);
      if (d < kDimBlocks)
        multiply<M>(a, load_values(values, first_column + d * MR_LANES, lane, there), state.out[d]);
    }
#else
    // As many columns at a time as a CPU has registers for their sums.
    constexpr int kTogether = kStripes == 1 && kBlocks % 2 == 0 ? 2 : kBlocks;
#pragma unroll
    for (int first = 0; first < kBlocks; first += kTogether) {
      for (int key = 0; key < mr::kSlabTokens && key < there; ++key) {
        float weight[M];
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const float mine = to_float(p[key / MR_LANES][m]);
          weight[m] = sycl::group_broadcast(sub_group, mine, key % MR_LANES);
        }
#pragma unroll
        for (int i = first; i < first + kTogether; ++i) {
          const int d = dim_block(i);
          if (d >= kDimBlocks) continue;
          const float v = value_float(value(values, key, first_column + d * MR_LANES, lane));
#pragma unroll
          for (int m = 0; m < M; ++m) state.out[d][m] = sycl::fma(weight[m], v, state.out[d][m]);
        }
      }
    }
#endif
  }
}

// The result of a query from the states of all stripes, merged by log-sum-exp.
class Result {
 public:
  // The largest score of a stripe: all of them before begin.
  MR_INLINE void see(float most) { most_ = sycl::fmax(most_, most); }
  MR_INLINE void begin(const mr::AttentionShape& s, const float* null_scores, int head) {
    if (!s.null_scores) return;
    most_ = sycl::fmax(most_, null_scores[head]);  // of a key whose value is 0
    total_ = sycl::exp(null_scores[head] - most_);
  }
  // A stripe's largest score, its sum of exp(score - most), and its sums of values by block of columns.
  template <class Out>
  MR_INLINE void add(float most, float total, const Out& out) {
    const float factor = sycl::exp(most - most_);
    total_ = sycl::fma(factor, total, total_);
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) sums_[d] = sycl::fma(factor, out(d), sums_[d]);
  }
  MR_INLINE void write(const sycl::sub_group& sub_group, const mr::AttentionShape& s,
                       const Query& query, int part, void* out) const {
    const int lane = sub_group.get_local_linear_id(), first = part * kPart;
    const int64_t at = (query.row * s.heads + query.head) * kValueDim + first;
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) {
      const int column = d * MR_LANES;
      const float y = sums_[d] / (total_ * kValueUnit);
      if constexpr (kPart % MR_LANES == 0 && kValueDim % kPart == 0) {
        store_lanes(sub_group, out, s.out_f32, at + column, y);
      } else if (column + lane < kPart && first + column + lane < kValueDim) {
        store(out, s.out_f32, at + column + lane, y);
      }
    }
  }

 private:
  float most_ = kNone, total_ = 0, sums_[kDimBlocks] = {};
};

// The states of a task's queries in memory: rows of a float for each lane.
constexpr int kStateRows = 2 + kDimBlocks;
struct KeptStates {
  float* first;  // the first query's
  int stride;    // floats to the next one's
  int queries;

  MR_INLINE KeptStates(float* states, const mr::AttentionShape& s,
                       const mr::SequenceEntry& sequence, int first_query, int stripe) {
    const auto sub_group = this_item().get_sub_group();
    const int heads = s.heads / s.kv.kv_heads, parts = s.kv.kv_heads * kParts;
    const int part = static_cast<int>(this_item().get_group(0)) % parts;
    const int row = s.keys == mr::kSharedKeys ? sequence.first_row : sequence.states;
    const int query = uniform(sub_group, row * heads + first_query);
    first = states + ((query * parts + part) * kStripes + stripe) * kStateRows * MR_LANES;
    stride = parts * kStripes * kStateRows * MR_LANES;
    queries = uniform(sub_group, sequence.rows * heads - first_query);
  }
  template <int M>
  MR_INLINE void load(State<M>& state) const {
    const auto sub_group = this_item().get_sub_group();
#pragma unroll
    for (int m = 0; m < M; ++m) {
      if (m >= queries) continue;
      const float* from = first + m * stride;
      state.most[m] = sycl::group_broadcast(sub_group, from[0], 0);  // of all lanes
      state.total[m] = load_lanes(sub_group, from + MR_LANES);
#pragma unroll
      for (int d = 0; d < kDimBlocks; ++d) {
        state.out[d][m] = load_lanes(sub_group, from + (2 + d) * MR_LANES);
      }
    }
  }
  template <int M>
  MR_INLINE void store(const State<M>& state, int m) const {
    if (m >= queries) return;
    const auto sub_group = this_item().get_sub_group();
    float* to = first + m * stride;
    store_lanes(sub_group, to, state.most[m]);
    store_lanes(sub_group, to + MR_LANES, state.total[m]);
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) {
      store_lanes(sub_group, to + (2 + d) * MR_LANES, state.out[d][m]);
    }
  }
};

// Local memory: queries [M][kPadded], with sinks those for them likewise, then, of several
// sub-groups, per sub-group and query its state, [most, total, out[kPartPadded]].
constexpr int kStateFloats = 2 + kPartPadded;

// Where the first tokens of a KV head lie in a slab, in bytes.
struct Head {
  int64_t keys, values;
};

// A block that reaches into the responses of beams, for one row after the other:
// each sees tokens of its own. The other rows' queries see nothing meanwhile.
template <int M>
MR_INLINE void add_responses(State<M>& state, const sycl::sub_group& sub_group,
                             const QueryElement* q, const KvTables& tables,
                             const mr::SequenceEntry& sequence, const mr::AttentionShape& s,
                             int first_query, Head head, int block, int from, int last,
                             const int (&first_key)[M], const int (&position)[M],
                             const float (&slope)[M]) {
  const int lane = sub_group.get_local_linear_id();
  const int heads = s.heads / s.kv.kv_heads;
  const int end = (first_query + M - 1) / heads;
#pragma unroll 1
  for (int row = first_query / heads; row <= end && row < sequence.rows; ++row) {
    Scattered keys{head.keys, {}}, values{head.values, {}};
#pragma unroll
    for (int b = 0; b < kKeyBlocks; ++b) {
      const int key = block * mr::kSlabTokens + b * MR_LANES + lane;
      const int there = key < from ? from : key > last ? last : key;  // others may not be mapped
      keys.place[b] = values.place[b] = kv_token(kKeyBytes, tables, sequence, row, there);
      if constexpr (kValueBytes != kKeyBytes) {
        values.place[b] = kv_token(kValueBytes, tables, sequence, row, there);
      }
    }
    int seen[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      seen[m] = (first_query + m) / heads == row ? position[m] : -1;
    }
    add_block<M>(state, sub_group, q, keys, values, block, last, first_key, seen, slope, s);
  }
}

// A block of the sequence, of which some query sees keys [from, last].
template <int M, bool kBeams>
MR_INLINE void add_keys(State<M>& state, const sycl::sub_group& sub_group, const QueryElement* q,
                        const KvTables& tables, const mr::SequenceEntry& sequence,
                        const mr::AttentionShape& s, int first_query, Head head, int block,
                        int from, int last, const int (&first_key)[M], const int (&position)[M],
                        const float (&slope)[M]) {
  if constexpr (kBeams) {
    if ((block + 1) * mr::kSlabTokens > sequence.prompt) {
      return add_responses<M>(state, sub_group, q, tables, sequence, s, first_query, head, block,
                              from, last, first_key, position, slope);
    }
  }
  const uint8_t* slab = kv_slab(tables, sequence, block);
  add_block<M>(state, sub_group, q, Slab<kKeyBytes>{slab + head.keys},
               Slab<kValueBytes>{slab + head.values}, block, last, first_key, position, slope, s);
}

template <int M, bool kBeams>
MR_INLINE void run(const float* qkv, const float* sink_queries, const mr::SequenceEntry* sequences,
                   const mr::AttentionTask* tasks, const KvTables& tables, const float* slopes,
                   const float* null_scores, void* out, float* states, float* local,
                   const mr::AttentionShape& s) {
  constexpr bool kGroups = !kBeams && !kSinks && !kChunked;
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto group = item.get_group();
  const auto sub_group = item.get_sub_group();
  const int lane = sub_group.get_local_linear_id();
  const size_t head_task = item.get_group(0) / kParts;
  const mr::AttentionTask task = tasks[head_task / s.kv.kv_heads];
  const int kv_head = head_task % s.kv.kv_heads;
  const mr::SequenceEntry sequence = sequences[task.sequence];

  QueryElement* q = reinterpret_cast<QueryElement*>(local);
  QueryElement* sink_q = q + M * kPadded;
  int first_key[M], position[M];
  float slope[M];
  int from = std::numeric_limits<int>::max(), last = 0;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const Query query = mr_attention::query<kGroups>(s, tables, sequence, kv_head, task.first + m);
    first_key[m] = query.first_key;
    position[m] = query.there ? query.position : -1;  // sees no key
    slope[m] = s.alibi && query.there ? slopes[query.head] : 0.0f;
    if (query.there && query.first_key < from) from = query.first_key;
    if (query.there && query.position > last) last = query.position;
    const float* row = qkv + query.row * s.in_width + int64_t{query.head} * kDim;
    const float* sink_row = sink_queries + (query.row * s.heads + query.head) * kDim;
#if MR_STRIPES > 1
    for (int i = item.get_local_id(0); i < kPadded; i += item.get_local_range(0)) {
      const bool inside = query.there && i < kDim;
      q[m * kPadded + i] = inside ? to_operand(row[i]) : 0;
      if (kSinks && s.sinks > 0) sink_q[m * kPadded + i] = inside ? to_operand(sink_row[i]) : 0;
    }
#else
    put_query(q + m * kPadded, row, sub_group);
    if (kSinks && s.sinks > 0) put_query(sink_q + m * kPadded, sink_row, sub_group);
#endif
  }
  sycl::group_barrier(group);
  const int stripe = sub_group_index(item);
  const int shared = kGroups ? uniform(sub_group, sequence.shared) : 0;
  const bool leaves = kGroups && s.keys == mr::kSharedKeys;
  const bool resumes = kGroups && s.keys == mr::kOwnKeys && shared > 0;
  from = uniform(sub_group, resumes ? shared : from);
  last = uniform(sub_group, leaves ? shared - 1 : last);

  State<M> state;
  state.part = item.get_group(0) % kParts;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    state.most[m] = kNone;
    state.total[m] = 0;
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) state.out[d][m] = 0;
  }
  if (resumes) KeptStates(states, s, sequence, task.first, stripe).load(state);
  const Head head{s.kv.keys + int64_t{kv_head} * mr::kSlabTokens * kKeyBytes,
                  s.kv.values + int64_t{kv_head} * mr::kSlabTokens * kValueBytes};
  if (kSinks && s.sinks > 0) {
    if (stripe == 0) {
      int zero[M], seen[M];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        zero[m] = 0;
        seen[m] = position[m] < s.sinks ? position[m] : s.sinks - 1;
      }
      const int last_sink = last < s.sinks ? last : s.sinks - 1;
      add_keys<M, kBeams>(state, sub_group, sink_q, tables, sequence, s, task.first, head, 0, 0,
                          last_sink, zero, seen, slope);
    }
    if (from > last) from = last;  // no query sees more than sinks
  }
  const int first_block = from / mr::kSlabTokens, last_block = last / mr::kSlabTokens;
  const int begin = first_block + (stripe + kStripes - first_block % kStripes) % kStripes;
  for (int block = begin; block <= last_block; block += kStripes) {
    add_keys<M, kBeams>(state, sub_group, q, tables, sequence, s, task.first, head, block, from,
                        last, first_key, position, slope);
  }
  // States are stored where results are computed from them: a loop of its own costs a CPU's kernel a sixth of its time.
  const KeptStates kept(states, s, sequence, task.first, stripe);
#if MR_STRIPES > 1
  float* stripes = local + (kSinks ? 2 : 1) * M * kPadded / 2;
  float* mine = stripes + int64_t{stripe} * M * kStateFloats;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    if (leaves) {
      kept.store(state, m);
      continue;
    }
    const float total = sycl::reduce_over_group(sub_group, state.total[m], sycl::plus<float>());
    if (lane == 0) {
      mine[m * kStateFloats] = state.most[m];
      mine[m * kStateFloats + 1] = total;
    }
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) {
      mine[m * kStateFloats + 2 + d * MR_LANES + lane] = state.out[d][m];
    }
  }
  if (leaves) return;
  sycl::group_barrier(group);
  for (int m = sub_group_index(item); m < M; m += kStripes) {
    const Query query = mr_attention::query<kGroups>(s, tables, sequence, kv_head, task.first + m);
    if (!query.there) continue;
    Result result;
    for (int i = 0; i < kStripes; ++i) result.see(stripes[(i * M + m) * kStateFloats]);
    result.begin(s, null_scores, query.head);
    for (int i = 0; i < kStripes; ++i) {
      const float* other = stripes + (i * M + m) * kStateFloats;
      result.add(other[0], other[1], [&](int d) { return other[2 + d * MR_LANES + lane]; });
    }
    result.write(sub_group, s, query, state.part, out);
  }
#else
#pragma unroll
  for (int m = 0; m < M; ++m) {
    if (leaves) {
      kept.store(state, m);
      continue;
    }
    const Query query = mr_attention::query<kGroups>(s, tables, sequence, kv_head, task.first + m);
    const float total = sycl::reduce_over_group(sub_group, state.total[m], sycl::plus<float>());
    if (!query.there) continue;
    Result result;
    result.see(state.most[m]);
    result.begin(s, null_scores, query.head);
    result.add(state.most[m], total, [&](int d) { return state.out[d][m]; });
    result.write(sub_group, s, query, state.part, out);
  }
#endif
}

}  // namespace mr_attention

#define MR_ATTENTION(name, M, kBeams)                                                          \
  MR_KERNEL name(const float* qkv, const float* sink_q, const mr::SequenceEntry* sequences,    \
                 const mr::AttentionTask* tasks, const uint64_t* slabs, const int32_t* beams,  \
                 const float* slopes, const float* null_scores, void* out, float* states,      \
                 sycl::local_accessor<float, 1> local, mr::AttentionShape s) {                 \
    mr_attention::run<M, kBeams>(qkv, sink_q, sequences, tasks, {slabs, beams}, slopes,        \
                                 null_scores, out, states,                                     \
                                 local.get_multi_ptr<sycl::access::decorated::no>().get(), s); \
  }

MR_ATTENTION(mr_attention_1, 1, false)
#if MR_QUERIES >= 2
MR_ATTENTION(mr_attention_2, 2, false)
#endif
#if MR_QUERIES >= 4
MR_ATTENTION(mr_attention_4, 4, false)
#endif
#if MR_QUERIES >= 8
MR_ATTENTION(mr_attention_8, 8, false)
#endif
MR_ATTENTION(mr_attention_beams, mr::beam_queries(MR_QUERIES), true)
