#include <cmath>

#include "ref/ref.hpp"

namespace millrace::ref {
namespace {

// Output rows that one thread takes at a time.
constexpr int64_t kBlock = 16;

float activate(int activation, float x) {
  switch (activation) {
    case MR_ACT_SILU:
      return x / (1 + std::exp(-x));
    case MR_ACT_GELU_TANH:
      return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    case MR_ACT_GELU_ERF:
      return 0.5f * x * (1 + std::erf(x * 0.7071067812f));
    case MR_ACT_RELU:
      return x > 0 ? x : 0;
    default:
      return x;
  }
}

// Sixteen running sums: closer to the exact sum than one.
float dot(const float* a, const float* b, int n) {
  constexpr int kSums = 16;
  float sums[kSums] = {};
  for (int i = 0; i < n; ++i) sums[i % kSums] += a[i] * b[i];
  double total = 0;
  for (const float sum : sums) total += sum;
  return static_cast<float>(total);
}

// A row of W and its bias, wherever its part takes it from.
float weight_row(const Program& p, const Op& op, int64_t row, int width, float* out) {
  const mr_part* part = op.parts;
  while (row >= part->rows) row -= (part++)->rows;
  const int64_t source = part->offset + row / part->block * part->stride + row % part->block;
  const mr_tensor& weight = *p.tensor(part->weight);
  for (int i = 0; i < width; ++i) out[i] = element(weight, source * width + i);
  const mr_tensor* bias = p.tensor(part->bias);
  return bias != nullptr ? element(*bias, source) : 0.0f;
}

}  // namespace

void linear(const Context& c, const Op& op, int rows, Slot in, Slot out) {
  const int64_t blocks = (out.width + kBlock - 1) / kBlock;
  // Two rows of W per thread: a gated op needs gate and up together.
  float* scratch =
      static_cast<float*>(c.pool.scratch(sizeof(float) * 2 * in.width * c.pool.size()));
  c.pool.parallel_for(static_cast<int>(blocks), [&](int block, int thread) {
    float* w = scratch + int64_t{thread} * 2 * in.width;
    float* up = w + in.width;
    for (int64_t n = block * kBlock; n < (block + 1) * kBlock && n < out.width; ++n) {
      const float bias = weight_row(c.program, op, n, in.width, w);
      const float up_bias =
          op.gated ? weight_row(c.program, op, n + out.width, in.width, up) : 0.0f;
      for (int r = 0; r < rows; ++r) {
        const float* x = in.f32() + int64_t{r} * in.width;
        float y = activate(op.activation, dot(x, w, in.width) + bias);
        if (op.gated) y *= dot(x, up, in.width) + up_bias;
        float& target = out.f32()[int64_t{r} * out.width + n];
        target = op.accumulate ? target + y : y;
      }
    }
  });
}

}  // namespace millrace::ref
