#include <cmath>

#include "ref/ref.hpp"

namespace millrace::ref {

// RMS:   y = x / sqrt(mean(x^2) + eps) * weight + bias
// Layer: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
// It is added to what out has, where the op accumulates.
void norm(const Context& c, const Op& op, int rows, Slot in, Slot out) {
  const mr_tensor& weight = *c.program.tensor(op.norm.weight);
  const mr_tensor* bias = c.program.tensor(op.norm.bias);
  const int width = in.width;
  c.pool.parallel_for(rows, [&](int r, int) {
    const float* x = in.f32() + int64_t{r} * width;
    float* y = out.f32() + int64_t{r} * width;
    double mean = 0, square = 0;
    if (op.norm.kind == MR_NORM_LAYER) {
      for (int i = 0; i < width; ++i) mean += x[i];
      mean /= width;
    }
    for (int i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean);
    const double scale = 1 / std::sqrt(square / width + op.norm.eps);
    for (int i = 0; i < width; ++i) {
      const float value = static_cast<float>((x[i] - mean) * scale) * element(weight, i);
      const float normed = value + (bias != nullptr ? element(*bias, i) : 0.0f);
      y[i] = op.norm.accumulate ? y[i] + normed : normed;
    }
  });
}

}  // namespace millrace::ref
