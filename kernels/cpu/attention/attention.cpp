// How a step's attention is divided into tasks. The arithmetic does not depend
// on it: see cpu/ops/kernels.hpp and cpu/attention/tile.hpp.
#include "cpu/attention/attention.hpp"

#include <algorithm>

namespace millrace::cpu {
namespace {

// With fewer tiles per thread than this, long contexts are divided into pieces.
constexpr int kTilesPerThread = 4;
// Memory for the states of such pieces; where it ends, tiles stay whole.
constexpr size_t kMostStateBytes = size_t{64} << 20;

int max_group(const Program& p) {
  int group = 1;
  for (const Op& op : p.ops) {
    if (op.kind == MR_OP_ATTENTION) group = std::max(group, op.heads / op.kv_heads);
  }
  return group;
}

BeamRows beam_rows(const Context& c, const Op& op, const Beams& beams, int row, int kv_head) {
  return {beams.kv.data(),
          beams.index.data() + int64_t{row} * beams.steps,
          beams.steps,
          beams.prompt,
          beams.prompt + beams.common,
          c.kv.block(op.layer, 0, kv_head),
          c.kv.block(op.layer, 1, kv_head)};
}

}  // namespace

Attention::Attention(const Context& c)
    : scratch_bytes_(c.attention.scratch_bytes(c.kv.head_dim)),
      state_floats_(c.attention.state_floats(c.kv.head_dim, tile_queries(c.kv.head_dim))),
      threads_((scratch_bytes_ + 2 * sizeof(float) * state_floats_) * c.pool.size()) {
  const size_t pieces = (c.program.max_positions - 1) / kPieceTokens + 1;
  if (pieces == 1 || c.pool.size() == 1) return;
  // A decode row's tile has the heads of one KV head.
  const int queries = std::min(max_group(c.program), tile_queries(c.kv.head_dim));
  const size_t tile = pieces * c.attention.state_floats(c.kv.head_dim, queries) * sizeof(float);
  states_ = Buffer(std::min(kMostStateBytes, tile * kTilesPerThread * c.pool.size()));
}

void Attention::run(const Context& c, const Op& op, const Batch& batch, Slot in, Slot out) {
  plan_tiles(c, op, batch, in, out);
  plan_tasks(c);
  c.pool.parallel_for(static_cast<int>(tasks_.size()), [&](int i, int thread) {
    const Task& task = tasks_[i];
    const Tile& tile = tiles_[task.tile];
    c.attention.prepare(tile.arguments, scratch(thread));
    if (task.piece < 0) return run_tile(c, tile, thread, out);
    c.attention.piece(tile.arguments, task.piece, scratch(thread), task.state);
  });
  c.pool.parallel_for(static_cast<int>(splits_.size()),
                      [&](int i, int) { merge_split(c, splits_[i], out); });
}

void Attention::plan_tiles(const Context& c, const Op& op, const Batch& batch, Slot in, Slot out) {
  tiles_.clear();
  const int d = op.head_dim, group = op.heads / op.kv_heads, most = tile_queries(d);
  const int tile_rows = std::max(1, most / group);
  for (const Sequence& s : batch.sequences) {
    for (int i = 0; i < s.rows; i += tile_rows) {
      const int64_t row = s.first_row + i;
      for (int h = 0; h < op.heads;) {
        const int kv_head = h / group;
        const int heads = std::min(most, (kv_head + 1) * group - h);
        Tile& tile = tiles_.emplace_back();
        AttentionTile& t = tile.arguments;
        t.q = in.f32() + row * in.width + int64_t{h} * d;
        t.q_stride = in.width;
        t.rows = std::min(tile_rows, s.rows - i);
        t.heads = heads;
        t.head_dim = d;
        t.position = s.row_position(i);
        t.window = op.window;
        t.scale = op.scale;
        t.slopes = op.alibi_slopes != nullptr ? op.alibi_slopes + h : nullptr;
        t.keys = s.kv + c.kv.block(op.layer, 0, kv_head);
        t.values = s.kv + c.kv.block(op.layer, 1, kv_head);
        t.slab_bytes = c.kv.slab_bytes;
        if (s.beams != nullptr) t.beams = beam_rows(c, op, *s.beams, i, kv_head);
        tile.out = row * out.width + int64_t{h} * d;
        h += heads;
      }
    }
  }
}

void Attention::plan_tasks(const Context& c) {
  tasks_.clear();
  splits_.clear();
  const int tiles = static_cast<int>(tiles_.size());
  for (int i = 0; i + 1 < tiles; ++i) {
    AttentionTile& t = tiles_[i].arguments;
    const AttentionTile& next = tiles_[i + 1].arguments;
    const int first = next.first_visible(next.position) / MR_SLAB_TOKENS;
    t.next = next.keys - t.keys + first * next.slab_bytes;
    t.next_slabs = next.slabs_in_place() - first;
  }
  const bool divide = tiles < kTilesPerThread * c.pool.size();
  float* states = static_cast<float*>(states_.data());
  float* const end = states + states_.size() / sizeof(float);
  for (int i = 0; i < tiles; ++i) {
    const AttentionTile& t = tiles_[i].arguments;
    const int first = t.first_piece(), pieces = t.end_piece() - first;
    const auto floats = static_cast<int64_t>(c.attention.state_floats(t.head_dim, t.queries()));
    if (!divide || pieces == 1 || pieces * floats > end - states) {
      tasks_.push_back({i, -1, nullptr});
      continue;
    }
    splits_.push_back({i, states});
    for (int p = 0; p < pieces; ++p, states += floats) tasks_.push_back({i, first + p, states});
  }
}

void* Attention::scratch(int thread) const {
  const size_t bytes = scratch_bytes_ + 2 * sizeof(float) * state_floats_;
  return static_cast<std::byte*>(threads_.data()) + bytes * thread;
}

void Attention::run_tile(const Context& c, const Tile& tile, int thread, Slot out) const {
  const AttentionTile& t = tile.arguments;
  void* memory = scratch(thread);
  auto* total = reinterpret_cast<float*>(static_cast<std::byte*>(memory) + scratch_bytes_);
  float* piece = total + state_floats_;
  c.attention.piece(t, t.first_piece(), memory, total);
  for (int p = t.first_piece() + 1; p < t.end_piece(); ++p) {
    c.attention.piece(t, p, memory, piece);
    c.attention.merge(t, piece, total);
  }
  finish(c, tile, total, out);
}

void Attention::merge_split(const Context& c, const Split& split, Slot out) const {
  const Tile& tile = tiles_[split.tile];
  const AttentionTile& t = tile.arguments;
  const size_t floats = c.attention.state_floats(t.head_dim, t.queries());
  for (int p = 1; p < t.end_piece() - t.first_piece(); ++p) {
    c.attention.merge(t, split.states + p * floats, split.states);
  }
  finish(c, tile, split.states, out);
}

void Attention::finish(const Context& c, const Tile& tile, const float* state, Slot out) const {
  const bool f32 = out.type == MR_SLOT_F32;
  void* to = static_cast<std::byte*>(out.data) + tile.out * (f32 ? sizeof(float) : sizeof(bf16));
  c.attention.finish(tile.arguments, state, out.width, f32, to);
}

}  // namespace millrace::cpu
