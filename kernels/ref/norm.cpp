#include <cmath>

#include "ref/ref.hpp"

namespace millrace::ref {

// RMS:   y = x / sqrt(mean(x^2) + eps) * weight + bias
// Layer: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
// None:  y = x * weight + bias
// It is added to what out has, where the op accumulates; what out has then is times scale.
void RefKernels::norm(const Op& op, const Run& run) {
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const mr_tensor* weight = context_.program.tensor(op.norm.weight);
  const mr_tensor* bias = context_.program.tensor(op.norm.bias);
  const bool part = op.norm.width > 0;
  const int groups = part ? op.norm.groups : 1;
  const int width = part ? op.norm.width / groups : in.width;
  // An element of weight or bias: of all groups, or of each.
  const auto at = [&](const mr_tensor& t, int group, int i) {
    return element(t, t.dims[0] > width ? group * width + i : i);
  };
  context_.pool.parallel_for(run.rows * groups, [&](int task, int) {
    const int group = task % groups;
    const int64_t first =
        int64_t{task / groups} * in.width + (part ? op.norm.offset : 0) + group * width;
    const float* x = in.f32() + first;
    float* y = out.f32() + first;
    double mean = 0, square = 0;
    if (op.norm.kind == MR_NORM_LAYER) {
      for (int i = 0; i < width; ++i) mean += x[i];
      mean /= width;
    }
    for (int i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean);
    const double scale =
        op.norm.kind == MR_NORM_NONE ? 1 : 1 / std::sqrt(square / width + op.norm.eps);
    for (int i = 0; i < width; ++i) {
      const float value = static_cast<float>((x[i] - mean) * scale) *
                          (weight != nullptr ? at(*weight, group, i) : 1.0f);
      const float normed = value + (bias != nullptr ? at(*bias, group, i) : 0.0f);
      y[i] = op.norm.accumulate ? y[i] + normed : normed;
      if (op.norm.scale != 0) y[i] *= op.norm.scale;
    }
  });
}

}  // namespace millrace::ref
