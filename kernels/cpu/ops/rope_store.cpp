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

RopeStore::RopeStore(const Context& c, const Op& op, const Angles* angles)
    : op_(op),
      q_norm_(floats(c.program.tensor(op.attention.q_norm))),
      k_norm_(floats(c.program.tensor(op.attention.k_norm))),
      angles_(angles) {}

void RopeStore::run(const Context& c, const Batch& batch, Slot in, Slot sink_q) {
  const int d = op_.attention.head_dim;
  for_rows(c.pool, batch.rows, in.width, [&](int row, int) {
    const Sequence& s = sequence_of(batch, row);
    float* q = in.f32() + int64_t{row} * in.width;
    float* k = q + int64_t{op_.attention.heads} * d;
    HeadsRow heads{op_.attention.heads,
                   d,
                   q_norm_.empty() ? nullptr : q_norm_.data(),
                   op_.attention.eps,
                   op_.attention.rotary_dim,
                   op_.attention.rotary_interleaved != 0,
                   angles_ != nullptr ? angles_->cosine(row) : nullptr,
                   angles_ != nullptr ? angles_->sine(row) : nullptr,
                   op_.attention.norm_last != 0,
                   op_.attention.rotary_offset};
    if (op_.attention.sinks > 0) {
      const int from = angles_->sink_row(op_, row, batch.positions[row]);
      float* sinks = sink_q.f32() + int64_t{row} * sink_q.width;
      HeadsRow same = heads;
      same.cosine = angles_->cosine(from);
      same.sine = angles_->sine(from);
      std::copy_n(q, sink_q.width, sinks);
      c.kernels.rotate(same, sinks);
    }
    c.kernels.rotate(heads, q);
    if (op_.attention.q_scales != nullptr) {
      const float scale = op_.q_scale(batch.positions[row]);
      for (int i = 0; i < op_.attention.heads * d; ++i) q[i] *= scale;
    }
    if (op_.attention.stored) return;
    heads.heads = op_.attention.kv_heads;
    heads.norm = k_norm_.empty() ? nullptr : k_norm_.data();
    c.kernels.rotate(heads, k);
    if (c.kv.type == MR_KV_KIVI || op_.attention.heavy > 0)
      return;  // attention stores what is left
    store(c, s, row - s.first_row, 0, k);
    if (op_.attention.latent) return;
    store(c, s, row - s.first_row, 1, k + int64_t{op_.attention.kv_heads} * d);
  });
  if (c.kv.type == MR_KV_KIVI) kivi_.code(c, op_, batch, in);
}

// Puts the keys or values of a row of the sequence into their slab (cpu/ops/kernels.hpp).
void RopeStore::store(const Context& c, const Sequence& s, int row, int value,
                      const float* heads) const {
  const int d = value == 0 ? op_.attention.head_dim : op_.attention.value_dim;
  int position = s.row_position(row);
  const Kept kept = s.kept(row, position);
  std::byte* slab = kept.kv + c.kv.slab_bytes * (position / MR_SLAB_TOKENS);
  const int token = position % MR_SLAB_TOKENS;
  for (int h = 0; h < op_.attention.kv_heads; ++h, heads += d) {
    std::byte* block = slab + c.kv.block(op_.place, value, h);
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

void RopeStore::store_bf16(const Context& c, int value, const float* head, int d, int token,
                           bf16* block) {
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

}  // namespace millrace::cpu
