#include <algorithm>
#include <cmath>
#include <limits>

#include "exec/quantize.hpp"
#include "ref/ref.hpp"

namespace millrace::ref {
namespace {

// One query head: out = sum_j softmax_j(scale * q . k_j + slope * (j - i)) v_j
// over the keys j that query i, of a row of the sequence, sees. sink_q is the query for the
// sinks. scores: [position + 1].
void head(const Context& c, const Op& op, const Sequence& s, int row, int h, const float* q,
          const float* sink_q, float* out, float* scores) {
  const int d = op.attention.head_dim, values = op.attention.value_dim;
  const int kv_head = h / (op.attention.heads / op.attention.kv_heads);
  const int position = s.row_position(row);
  const int first = op.first_seen(position), last = op.last_seen(position, s.rows);
  // The sinks, then what follows them of the window.
  const auto each_key = [&](auto&& visit) {
    for (int j = 0; j < std::min(op.attention.sinks, position + 1); ++j) visit(j);
    for (int j = std::max(first, op.attention.sinks); j <= last; ++j) visit(j);
  };
  const int exact = c.kv.type == MR_KV_KIVI ? kivi_exact(position) : 0;
  const auto seen = [&](int value, int j) -> const float* {
    float* kept = kv_row(c.kv, s, row, op.place, value, kv_head, j);
    return j < exact ? coded_row(kept, d) : kept;
  };
  float most = -std::numeric_limits<float>::infinity();
  each_key([&](int j) {
    const float* k = seen(0, j);
    const float* query = j < op.attention.sinks ? sink_q : q;
    double sum = 0;
    for (int i = 0; i < d; ++i) sum += double{query[i]} * k[i];
    sum *= op.attention.scale;
    if (op.attention.softcap > 0)
      sum = op.attention.softcap * std::tanh(sum / op.attention.softcap);
    if (op.attention.alibi_slopes != nullptr)
      sum += double{op.attention.alibi_slopes[h]} * (j - position);
    scores[j] = static_cast<float>(sum);
    most = std::max(most, scores[j]);
  });
  double total = 0;
  if (op.null_values != nullptr) {
    most = std::max(most, op.null_values[h]);
    total = std::exp(op.null_values[h] - most);
  }
  each_key([&](int j) { total += scores[j] = std::exp(scores[j] - most); });
  for (int i = 0; i < values; ++i) {
    double sum = 0;
    each_key([&](int j) { sum += double{scores[j]} * seen(1, j)[i]; });
    out[i] = static_cast<float>(sum / total);
  }
}

}  // namespace

void RefKernels::attention(const Op& op, const Run& run) {
  if (op.attention.heavy > 0) return h2o(op, run);
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const Slot sink_q = run.slot_if(op.attention.sinks > 0, op.attention.sink_q);
  for (const Sequence& s : run.batch.sequences) {
    context_.pool.parallel_for(s.rows * op.attention.heads, [&](int task, int thread) {
      const int64_t row = s.first_row + task / op.attention.heads;
      const int h = task % op.attention.heads;
      const float* sinks = op.attention.sinks > 0
                               ? sink_q.f32() + row * sink_q.width + h * op.attention.head_dim
                               : nullptr;
      head(context_, op, s, task / op.attention.heads, h,
           in.f32() + row * in.width + h * op.attention.head_dim, sinks,
           out.f32() + row * out.width + h * op.attention.value_dim,
           scores_.data() + int64_t{thread} * context_.program.max_positions);
    });
  }
}

}  // namespace millrace::ref
