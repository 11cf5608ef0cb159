#include <algorithm>
#include <climits>
#include <cstring>

#include "cpu/ops/ops.hpp"
#include "exec/angle.hpp"

namespace millrace::cpu {
namespace {

// The sequence of a row of the step.
const Sequence& sequence_of(const Batch& batch, int row) {
  const auto next = std::upper_bound(batch.sequences.begin(), batch.sequences.end(), row,
                                     [](int r, const Sequence& s) { return r < s.first_row; });
  return next[-1];
}

void store_bf16(const Context& c, int value, const float* head, int d, int token, bf16* block) {
  bf16 rounded[kMaxHeadDim];
  c.kernels.to_bf16(head, d, rounded);
  if (value == 0) {
    for (int i = 0; i < d; i += 2) {
      std::memcpy(block + (i / 2 * kSlabTokens + token) * 2, rounded + i, 2 * sizeof(bf16));
    }
  } else {
    block += token / 2 * 2 * d + token % 2;
    for (int i = 0; i < d; ++i) block[2 * i] = rounded[i];
  }
}

// Puts the keys or values of a row of the sequence into their slab (cpu/ops/kernels.hpp).
void store(const Context& c, const Op& op, const Sequence& s, int row, int value,
           const float* heads) {
  const int d = value == 0 ? op.attention.head_dim : op.attention.value_dim;
  int position = s.row_position(row);
  const Kept kept = s.kept(row, position);
  std::byte* slab = kept.kv + c.kv.slab_bytes * (position / MR_SLAB_TOKENS);
  const int token = position % MR_SLAB_TOKENS;
  for (int h = 0; h < op.attention.kv_heads; ++h, heads += d) {
    std::byte* block = slab + c.kv.block(op.place, value, h);
    switch (c.kv.type) {
      case MR_KV_INT8:
        (value == 0 ? store_int8_key : store_int8_value)(heads, d, token, block);
        break;
      case MR_KV_INT4:
        (value == 0 ? store_int4_key : store_int4_value)(heads, d, token, block);
        break;
      default:
        store_bf16(c, value, heads, d, token, reinterpret_cast<bf16*>(block));
    }
  }
}

}  // namespace

Angles::Angles(const Op& op, int max_rows)
    : inv_freq_(op.attention.inv_freq, op.attention.inv_freq + op.attention.rotary_dim / 2),
      scale_(op.attention.rotary_scale),
      max_rows_(max_rows),
      sink_position_(op.sink_position(INT_MAX)),
      values_(sizeof(float) * (max_rows + 1) * op.attention.rotary_dim) {
  if (op.attention.sinks > 0) compute(max_rows_, sink_position_);
}

bool Angles::serves(const Op& op) const {
  return op.attention.rotary_dim / 2 == half() && op.attention.rotary_scale == scale_ &&
         op.sink_position(INT_MAX) == sink_position_ &&
         std::equal(inv_freq_.begin(), inv_freq_.end(), op.attention.inv_freq);
}

void Angles::compute(const Batch& batch, ThreadPool& pool) {
  constexpr int kCost = 16;  // of a cosine and a sine beside an element of other rows
  for_rows(pool, batch.rows, half() * kCost, [&](int r, int) { compute(r, batch.positions[r]); });
}

void Angles::compute(int row, int position) const {
  float* cosine = data() + int64_t{row} * 2 * half();
  float* sine = cosine + half();
  for (int i = 0; i < half(); ++i) {
    const float angle = static_cast<float>(position) * inv_freq_[i];
    const SineCosine at = sine_cosine(angle);
    cosine[i] = at.cosine * scale_;
    sine[i] = at.sine * scale_;
  }
}

const Angles* CpuOps::angles_of(const Op& op) {
  if (op.attention.rotary_dim == 0) return nullptr;
  for (const Angles& angles : angles_) {
    if (angles.serves(op)) return &angles;
  }
  return &angles_.emplace_back(op, context_.program.max_rows);
}

void CpuOps::rope_store(const Op& op, const Run& run) {
  const FloatScope mode(mode_);
  const Context& c = context_;
  const Batch& batch = run.batch;
  RopeStore& kept = *kept_[op.index].rope_store;
  const Slot in = run.slot(op.in);
  const Slot sink_q = run.slot_if(op.attention.sinks > 0, op.attention.sink_q);
  const int d = op.attention.head_dim;
  for_rows(c.pool, batch.rows, in.width, [&](int row, int) {
    const Sequence& s = sequence_of(batch, row);
    float* q = in.f32() + int64_t{row} * in.width;
    float* k = q + int64_t{op.attention.heads} * d;
    HeadsRow heads{op.attention.heads,
                   d,
                   kept.q_norm.empty() ? nullptr : kept.q_norm.data(),
                   op.attention.eps,
                   op.attention.rotary_dim,
                   op.attention.rotary_interleaved != 0,
                   kept.angles != nullptr ? kept.angles->cosine(row) : nullptr,
                   kept.angles != nullptr ? kept.angles->sine(row) : nullptr,
                   op.attention.norm_last != 0,
                   op.attention.rotary_offset};
    if (op.attention.sinks > 0) {
      const int from = kept.angles->sink_row(op, row, batch.positions[row]);
      float* sinks = sink_q.f32() + int64_t{row} * sink_q.width;
      HeadsRow same = heads;
      same.cosine = kept.angles->cosine(from);
      same.sine = kept.angles->sine(from);
      std::copy_n(q, sink_q.width, sinks);
      c.kernels.rotate(same, sinks);
    }
    c.kernels.rotate(heads, q);
    if (op.attention.q_scales != nullptr) {
      const float scale = op.q_scale(batch.positions[row]);
      for (int i = 0; i < op.attention.heads * d; ++i) q[i] *= scale;
    }
    if (op.attention.stored) return;
    heads.heads = op.attention.kv_heads;
    heads.norm = kept.k_norm.empty() ? nullptr : kept.k_norm.data();
    c.kernels.rotate(heads, k);
    if (c.kv.type == MR_KV_KIVI || op.attention.heavy > 0) return;  // attention stores what is left
    store(c, op, s, row - s.first_row, 0, k);
    if (op.attention.latent) return;
    store(c, op, s, row - s.first_row, 1, k + int64_t{op.attention.kv_heads} * d);
  });
  if (c.kv.type == MR_KV_KIVI) kept.kivi.code(c, op, batch, in);
}

}  // namespace millrace::cpu
