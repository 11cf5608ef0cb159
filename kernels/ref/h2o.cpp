#include "exec/h2o.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ref/ref.hpp"

namespace millrace::ref {
namespace {

// out = sum_j p_j v_j over places [0, live), p = softmax(scale * q . k_j); adds p to the sums.
void head(const Context& c, const Op& op, const Sequence& s, const H2oHead& sums, int kv_head,
          int live, const float* q, float* out, float* scores) {
  const int d = op.attention.head_dim;
  const auto kept = [&](int value, int j) {
    return kv_row(c.kv, s, 0, op.place, value, kv_head, j);
  };
  float most = -std::numeric_limits<float>::infinity();
  for (int j = 0; j < live; ++j) {
    const float* k = kept(0, j);
    double sum = 0;
    for (int i = 0; i < d; ++i) sum += double{q[i]} * k[i];
    scores[j] = static_cast<float>(sum * op.attention.scale);
    most = std::max(most, scores[j]);
  }
  double total = 0;
  for (int j = 0; j < live; ++j) total += scores[j] = std::exp(scores[j] - most);
  for (int j = 0; j < live; ++j) sums.sum(j) += static_cast<float>(scores[j] / total);
  for (int i = 0; i < d; ++i) {
    double sum = 0;
    for (int j = 0; j < live; ++j) sum += double{scores[j]} * kept(1, j)[i];
    out[i] = static_cast<float>(sum / total);
  }
}

// The rows of a sequence for one KV head, row by row: stores a token, attends, evicts.
void rows(const Context& c, const Op& op, const Sequence& s, int kv_head, Slot in, Slot out,
          float* scores) {
  const int d = op.attention.head_dim, group = op.attention.heads / op.attention.kv_heads;
  const H2oHead sums(c.kv, s, op.place, kv_head);
  const auto row_of = [&](int value, int place) {
    return kv_row(c.kv, s, 0, op.place, value, kv_head, place);
  };
  for (int i = 0; i < s.rows; ++i) {
    const int64_t row = s.first_row + i;
    const int place = c.program.place(s.position + i);
    const float* x = in.f32() + row * in.width;
    for (int value = 0; value < 2; ++value) {
      std::copy_n(x + (op.attention.heads + value * op.attention.kv_heads + kv_head) * d, d,
                  row_of(value, place));
    }
    sums.sum(place) = 0;
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      head(c, op, s, sums, kv_head, place + 1, x + h * d, out.f32() + row * out.width + h * d,
           scores);
    }
    h2o_evict(c.program, sums, s.position + i + 1, [&](int from, int to) {
      for (int value = 0; value < 2; ++value)
        std::copy_n(row_of(value, from), d, row_of(value, to));
    });
  }
  sums.tokens() = s.position + s.rows;
}

}  // namespace

void RefKernels::h2o(const Op& op, const Run& run) {
  const Batch& batch = run.batch;
  check_h2o(context_.kv, batch, op.place);
  const int n = static_cast<int>(batch.sequences.size());
  context_.pool.parallel_for(n * op.attention.kv_heads, [&](int task, int thread) {
    rows(context_, op, batch.sequences[task / op.attention.kv_heads], task % op.attention.kv_heads,
         run.slot(op.in), run.slot(op.out),
         scores_.data() + int64_t{thread} * context_.program.max_positions);
  });
}

}  // namespace millrace::ref
