// Numbers as codes, by exec/quantize.cpp's definition, each function by all items of a group
// or a sub-group together.
#ifndef MILLRACE_GPU_DEVICE_QUANTIZE_HPP
#define MILLRACE_GPU_DEVICE_QUANTIZE_HPP

#include "common.hpp"

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

MR_INLINE bool is_finite(float x) { return sycl::fabs(x) <= kLargest; }
MR_INLINE bool is_normal(float x) {
  return is_finite(x) && sycl::fabs(x) >= std::numeric_limits<float>::min();
}

// How numbers become codes: their scale is the largest magnitude over 127; 0 where that is too small to
// divide by, NaN where a number is not finite.
struct Int8Scale {
  float scale, inverse;

  MR_INLINE int8_t code(float x) const {
    return inverse > 0 ? static_cast<int8_t>(static_cast<int>(sycl::rint(x * inverse))) : 0;
  }
};

// The scale of a group's numbers, of which each item has met some; `bad` is 1 if one is not finite.
template <class Group>
MR_INLINE Int8Scale int8_scale(const Group& group, float most, float bad) {
  most = sycl::reduce_over_group(group, most, sycl::maximum<float>());
  bad = sycl::reduce_over_group(group, bad, sycl::maximum<float>());
  const float scale = most / 127.0f;
  const bool fits = bad == 0 && is_normal(scale);
  return {bad > 0 ? kNan : fits ? scale : 0.0f, fits ? 127.0f / most : 0.0f};
}

MR_INLINE void meet(float x, float& most, float& bad) {
  const float magnitude = sycl::fabs(x);
  if (!is_finite(magnitude)) bad = 1;
  most = sycl::fmax(most, magnitude);
}

// Codes of x[0 .. n - 1] by a sub-group. Returns their scale.
MR_INLINE float quantize_int8(const sycl::sub_group& sub_group, const float* x, int n,
                              int8_t* codes) {
  const int lane = sub_group.get_local_linear_id();
  float most = 0, bad = 0;
  for (int i = lane; i < n; i += MR_LANES) meet(x[i], most, bad);
  const Int8Scale scale = int8_scale(sub_group, most, bad);
  for (int i = lane; i < n; i += MR_LANES) codes[i] = scale.code(x[i]);
  return scale.scale;
}

// Codes of x[0 .. n - 1] by a work-group of `items`, and zeros up to `padded`, a multiple of 64.
MR_INLINE float quantize_row(const Item& item, int items, const operand* x, int n, int padded,
                             int8_t* codes) {
  const auto sub_group = item.get_sub_group();
  const int lane = sub_group.get_local_linear_id(), begin = sub_group_index(item) * MR_LANES;
  const auto number = [&](int first) {
    if (first + MR_LANES <= n) return to_float(load_lanes(sub_group, x + first));
    return first + lane < n ? to_float(x[first + lane]) : 0.0f;
  };
  float most = 0, bad = 0;
  for (int i = begin; i < n; i += items) meet(number(i), most, bad);
  const Int8Scale scale = int8_scale(item.get_group(), most, bad);
  for (int i = begin; i < padded; i += items) {
    store_lanes(sub_group, codes + i, scale.code(number(i)));
  }
  return scale.scale;
}

MR_INLINE float int4_code(float x, float inverse) {
  return sycl::fmin(sycl::fmax(sycl::rint(x * inverse) + 8.0f, 0.0f), 15.0f);
}

// The squared error of n numbers, a multiple of 4, in the order of the host's vectors.
MR_INLINE float int4_error(const float* x, int n, float scale) {
  const float inverse = 1.0f / scale;
  float sums[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; i += 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float d = x[i + k] - scale * (int4_code(x[i + k], inverse) - 8.0f);
      sums[k] += d * d;
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Codes plus 8 and bf16 scales of n numbers, a multiple of 8, in groups of mr::kKvGroup, by a
// sub-group: byte i of a group has its element i in the low half and i + 16 in the high one.
// Each of 8 lanes tries one scale; the least error wins, of equal ones the first.
MR_INLINE void quantize_int4(const sycl::sub_group& sub_group, const float* x, int n,
                             uint8_t* codes, uint16_t* scales) {
  constexpr int kTrials = 8, kHalf = mr::kKvGroup / 2;
  const int lane = sub_group.get_local_linear_id(), trial = lane % kTrials;
  const int groups = mr::kv_groups(n);
  for (int first = 0; first < groups; first += MR_LANES / kTrials) {
    const int group = first + lane / kTrials;
    const float* w = x + group * mr::kKvGroup;
    const int left = n - group * mr::kKvGroup;
    const int size = left < 0 ? 0 : left < mr::kKvGroup ? left : mr::kKvGroup;
    float top = 0;
    bool bad = false;
    for (int i = 0; i < size; ++i) {
      bad = bad || !is_finite(w[i]);
      if (sycl::fabs(w[i]) > sycl::fabs(top)) top = w[i];
    }
    const float fraction = trial % 4 == 0   ? 1.0f
                           : trial % 4 == 1 ? 0.95f
                           : trial % 4 == 2 ? 0.9f
                                            : 0.85f;
    uint32_t best = float_to_bf16(top / (trial < 4 ? -8.0f : 7.0f) * fraction);
    // Where one scale is too small to divide by, the group counts as zeros.
    const float mine = bf16_to_float(static_cast<uint16_t>(best));
    float least = is_normal(mine) ? int4_error(w, size, mine) : -1.0f;
    best |= static_cast<uint32_t>(trial) << 16;
#pragma unroll
    for (int mask = 1; mask < kTrials; mask *= 2) {
      const float error = sycl::permute_group_by_xor(sub_group, least, mask);
      const uint32_t other = sycl::permute_group_by_xor(sub_group, best, mask);
      if (error < least || (error == least && other >> 16 < best >> 16)) {
        least = error;
        best = other;
      }
    }
    if (size == 0) continue;
    const bool fits = !bad && least >= 0 && is_finite(least);
    const auto scale = static_cast<uint16_t>(fits ? best : 0);
    const float inverse = fits ? 1.0f / bf16_to_float(scale) : 0.0f;
    const auto code = [&](int i) {
      return i < size ? static_cast<uint8_t>(int4_code(fits ? w[i] : 0.0f, inverse)) : uint8_t{8};
    };
    for (int i = trial; i < kHalf; i += kTrials) {
      codes[group * kHalf + i] = static_cast<uint8_t>(code(i) | code(i + kHalf) << 4);
    }
    if (trial == 0) scales[group] = bad ? float_to_bf16(kNan) : scale;
  }
}

#endif
