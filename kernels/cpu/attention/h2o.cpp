#include "cpu/attention/h2o.hpp"

#include <algorithm>
#include <cstring>

namespace millrace::cpu {

struct H2oAttention::Task {
  const Op& op;
  const Sequence& sequence;
  int kv_head;
  H2oHead head;
  Slot in, out;

  // A row's key (value = 0) or value.
  const float* row(int i, int value) const {
    return in.f32() + int64_t{sequence.first_row + i} * in.width +
           (op.attention.heads + value * op.attention.kv_heads + kv_head) * op.attention.head_dim;
  }
};

namespace {

// The elements of a place's key, a pair each, and of its value (cpu/ops/kernels.hpp).
struct Place {
  uint32_t* key;  // kSlabTokens apart
  bf16* value;    // two apart

  Place(const H2oHead& head, int d, int place) {
    const size_t slab = head.slab_bytes * (place / kSlabTokens);
    const int token = place % kSlabTokens;
    key = reinterpret_cast<uint32_t*>(head.keys + slab) + token;
    value = reinterpret_cast<bf16*>(head.values + slab) + token / 2 * 2 * d + token % 2;
  }
};

void store(const Context& c, const H2oHead& head, int d, int place, const float* key,
           const float* value) {
  const Place to(head, d, place);
  bf16 rounded[kMaxHeadDim];
  c.kernels.to_bf16(key, d, rounded);
  for (int i = 0; i < d / 2; ++i) {
    std::memcpy(to.key + i * kSlabTokens, rounded + 2 * i, 2 * sizeof(bf16));
  }
  c.kernels.to_bf16(value, d, rounded);
  for (int i = 0; i < d; ++i) to.value[2 * i] = rounded[i];
  head.sum(place) = 0;
}

void move(const H2oHead& head, int d, int from_place, int to_place) {
  const Place from(head, d, from_place), to(head, d, to_place);
  for (int i = 0; i < d / 2; ++i) to.key[i * kSlabTokens] = from.key[i * kSlabTokens];
  for (int i = 0; i < d; ++i) to.value[2 * i] = from.value[2 * i];
}

}  // namespace

H2oAttention::H2oAttention(const Context& c)
    : room_(c), threads_(c.program.kept() == 0 ? 0 : room_.bytes() * c.pool.size()) {}

void H2oAttention::run(const Context& c, const Op& op, const Batch& batch, Slot in,
                       Slot out) const {
  check_h2o(c.kv, batch, op.place);
  const int n = static_cast<int>(batch.sequences.size());
  c.pool.parallel_for(n * op.attention.kv_heads, [&](int i, int thread) {
    const Sequence& s = batch.sequences[i / op.attention.kv_heads];
    const int kv_head = i % op.attention.kv_heads, d = op.attention.head_dim;
    const Task task{op, s, kv_head, H2oHead(c.kv, s, op.place, kv_head), in, out};
    for (int row = 0; row < s.rows;) {
      const int end = std::min(s.rows, h2o_end(s.position + row) - s.position);
      rows(c, task, row, end, thread);
      h2o_evict(c.program, task.head, s.position + end,
                [&](int from, int to) { move(task.head, d, from, to); });
      row = end;
    }
    task.head.tokens() = s.position + s.rows;
  });
}

// Rows that see the same kept tokens. Tiles are in order of rows, and then of heads, as their
// queries are: so are the sums.
void H2oAttention::rows(const Context& c, const Task& task, int begin, int end, int thread) const {
  const Op& op = task.op;
  const Sequence& s = task.sequence;
  const int d = op.attention.head_dim, group = op.attention.heads / op.attention.kv_heads,
            most = tile_queries({d, d});
  const int first_place = c.program.place(s.position + begin),
            most_rows = std::max(1, most / group);
  for (int i = begin; i < end; ++i) {
    store(c, task.head, d, first_place + i - begin, task.row(i, 0), task.row(i, 1));
  }
  for (int i = begin; i < end; i += most_rows) {
    for (int h = 0; h < group; h += most) {
      const int64_t row = s.first_row + i, first_head = task.kv_head * group + h;
      AttentionTile t{};
      t.q = task.in.f32() + row * task.in.width + first_head * d;
      t.q_stride = task.in.width;
      t.rows = std::min(most_rows, end - i);
      t.heads = std::min(most, group - h);
      t.head = {d, d};
      t.position = first_place + i - begin;
      t.end = t.position + t.rows;
      t.scale = op.attention.scale;
      t.keys = task.head.keys;
      t.values = task.head.values;
      t.slab_bytes = c.kv.slab_bytes;
      tile(c, t, task.head.sums(), thread, task.out, row * task.out.width + first_head * d);
    }
  }
}

// sums: bytes from a block of keys to those of its places. at: element of the out slot.
void H2oAttention::tile(const Context& c, const AttentionTile& t, size_t sums, int thread,
                        const Slot& out, int64_t at) const {
  auto* const scratch = static_cast<std::byte*>(threads_.data()) + room_.bytes() * thread;
  auto* const states = reinterpret_cast<float*>(scratch + room_.scratch_bytes);
  const AttentionState total{states, t.queries(), 0},
      piece{states + room_.state_floats, t.queries(), 0};
  c.attention.prepare(t, scratch);
  c.attention.piece(t, 0, scratch, total);
  for (int p = 1; p < t.end_piece(); ++p) {
    c.attention.piece(t, p, scratch, piece);
    c.attention.merge(t, piece, total);
  }
  c.kernels.add_shares(t, scratch, total, sums);
  const bool f32 = out.type == MR_SLOT_F32;
  void* to = static_cast<std::byte*>(out.data) + at * (f32 ? sizeof(float) : sizeof(bf16));
  c.attention.finish(t, total, out.width, f32, to);
}

}  // namespace millrace::cpu
