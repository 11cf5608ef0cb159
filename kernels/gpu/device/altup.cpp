// A step of alternating updates, as mr_altup says. A work-group per row. An item reads only what it writes itself, but for
// the squares of MATCH.
#include "common.hpp"

MR_KERNEL mr_altup(const float* coefs, const float* x, mr::AltUpShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto group = item.get_group();
  const int64_t row = item.get_group(0);
  const int first = item.get_local_id(0);
  const auto stream = [&](int j) {
    return reinterpret_cast<float*>(kv_memory(s.streams[j])) + row * s.width;
  };
  if (s.step == mr::kAltUpMatch) {
    const auto mean_square = [&](const float* of) {
      float square = 0;
      for (int i = first; i < s.width; i += mr::kNormItems)
        square = sycl::fma(of[i], of[i], square);
      return sycl::reduce_over_group(group, square, sycl::plus<float>()) /
             static_cast<float>(s.width);
    };
    const float target = sycl::sqrt(mean_square(stream(0)));
    for (int j = 1; j < s.count; ++j) {
      float* const of = stream(j);
      const float factor = target / sycl::sqrt(sycl::fmax(mean_square(of), 1e-5f));
      for (int i = first; i < s.width; i += mr::kNormItems) of[i] *= factor;
    }
    return;
  }
  const bool predicts = s.step == mr::kAltUpPredict;
  coefs += row * s.count * (predicts ? s.count : 1);
  for (int i = first; i < s.width; i += mr::kNormItems) {
    float before[mr::kMostStreams];
#pragma unroll
    for (int j = 0; j < mr::kMostStreams; ++j) before[j] = j < s.count ? stream(j)[i] : 0.0f;
    const float change = predicts ? 0.0f : x[row * s.width + i] - stream(s.active)[i];
#pragma unroll
    for (int j = 0; j < mr::kMostStreams; ++j) {
      if (j >= s.count) break;
      float sum = predicts ? 0.0f : (1 + coefs[j]) * change;
      if (predicts) {
#pragma unroll
        for (int k = 0; k < mr::kMostStreams; ++k) {
          if (k < s.count) sum = sycl::fma(coefs[j * s.count + k], before[k], sum);
        }
      }
      stream(j)[i] = before[j] + sum;
    }
  }
}
