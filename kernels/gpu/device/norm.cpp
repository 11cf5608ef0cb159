// RMS:   y = x / sqrt(mean(x^2) + eps) * weight + bias
// Layer: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
// A work-group per row. An item adds up the same elements whatever the rows, and
// reads only what it writes itself, so that in and out may be one slot.
#include "common.hpp"

MR_KERNEL mr_norm(const float* in, const float* weight, const float* bias, void* out,
                  mr::NormShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto group = item.get_group();
  const int64_t row = item.get_group(0) * int64_t{s.width};
  const int first = item.get_local_id(0);
  const float width = s.width;
  float mean = 0;
  if (s.layer_norm) {
    for (int i = first; i < s.width; i += mr::kNormItems) mean += in[row + i];
    mean = sycl::reduce_over_group(group, mean, sycl::plus<float>()) / width;
  }
  float square = 0;
  for (int i = first; i < s.width; i += mr::kNormItems) {
    const float x = in[row + i] - mean;
    square = sycl::fma(x, x, square);
  }
  square = sycl::reduce_over_group(group, square, sycl::plus<float>());
  const float scale = 1 / sycl::sqrt(square / width + s.eps);
  for (int i = first; i < s.width; i += mr::kNormItems) {
    float y = (in[row + i] - mean) * scale * weight[i];
    if (s.bias) y += bias[i];
    store(out, s.out_f32, row + i, y);
  }
}
