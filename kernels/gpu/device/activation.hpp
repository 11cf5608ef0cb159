// What a linear op may end with.
#ifndef MILLRACE_GPU_DEVICE_ACTIVATION_HPP
#define MILLRACE_GPU_DEVICE_ACTIVATION_HPP

#include "common.hpp"

namespace mr_linear {

// x within -a to a. All of these keep a NaN.
MR_INLINE float clamped(float x, float a) { return x < -a ? -a : x > a ? a : x; }

// mr_activation.
MR_INLINE float activate(const mr::Activation& activation, float x) {
  switch (activation.kind) {
    case 1:  // SiLU
      return x / (1 + sycl::exp(-x));
    case 2:  // GELU, tanh
      return 0.5f * x * (1 + sycl::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    case 3:  // GELU, erf
      return 0.5f * x * (1 + sycl::erf(x * 0.7071067812f));
    case 4:  // ReLU
      return x < 0 ? 0 : x;
    case 5:  // its square
      return x < 0 ? 0 : x * x;
    case 6:  // xIELU
      return 0.5f * x + (x > 0 ? activation.a * x * x : activation.b * (sycl::expm1(x) - x));
    case 7:  // clamp
      return clamped(x, activation.a);
    case 8:  // soft cap
      return activation.a * sycl::tanh(x / activation.a);
    case 9: {  // SwiGLU of gpt-oss
      const float gate = x > activation.a ? activation.a : x;
      return gate / (1 + sycl::exp(-activation.b * gate));
    }
    default:
      return x;
  }
}

// What an activated gate is multiplied with.
MR_INLINE float multiplier(const mr::Activation& activation, float up) {
  return activation.kind == 9 ? clamped(up, activation.a) + 1 : up;
}

// Writes or adds the result of one lane at its place.
template <class Shape>
MR_INLINE void write_at(const Shape& s, void* out, int64_t at, float value) {
  if (s.accumulate) value += static_cast<const float*>(out)[at];
  store(out, s.out_f32, at, value);
}

// Writes or adds the lanes' results of a row's columns from `first` on. Those from the width on are not there.
template <class Shape>
MR_INLINE void write(const Shape& s, void* out, int64_t row, int64_t first, float value) {
  const auto sub_group = this_item().get_sub_group();
  const int64_t at = row * s.width + first;
  if (s.width % 8 == 0 && first + MR_LANES <= s.width) {
    if (s.accumulate) value += load_lanes(sub_group, static_cast<const float*>(out) + at);
    store_lanes(sub_group, out, s.out_f32, at, value);
    return;
  }
  const int lane = sub_group.get_local_linear_id();
  if (first + lane < s.width) write_at(s, out, at + lane, value);
}

}  // namespace mr_linear

#endif
