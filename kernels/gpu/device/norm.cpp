// RMS:   y = x / sqrt(mean(x^2) + eps) * weight + bias
// Layer: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
// None:  y = x * weight + bias
// It is added to what out has, where the op accumulates; what out has then is times scale.
// Rows for products of codes are left as codes, too: what mr_quantize_rows would make of out.
// A work-group per group of a row. An item adds up the same elements whatever the rows, and
// reads only what it writes itself, so that in and out may be one slot.
#include "quantize.hpp"

#if MR_MMA

// An RMS norm of a row that the work-items hold: four neighbors each, kHeld times. It is read once.
constexpr int kHeld = 8;
MR_INLINE bool held_norm(const float* in, const float* weight, const float* bias, void* out,
                         const mr::NormShape& s, int64_t row) {
  using Four = sycl::vec<float, 4>;
  if (s.layer_norm || s.plain || s.scale != 0 || s.width > 4 * kHeld * mr::kNormItems) return false;
  if (s.width % 4 != 0 || s.stride % 4 != 0 || s.offset % 4 != 0) return false;
  const auto* fours = reinterpret_cast<const Four*>(in + row);
  const auto* weights = reinterpret_cast<const Four*>(weight);
  const int first = this_item().get_local_id(0), count = s.width / 4;
  Four x[kHeld], w[kHeld];
  float square = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = i * mr::kNormItems + first;
    x[i] = Four(0.0f);
    if (at < count) x[i] = fours[at];
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = i * mr::kNormItems + first;
    if (at < count) w[i] = weights[at];
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k) square = sycl::fma(x[i][k], x[i][k], square);
  square = sycl::reduce_over_group(this_item().get_group(), square, sycl::plus<float>());
  const float scale = 1 / sycl::sqrt(square / static_cast<float>(s.width) + s.eps);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = i * mr::kNormItems + first;
    if (at >= count) break;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float y = x[i][k] * scale * w[i][k];
      if (s.bias) y += bias[4 * at + k];
      if (s.accumulate) y += static_cast<const float*>(out)[row + 4 * at + k];
      store(out, s.out_f32, row + 4 * at + k, y);
    }
  }
  return true;
}

#endif

MR_INLINE void norm_row(const float* in, const float* weight, const float* bias, void* out,
                        const mr::NormShape& s, int64_t row) {
#if MR_MMA
  if (held_norm(in, weight, bias, out, s, row)) return;
#endif
  const Item item = this_item();
  const auto group = item.get_group();
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
  const float scale = s.plain ? 1.0f : 1 / sycl::sqrt(square / width + s.eps);
  for (int i = first; i < s.width; i += mr::kNormItems) {
    float y = (in[row + i] - mean) * scale * weight[i];
    if (s.bias) y += bias[i];
    if (s.accumulate) y += static_cast<const float*>(out)[row + i];
    if (s.scale != 0) y *= s.scale;
    store(out, s.out_f32, row + i, y);
  }
}

MR_KERNEL mr_norm(const float* in, const float* weight, const float* bias, void* out, int8_t* codes,
                  float* scales, mr::NormShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto group = item.get_group();
  const int part = static_cast<int>(item.get_group(0) % s.groups);
  const int64_t index = item.get_group(0) / s.groups;
  const int64_t row = index * int64_t{s.stride} + s.offset + int64_t{part} * s.width;
  weight += part * s.group_weights;
  if (s.bias) bias += part * s.group_biases;
  norm_row(in, weight, bias, out, s, row);
  if (s.padded_width == 0) return;
  sycl::group_barrier(group);  // an item's numbers are other items' codes
  const operand* y = static_cast<const operand*>(out) + row;
  const float scale = quantize_row(item, mr::kNormItems, y, s.width, s.padded_width,
                                   codes + index * s.padded_width);
  if (item.get_local_id(0) == 0) scales[index] = scale;
}
