#include <algorithm>
#include <cmath>
#include <limits>

#include "ref/ref.hpp"

namespace millrace::ref {
namespace {

// One query head: out = sum_j softmax_j(scale * q . k_j + slope * (j - i)) v_j
// over the keys j that query i, of a row of the sequence, sees. scores:
// [position + 1].
void head(const Context& c, const Op& op, const Sequence& s, int row, int h, const float* q,
          float* out, float* scores) {
  const int d = op.head_dim, kv_head = h / (op.heads / op.kv_heads);
  const int position = s.row_position(row);
  const int first = op.window > 0 ? std::max(0, position - op.window + 1) : 0;
  float most = -std::numeric_limits<float>::infinity();
  for (int j = first; j <= position; ++j) {
    const float* k = kv_row(c.kv, s, row, op.layer, 0, kv_head, j);
    double sum = 0;
    for (int i = 0; i < d; ++i) sum += double{q[i]} * k[i];
    sum *= op.scale;
    if (op.alibi_slopes != nullptr) sum += double{op.alibi_slopes[h]} * (j - position);
    scores[j] = static_cast<float>(sum);
    most = std::max(most, scores[j]);
  }
  double total = 0;
  for (int j = first; j <= position; ++j) total += scores[j] = std::exp(scores[j] - most);
  for (int i = 0; i < d; ++i) {
    double sum = 0;
    for (int j = first; j <= position; ++j) {
      sum += double{scores[j]} * kv_row(c.kv, s, row, op.layer, 1, kv_head, j)[i];
    }
    out[i] = static_cast<float>(sum / total);
  }
}

}  // namespace

void attention(const Context& c, const Op& op, const Batch& batch, Slot in, Slot out,
               std::vector<float>& scores) {
  for (const Sequence& s : batch.sequences) {
    c.pool.parallel_for(s.rows * op.heads, [&](int task, int thread) {
      const int64_t row = s.first_row + task / op.heads;
      const int h = task % op.heads;
      head(c, op, s, task / op.heads, h, in.f32() + row * in.width + h * op.head_dim,
           out.f32() + row * out.width + h * op.head_dim,
           scores.data() + int64_t{thread} * c.program.max_positions);
    });
  }
}

}  // namespace millrace::ref
