// How a step's attention is divided into tasks. The arithmetic does not depend
// on it: see cpu/ops/kernels.hpp and cpu/attention/tile.hpp.
#include "cpu/attention/attention.hpp"

#include <algorithm>

namespace millrace::cpu {
namespace {

// Task::piece of a whole tile, and of Tile::apart.
constexpr int kAll = -1, kApart = -2;

// With fewer tiles per thread than this, long contexts are divided into pieces.
constexpr int kTilesPerThread = 4;
// Memory for states; where it ends, tiles stay whole, and sequences read shared tokens each.
constexpr size_t kMostStateBytes = size_t{64} << 20;

// A shared tile costs two more states for each of its queries, and saves a read of the keys for
// each KV head. So a prefix has to have this many tokens for each query head of a KV head (measured).
constexpr int kSharedTokensPerHead = 128;

static_assert(kSharedBlock % kBlockTokens == 0);

int divide_up(int a, int b) { return (a + b - 1) / b; }

HeadShape head_shape(const Op& op) {
  return {op.attention.head_dim, op.attention.value_dim, op.attention.latent != 0};
}

int query_group(const Op& op) { return op.attention.heads / op.attention.kv_heads; }

int tile_rows(const Op& op) { return std::max(1, tile_queries(head_shape(op)) / query_group(op)); }

BeamRows beam_rows(const Context& c, const Op& op, const Beams& beams, int row, int kv_head) {
  return {beams.kv.data(),
          beams.index.data() + int64_t{row} * beams.steps,
          beams.steps,
          beams.prompt,
          beams.prompt + beams.common,
          c.kv.block(op.place, 0, kv_head),
          c.kv.block(op.place, 1, kv_head)};
}

// A tile over the keys of a sequence, without its rows.
AttentionTile tile_of(const Context& c, const Op& op, const Sequence& s, Slot in, int first_head,
                      int heads, int kv_head) {
  AttentionTile t{};
  t.q = in.f32() + int64_t{first_head} * op.attention.head_dim;
  t.q_stride = in.width;
  t.heads = heads;
  t.head = head_shape(op);
  t.window = op.attention.window;
  t.chunked = op.attention.chunked != 0;
  t.both_ways = op.attention.both_ways != 0;
  t.softcap = op.attention.softcap;
  t.scale = op.attention.scale;
  t.slopes =
      op.attention.alibi_slopes != nullptr ? op.attention.alibi_slopes + first_head : nullptr;
  t.null_scores = op.null_values != nullptr ? op.null_values + first_head : nullptr;
  t.keys = s.kv + c.kv.block(op.place, 0, kv_head);
  t.values = s.kv + c.kv.block(op.place, 1, kv_head);
  t.slab_bytes = c.kv.slab_bytes;
  return t;
}

// Each tile prefetches the beginning of the next one.
template <class Tiles>
void link(Tiles& tiles) {
  for (size_t i = 0; i + 1 < tiles.size(); ++i) {
    AttentionTile& t = tiles[i].arguments;
    const AttentionTile& next = tiles[i + 1].arguments;
    const int first = next.begin / kSlabTokens;
    t.next = next.keys - t.keys + first * next.slab_bytes;
    t.next_slabs = next.slabs_in_place() - first;
  }
}

}  // namespace

TileRoom::TileRoom(const Context& c) {
  for (const Op& op : c.program.ops) {
    if (op.kind != MR_OP_ATTENTION) continue;
    const HeadShape head = head_shape(op);
    scratch_bytes = std::max(scratch_bytes, c.attention.scratch_bytes(head));
    state_floats = std::max(state_floats, c.attention.state_floats(head.value, tile_queries(head)));
  }
}

Attention::Attention(const Context& c) : room_(c), threads_(room_.bytes() * c.pool.size()) {
  const Program& p = c.program;
  int queries = kMaxTileQueries, heads = 1, group = 1;
  for (const Op& op : p.ops) {
    if (op.kind != MR_OP_ATTENTION) continue;
    queries = std::min(queries, tile_queries(head_shape(op)));
    heads = std::max(heads, op.attention.heads);
    group = std::max(group, query_group(op));
  }
  most_shared_rows_ = queries / group / 2;
  least_shared_tokens_ = kSharedTokensPerHead * group;
  // The pieces of all keys that the rows of a tile see.
  const int lookback = *std::max_element(p.lookback.begin(), p.lookback.end());
  const size_t pieces =
      std::min((p.max_positions - 1) / kPieceTokens + 1, (lookback + queries) / kPieceTokens + 2);
  // Two for each query that shares keys, and those of tiles that are divided.
  size_t states = 2 * (int64_t{p.max_outputs} * heads / queries + 1);
  if (pieces > 1 && c.pool.size() > 1) states += pieces * kTilesPerThread * c.pool.size();
  if (p.kept() > 0) states = 0;  // H2oAttention runs
  states_ = Buffer(std::min(kMostStateBytes, states * room_.state_floats * sizeof(float)));
}

void Attention::begin(const Batch& batch) {
  cascade_.find(batch, most_shared_rows_, least_shared_tokens_);
}

void Attention::run(const Context& c, const Op& op, const Batch& batch, Slot in, Slot sink_q,
                    Slot out) {
  taken_ = 0;
  plan_heads(op);
  plan_shared(c, op, batch, in);
  plan_tiles(c, op, batch, in, sink_q, out);
  plan_tasks(c);
  c.pool.parallel_for(static_cast<int>(shared_tasks_.size()), [&](int i, int thread) {
    const Task& task = shared_tasks_[i];
    const SharedTile& tile = shared_[task.tile];
    c.attention.prepare(tile.arguments, scratch(thread));
    if (task.piece == kAll) return run_shared(c, tile, thread);
    c.attention.piece(tile.arguments, task.piece, scratch(thread), task.state);
  });
  c.pool.parallel_for(static_cast<int>(tasks_.size()), [&](int i, int thread) {
    const Task& task = tasks_[i];
    const Tile& tile = tiles_[task.tile];
    if (task.piece == kAll) return run_tile(c, tile, thread, out);
    if (task.piece == kApart) return run_apart(c, tile, thread, task.state);
    c.attention.prepare(tile.arguments, scratch(thread));
    c.attention.piece(tile.arguments, task.piece, scratch(thread), task.state);
  });
  c.pool.parallel_for(static_cast<int>(splits_.size()),
                      [&](int i, int) { merge_split(c, tiles_[splits_[i]], out); });
  if (c.kv.type == MR_KV_KIVI) KiviStore::keep(c, op, batch, in);
}

void Attention::plan_heads(const Op& op) {
  heads_.clear();
  const int group = query_group(op), most = tile_queries(head_shape(op));
  for (int h = 0; h < op.attention.heads; h += heads_.back().count) {
    const int kv_head = h / group;
    heads_.push_back({h, std::min(most, (kv_head + 1) * group - h), kv_head});
  }
}

// Divides each group of sequences into shared tiles: as few as their rows need, because each reads
// the keys, but enough to occupy the threads.
void Attention::plan_shared(const Context& c, const Op& op, const Batch& batch, Slot in) {
  shared_.clear();
  shared_tasks_.clear();
  places_.assign(batch.sequences.size(), {});
  if (c.kv.type == MR_KV_KIVI) return;  // rows see different parts of a prefix as codes
  const int threads = c.pool.size(), heads = static_cast<int>(heads_.size());
  for (const Cascade::Group& g : cascade_.groups()) {
    // The rows of a window see different parts of the prefix, and sinks are few keys.
    if (op.attention.sinks > 0 ||
        (op.attention.window > 0 && g.last_position >= op.attention.window))
      continue;
    const int members = g.end - g.begin, pieces = divide_up(g.tokens, kPieceTokens);
    const int parts = std::max(divide_up(members, tile_rows(op) / g.most_rows),
                               std::min(members / 2, divide_up(threads, heads * pieces)));
    const bool divide = threads > 1 && heads * parts < kTilesPerThread * threads;
    for (int i = 0; i < parts; ++i) {
      const int begin = g.begin + members * i / parts, end = g.begin + members * (i + 1) / parts;
      if (end - begin > 1) add_shared(c, op, batch, in, g, begin, end, divide);
    }
  }
  link(shared_);
}

// Members [begin, end) of the group, if there is memory for their states.
void Attention::add_shared(const Context& c, const Op& op, const Batch& batch, Slot in,
                           const Cascade::Group& g, int begin, int end, bool divide) {
  const Cascade::Member *first = &cascade_.members()[begin], *last = first + (end - 1 - begin);
  const StepRow* rows = &cascade_.step_rows()[first->first];
  const int pieces = divide_up(g.tokens, kPieceTokens),
            first_tile = static_cast<int>(shared_.size());
  const int merged = (g.tokens >= kPieceTokens) + (g.tokens % kPieceTokens > 0);
  const size_t tasks_before = shared_tasks_.size(), taken_before = taken_;
  for (const Heads& h : heads_) {
    const int tile = static_cast<int>(shared_.size());
    SharedTile& shared = shared_.emplace_back();
    AttentionTile& t = shared.arguments;
    t = tile_of(c, op, batch.sequences[first->sequence], in, h.first, h.count, h.kv_head);
    t.step_rows = rows;
    t.rows = last->first + last->rows - first->first;
    t.end = g.tokens;
    if (divide && take(c, t, pieces, shared.states)) {
      for (int p = 0; p < pieces; ++p) shared_tasks_.push_back({tile, p, shared.states[p]});
    } else if (take(c, t, merged, shared.states)) {
      shared_tasks_.push_back({tile, kAll, {}});
    } else {
      shared_.resize(first_tile);
      shared_tasks_.resize(tasks_before);
      taken_ = taken_before;
      return;
    }
  }
  for (const Cascade::Member* m = first; m <= last; ++m) {
    places_[m->sequence] = {first_tile, m->first - first->first};
  }
}

void Attention::plan_tiles(const Context& c, const Op& op, const Batch& batch, Slot in, Slot sink_q,
                           Slot out) {
  tiles_.clear();
  const int most_rows = tile_rows(op);
  for (size_t k = 0; k < batch.sequences.size(); ++k) {
    const Sequence& s = batch.sequences[k];
    for (int i = 0; i < s.rows; i += most_rows) {
      const int64_t row = s.first_row + i;
      for (size_t j = 0; j < heads_.size(); ++j) {
        const Heads& h = heads_[j];
        Tile& tile = tiles_.emplace_back();
        AttentionTile& t = tile.arguments;
        t = tile_of(c, op, s, in, h.first, h.count, h.kv_head);
        t.q += row * in.width;
        t.rows = std::min(most_rows, s.rows - i);
        t.position = s.row_position(i);
        t.begin = t.first_visible(t.position);
        t.end = op.last_seen(s.row_position(i + t.rows - 1), s.position + s.rows) + 1;
        if (s.beams != nullptr) t.beams = beam_rows(c, op, *s.beams, i, h.kv_head);
        tile.out = row * out.width + int64_t{h.first} * op.attention.value_dim;
        if (op.attention.sinks > 0) {
          tile.apart = t;
          tile.apart.q =
              sink_q.f32() + row * sink_q.width + int64_t{h.first} * op.attention.head_dim;
          tile.apart.q_stride = sink_q.width;
          tile.apart.window = tile.apart.begin = 0;
          tile.apart.end = std::min(t.end, op.attention.sinks);
          t.begin = std::max(t.begin, op.attention.sinks);
        }
        if (c.kv.type == MR_KV_KIVI) split_recent(c, op, s, in, h.kv_head, tile);
        if (places_[k].tile < 0) continue;
        const SharedTile& shared = shared_[places_[k].tile + j];
        t.begin = shared.arguments.end;
        t.resumes = t.begin % kPieceTokens > 0;
        tile.shared = shared.states;
        tile.shared.first = places_[k].row * h.count;
      }
    }
  }
  link(tiles_);
}

// Splits the keys of a tile into those that some row sees as codes, and those that some row sees as
// bf16.
void Attention::split_recent(const Context& c, const Op& op, const Sequence& s, Slot in,
                             int kv_head, Tile& tile) {
  AttentionTile &codes = tile.arguments, &recent = tile.apart;
  recent = codes;
  recent.recent = Recent::only;
  recent.begin = kivi_exact(recent.position);
  recent.step_position = s.position;
  recent.step_keys = in.f32() + int64_t{s.first_row} * in.width +
                     (op.attention.heads + kv_head) * op.attention.head_dim;
  recent.step_values = recent.step_keys + int64_t{op.attention.kv_heads} * op.attention.head_dim;
  recent.recent_keys = s.head + c.kv.block(op.place, 0, kv_head);
  recent.recent_values = s.head + c.kv.block(op.place, 1, kv_head);
  codes.recent = Recent::without;
  codes.end = kivi_exact(codes.end - 1);
}

void Attention::plan_tasks(const Context& c) {
  tasks_.clear();
  splits_.clear();
  const int tiles = static_cast<int>(tiles_.size()), threads = c.pool.size();
  const bool divide = threads > 1 && tiles < kTilesPerThread * threads;
  for (int i = 0; i < tiles; ++i) {
    Tile& tile = tiles_[i];
    const AttentionTile& t = tile.arguments;
    const bool apart = tile.apart.end > 0;
    const int first = t.first_piece(), pieces = t.end_piece() - first;
    if (!divide || pieces == 1 || !take(c, t, apart + pieces - t.resumes, tile.own)) {
      tasks_.push_back({i, kAll, {}});
      continue;
    }
    splits_.push_back(i);
    if (apart) tasks_.push_back({i, kApart, tile.own[0]});
    if (t.resumes) tasks_.push_back({i, first, tile.shared[tile.shared.n - 1]});
    for (int p = 0; p < tile.own.n - apart; ++p) {
      tasks_.push_back({i, first + t.resumes + p, tile.own[apart + p]});
    }
  }
}

// Takes memory for n states of the tile's queries; false: there is not enough.
bool Attention::take(const Context& c, const AttentionTile& t, int n, States& states) {
  const int queries = t.queries();
  const size_t floats = c.attention.state_floats(t.head.value, queries);
  if (taken_ + n * floats > states_.size() / sizeof(float)) return false;
  states = {static_cast<float*>(states_.data()) + taken_, floats, n, queries, 0};
  taken_ += n * floats;
  return true;
}

void* Attention::scratch(int thread) const {
  return static_cast<std::byte*>(threads_.data()) + room_.bytes() * thread;
}

// The two states of a thread.
Attention::States Attention::thread_states(int thread, int queries) const {
  auto* memory = static_cast<std::byte*>(scratch(thread)) + room_.scratch_bytes;
  return {reinterpret_cast<float*>(memory), room_.state_floats, 2, queries, 0};
}

// All pieces: the whole ones are merged into the first state, what follows them is the last one.
void Attention::run_shared(const Context& c, const SharedTile& tile, int thread) const {
  const AttentionTile& t = tile.arguments;
  const States& to = tile.states;
  const int whole = t.end / kPieceTokens;
  for (int p = 0; p < t.end_piece(); ++p) {
    const bool added = p > 0 && p < whole;
    const AttentionState state =
        added ? thread_states(thread, t.queries())[1] : to[p == 0 ? 0 : to.n - 1];
    c.attention.piece(t, p, scratch(thread), state);
    if (added) c.attention.merge(t, state, to[0]);
  }
}

void Attention::run_tile(const Context& c, const Tile& tile, int thread, Slot out) const {
  const AttentionTile& t = tile.arguments;
  const States own = thread_states(thread, t.queries()), &shared = tile.shared;
  const AttentionState total = shared.n > 0 ? shared[0] : own[0];
  const bool apart = tile.apart.end > 0;
  if (apart) run_apart(c, tile, thread, total);
  c.attention.prepare(t, scratch(thread));
  int p = t.first_piece();
  if (t.resumes) c.attention.piece(t, p++, scratch(thread), shared[shared.n - 1]);
  if (shared.n == 0 && !apart) c.attention.piece(t, p++, scratch(thread), total);
  merge(c, t, shared, 1, total);
  for (; p < t.end_piece(); ++p) {
    c.attention.piece(t, p, scratch(thread), own[1]);
    c.attention.merge(t, own[1], total);
  }
  finish(c, tile, total, out);
}

void Attention::run_apart(const Context& c, const Tile& tile, int thread,
                          const AttentionState& to) const {
  const AttentionTile& t = tile.apart;
  c.attention.prepare(t, scratch(thread));
  for (int p = t.first_piece(); p < t.end_piece(); ++p) {
    const bool added = p > t.first_piece();
    const AttentionState state = added ? thread_states(thread, t.queries())[1] : to;
    c.attention.piece(t, p, scratch(thread), state);
    if (added) c.attention.merge(t, state, to);
  }
}

void Attention::merge_split(const Context& c, const Tile& tile, Slot out) const {
  const bool shares = tile.shared.n > 0;
  const AttentionState total = shares ? tile.shared[0] : tile.own[0];
  merge(c, tile.arguments, tile.shared, 1, total);
  merge(c, tile.arguments, tile.own, shares ? 0 : 1, total);
  finish(c, tile, total, out);
}

// Merges states from the first on, in order.
void Attention::merge(const Context& c, const AttentionTile& t, const States& states, int first,
                      const AttentionState& total) const {
  for (int i = first; i < states.n; ++i) c.attention.merge(t, states[i], total);
}

void Attention::finish(const Context& c, const Tile& tile, const AttentionState& state,
                       Slot out) const {
  const bool f32 = out.type == MR_SLOT_F32;
  void* to = static_cast<std::byte*>(out.data) + tile.out * (f32 ? sizeof(float) : sizeof(bf16));
  c.attention.finish(tile.arguments, state, out.width, f32, to);
}

}  // namespace millrace::cpu
