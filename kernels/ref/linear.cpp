#include <algorithm>
#include <cmath>
#include <vector>

#include "exec/quantize.hpp"
#include "exec/route.hpp"
#include "ref/ref.hpp"

namespace millrace::ref {
namespace {

// Output rows that one thread takes at a time.
constexpr int64_t kBlock = 16;

float activate(const mr_linear& op, float x) {
  switch (op.activation) {
    case MR_ACT_SILU:
      return x / (1 + std::exp(-x));
    case MR_ACT_GELU_TANH:
      return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    case MR_ACT_GELU_ERF:
      return 0.5f * x * (1 + std::erf(x * 0.7071067812f));
    case MR_ACT_RELU:
      return x > 0 ? x : 0;
    case MR_ACT_RELU2:
      return x > 0 ? x * x : 0;
    case MR_ACT_XIELU:
      return 0.5f * x + (x > 0 ? op.act_a * x * x : op.act_b * (std::expm1(x) - x));
    case MR_ACT_CLAMP:
      return std::clamp(x, -op.act_a, op.act_a);
    case MR_ACT_SOFTCAP:
      return op.act_a * std::tanh(x / op.act_a);
    case MR_ACT_SWIGLU:
      x = std::min(x, op.act_a);
      return x / (1 + std::exp(-op.act_b * x));
    default:
      return x;
  }
}

// What an activated gate is multiplied with.
float multiplier(const mr_linear& op, float up) {
  return op.activation == MR_ACT_SWIGLU ? std::clamp(up, -op.act_a, op.act_a) + 1 : up;
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

// A row of W, of parts one below the other, and its bias.
float weight_row(const Program& p, const mr_part* part, int64_t row, float* out) {
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
  if (op.linear.weights == MR_WEIGHTS_16BIT || op.linear.weights >= MR_WEIGHTS_BLOCKS) return;
  const int group = in_groups(op.linear.weights) ? op.linear.group : width;
  for (int k = 0; k < width; k += group) {
    round_trip(op.linear.weights, w + k, std::min(group, width - k), codes);
  }
}

// The rows of `width` as the op's weights meet them: those of integers meet codes, each `group` elements by a scale of their own.
std::vector<float> taken(const Op& op, int rows, int64_t width, const float* in) {
  std::vector<float> x(in, in + rows * width);
  if (!quantizes_rows(op.linear.weights)) return x;
  std::vector<uint8_t> codes;
  const int64_t group = op.linear.weights == MR_WEIGHTS_BLOCKS ? op.linear.group : width;
  for (size_t i = 0; i < x.size(); i += group) {
    round_trip(MR_WEIGHTS_INT8, &x[i], static_cast<int>(group), codes);
  }
  return x;
}

// A row and where its products go.
struct Pair {
  const float* x;
  float* y;
};

// y = act(W x + b), or act(gate x) * (up x); added to what y has, where it is said so.
void products(const Context& c, const Op& op, const mr_part* parts, int width, int n_out,
              bool accumulate, const std::vector<Pair>& pairs) {
  const int blocks = static_cast<int>((n_out + kBlock - 1) / kBlock);
  // Two rows of W per thread: a gated op needs gate and up together.
  auto* scratch = static_cast<float*>(c.pool.scratch(sizeof(float) * 2 * width * c.pool.size()));
  c.pool.parallel_for(blocks, [&](int block, int thread) {
    std::vector<uint8_t> codes;
    float* w = scratch + int64_t{thread} * 2 * width;
    float* up = w + width;
    for (int64_t n = block * kBlock; n < (block + 1) * kBlock && n < n_out; ++n) {
      const float bias = weight_row(c.program, parts, n, w);
      round_trip(op, w, width, codes);
      float up_bias = 0;
      if (op.linear.gated) {
        up_bias = weight_row(c.program, parts, n + n_out, up);
        round_trip(op, up, width, codes);
      }
      for (const Pair& pair : pairs) {
        float y = activate(op.linear, dot(pair.x, w, width) + bias);
        if (op.linear.gated) y *= multiplier(op.linear, dot(pair.x, up, width) + up_bias);
        pair.y[n] = accumulate ? pair.y[n] + y : y;
      }
    }
  });
}

}  // namespace

void RefKernels::linear(const Op& op, const Run& run) {
  if (op.linear.routed != MR_ROUTED_NONE) return experts(op, run);
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const std::vector<float> x = taken(op, run.rows, in.width, in.f32());
  std::vector<Pair> pairs;
  for (int r = 0; r < run.rows; ++r)
    pairs.push_back({&x[int64_t{r} * in.width], out.f32() + int64_t{r} * out.width});
  products(context_, op, op.linear.parts, in.width, out.width, op.linear.accumulate != 0, pairs);
}

// Each expert has a part of every row.
static void heads(const Context& c, const Op& op, int rows, Slot in, Slot out) {
  const int n = op.linear.experts, tail = op.linear.tail;
  const int width = op.part_width(in.width), n_out = out.width / n - tail;
  std::vector<float> parts(int64_t{n} * rows * width);
  std::vector<std::vector<Pair>> pairs(n);
  for (int h = 0; h < n; ++h) {
    for (int r = 0; r < rows; ++r) {
      const float* x = in.f32() + int64_t{r} * in.width + int64_t{h} * (width + tail);
      float* y = out.f32() + int64_t{r} * out.width + int64_t{h} * (n_out + tail);
      float* part = &parts[(int64_t{h} * rows + r) * width];
      std::copy_n(x, width, part);
      std::copy_n(x + width, tail, y + n_out);
      pairs[h].push_back({part, y});
    }
  }
  const std::vector<float> x = taken(op, n * rows, width, parts.data());
  for (int h = 0; h < n; ++h) {
    for (Pair& pair : pairs[h]) pair.x = x.data() + (pair.x - parts.data());
    products(c, op, op.parts_of(h), width, n_out, false, pairs[h]);
  }
}

void RefKernels::experts(const Op& op, const Run& run) {
  const int rows = run.rows;
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  if (op.linear.routed == MR_ROUTED_HEADS) return heads(context_, op, rows, in, out);
  const Slot chosen = run.slot(op.linear.route);
  const bool sums = op.linear.routed == MR_ROUTED_SUM;
  const int k = op.linear.top_k, width = sums ? in.width / k : in.width,
            n_out = sums ? out.width : out.width / k;
  std::vector<float> weighed;
  if (op.linear.weighs_in && !sums) {  // a row for each of its experts
    for (int i = 0; i < rows * k; ++i) {
      for (int n = 0; n < width; ++n)
        weighed.push_back(chosen.f32()[2 * i + 1] * in.f32()[int64_t{i / k} * width + n]);
    }
  }
  const bool each_own = sums || !weighed.empty();
  const std::vector<float> x =
      taken(op, rows * (each_own ? k : 1), width, weighed.empty() ? in.f32() : weighed.data());
  std::vector<float> each(sums ? int64_t{rows} * k * n_out : 0);
  float* const to = sums ? each.data() : out.f32();
  std::vector<std::vector<Pair>> pairs(op.linear.experts);
  for (int i = 0; i < rows * k; ++i) {
    pairs[static_cast<int>(chosen.f32()[2 * i])].push_back(
        {&x[int64_t{each_own ? i : i / k} * width], to + int64_t{i} * n_out});
  }
  for (int e = 0; e < op.linear.experts; ++e) {
    if (!pairs[e].empty()) products(context_, op, op.parts_of(e), width, n_out, false, pairs[e]);
  }
  if (!sums) return;
  for (int r = 0; r < rows; ++r) {
    float* y = out.f32() + int64_t{r} * n_out;
    if (op.linear.accumulate == 0) std::fill_n(y, n_out, 0.0f);
    for (int i = r * k; i < (r + 1) * k; ++i) {
      const float weight = op.linear.weighs_in ? 1.0f : chosen.f32()[2 * i + 1];
      for (int n = 0; n < n_out; ++n) y[n] += weight * each[int64_t{i} * n_out + n];
    }
  }
}

void RefKernels::route(const Op& op, const Run& run) {
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const Program& p = context_.program;
  const Router router(op.route, p.tensor(op.route.bias), p.tensor(op.route.factors));
  std::vector<float> room(router.room());
  for (int r = 0; r < run.rows; ++r) {
    router.row(in.f32() + int64_t{r} * in.width, out.f32() + int64_t{r} * out.width, room.data());
  }
}

}  // namespace millrace::ref
