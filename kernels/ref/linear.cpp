#include <algorithm>
#include <cmath>
#include <vector>

#include "exec/quantize.hpp"
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
float weight_row(const Program& p, const Op& op, int64_t row, float* out) {
  const mr_part* part = op.parts;
  while (row >= part->rows) row -= (part++)->rows;
  const int64_t source = part_row(*part, row);
  read_row(*p.tensor(part->weight), source, out);
  const mr_tensor* bias = p.tensor(part->bias);
  return bias != nullptr ? element(*bias, source) : 0.0f;
}

// What is left of n numbers by codes of a type of weights, which the room is for.
void round_trip(int32_t weights, float* w, int n, std::vector<uint8_t>& codes) {
  codes.resize(n);
  const float scale = quantize(weights, w, n, codes.data());
  for (int i = 0; i < n; ++i) w[i] = scale * code_value(weights, codes[i]);
}

// What is left of a row of W as the op keeps it.
void round_trip(const Op& op, float* w, int width, std::vector<uint8_t>& codes) {
  if (op.weights == MR_WEIGHTS_16BIT || op.weights == MR_WEIGHTS_BLOCKS) return;
  const int group = in_groups(op.weights) ? op.group : width;
  for (int k = 0; k < width; k += group) {
    round_trip(op.weights, w + k, std::min(group, width - k), codes);
  }
}

// The rows that weights of integers meet, each `group` elements by a scale of their own.
void round_trip_rows(int rows, int group, Slot in, float* out) {
  std::vector<uint8_t> codes;
  const int64_t elements = int64_t{rows} * in.width;
  std::copy(in.f32(), in.f32() + elements, out);
  for (int64_t i = 0; i < elements; i += group) round_trip(MR_WEIGHTS_INT8, out + i, group, codes);
}

}  // namespace

void linear(const Context& c, const Op& op, int rows, Slot in, Slot out) {
  const int64_t blocks = (out.width + kBlock - 1) / kBlock;
  const bool quantized = quantizes_rows(op.weights);
  const int64_t taken = quantized ? int64_t{rows} * in.width : 0;
  // Two rows of W per thread: a gated op needs gate and up together.
  float* scratch =
      static_cast<float*>(c.pool.scratch(sizeof(float) * (taken + 2 * in.width * c.pool.size())));
  const float* x = in.f32();
  if (quantized) {
    round_trip_rows(rows, op.weights == MR_WEIGHTS_BLOCKS ? op.group : in.width, in, scratch);
    x = scratch;
  }
  c.pool.parallel_for(static_cast<int>(blocks), [&](int block, int thread) {
    std::vector<uint8_t> codes;
    float* w = scratch + taken + int64_t{thread} * 2 * in.width;
    float* up = w + in.width;
    for (int64_t n = block * kBlock; n < (block + 1) * kBlock && n < out.width; ++n) {
      const float bias = weight_row(c.program, op, n, w);
      round_trip(op, w, in.width, codes);
      float up_bias = 0;
      if (op.gated) {
        up_bias = weight_row(c.program, op, n + out.width, up);
        round_trip(op, up, in.width, codes);
      }
      for (int r = 0; r < rows; ++r) {
        const float* row = x + int64_t{r} * in.width;
        float y = activate(op.activation, dot(row, w, in.width) + bias);
        if (op.gated) y *= dot(row, up, in.width) + up_bias;
        float& target = out.f32()[int64_t{r} * out.width + n];
        target = op.accumulate ? target + y : y;
      }
    }
  });
}

}  // namespace millrace::ref
