#include "exec/quantize.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "millrace_kernels.h"

namespace millrace {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Half of 2^24: adding it rounds a small number to the nearest integer, ties to even.
constexpr float kRounder = 0x1.8p23f;

// The weight of largest magnitude; NaN if any is not finite.
float largest(const float* w, int64_t n) {
  float top = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(w[i])) return kNan;
    if (std::fabs(w[i]) > std::fabs(top)) top = w[i];
  }
  return top;
}

float int4_code(float w, float inverse) {
  const float code = (w * inverse + kRounder) - kRounder + 8.0f;
  return std::min(std::max(code, 0.0f), 15.0f);
}

float int4_error(const float* w, int n, float scale) {
  typedef float Four __attribute__((vector_size(16)));
  const float inverse = 1.0f / scale;
  Four sums = {};
  int i = 0;
  for (; i + 4 <= n; i += 4) {
    Four x;
    std::memcpy(&x, w + i, sizeof x);
    Four code = (x * inverse + kRounder) - kRounder + 8.0f;  // int4_code
    code = code > 0.0f ? code : Four{};
    code = code < 15.0f ? code : Four{} + 15.0f;
    const Four d = x - scale * (code - 8.0f);
    sums += d * d;
  }
  float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (; i < n; ++i) {
    const float d = w[i] - scale * (int4_code(w[i], inverse) - 8.0f);
    sum += d * d;
  }
  return sum;
}

// The code of the nearest e4m3fn, ties to even, of a magnitude up to 448 and its rounding.
uint8_t fp8_code(float x) {
  constexpr float kLeastNormal = 0x1p-6f, kSubnormals = 0x1p9f;
  if (x < kLeastNormal) {  // the code of 2^-6 itself is 8
    return static_cast<uint8_t>((x * kSubnormals + kRounder) - kRounder);
  }
  constexpr int kDropped = 20, kBias = (127 - 7) << 3;
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t even = bits >> kDropped & 1;
  return static_cast<uint8_t>(((bits + (1u << (kDropped - 1)) - 1 + even) >> kDropped) - kBias);
}

// How many of the levels' midpoints are below x.
uint8_t nf4_code(float x) {
  int code = 0;
  for (int i = 0; i < 15; ++i) code += x > 0.5f * (kNf4Levels[i] + kNf4Levels[i + 1]) ? 1 : 0;
  return static_cast<uint8_t>(code);
}

}  // namespace

float quantize_int8(const float* w, int64_t n, int8_t* codes) {
  const float top = std::fabs(largest(w, n));
  const float scale = top / 127.0f;
  if (!std::isnormal(scale)) {  // zero, too small to divide by, or not finite
    std::fill(codes, codes + n, int8_t{0});
    return std::isnan(top) ? kNan : 0.0f;
  }
  const float inverse = 127.0f / top;
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<int8_t>((w[i] * inverse + kRounder) - kRounder);
  }
  return scale;
}

float quantize_int4(const float* w, int n, uint8_t* codes) {
  const float top = largest(w, n);
  std::fill(codes, codes + n, uint8_t{8});
  if (!std::isfinite(top)) return kNan;
  float best = 0, least = std::numeric_limits<float>::infinity();
  for (const float at : {-8.0f, 7.0f}) {
    for (const float fraction : {1.0f, 0.95f, 0.9f, 0.85f}) {
      const float scale = cpu::to_float(cpu::from_float(top / at * fraction));
      if (!std::isnormal(scale)) return 0;
      const float error = int4_error(w, n, scale);
      if (error < least) best = scale, least = error;
    }
  }
  const float inverse = 1.0f / best;
  for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(int4_code(w[i], inverse));
  return best;
}

float quantize_fp8(const float* w, int64_t n, uint8_t* codes) {
  const float top = std::fabs(largest(w, n));
  const float scale = top / kFp8Largest;
  if (!std::isnormal(scale)) {
    std::fill(codes, codes + n, uint8_t{0});
    return std::isnan(top) ? kNan : 0.0f;
  }
  const float inverse = kFp8Largest / top;
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(fp8_code(std::fabs(w[i] * inverse)) | std::signbit(w[i]) << 7);
  }
  return scale;
}

float quantize_nf4(const float* w, int n, uint8_t* codes) {
  constexpr uint8_t kZero = 7;
  const float top = std::fabs(largest(w, n));
  std::fill(codes, codes + n, kZero);
  if (std::isnan(top)) return kNan;
  const float scale = cpu::rounded(top);
  if (!std::isfinite(scale)) return kNan;  // beyond the largest bf16
  if (!std::isnormal(scale)) return 0;
  const float inverse = 1.0f / scale;
  for (int i = 0; i < n; ++i) codes[i] = nf4_code(w[i] * inverse);
  return scale;
}

Kivi quantize_kivi(const float* x, int n, int stride, uint8_t* codes) {
  constexpr float kLargestCode = 3;
  float least = std::numeric_limits<float>::infinity(), most = -least;
  bool finite = true;
  for (int i = 0; i < n; ++i) {
    const float value = x[int64_t{i} * stride];
    least = std::min(least, value), most = std::max(most, value);
    finite = finite && std::isfinite(value);
  }
  std::fill(codes, codes + n, uint8_t{0});
  const float zero = cpu::rounded(least), scale = cpu::rounded((most - zero) / kLargestCode);
  if (!finite || !std::isfinite(scale) || !std::isfinite(zero)) return {kNan, kNan};
  if (!std::isnormal(scale)) return {0, zero};
  const float inverse = 1.0f / scale;
  for (int i = 0; i < n; ++i) {
    const float code = ((x[int64_t{i} * stride] - zero) * inverse + kRounder) - kRounder;
    codes[i] = static_cast<uint8_t>(std::clamp(code, 0.0f, kLargestCode));
  }
  return {scale, zero};
}

float quantize(int32_t weights, const float* w, int n, uint8_t* codes) {
  switch (weights) {
    case MR_WEIGHTS_INT8:
      return quantize_int8(w, n, reinterpret_cast<int8_t*>(codes));
    case MR_WEIGHTS_INT4:
      return quantize_int4(w, n, codes);
    case MR_WEIGHTS_FP8:
      return quantize_fp8(w, n, codes);
    default:
      return quantize_nf4(w, n, codes);
  }
}

float code_value(int32_t weights, uint8_t code) {
  switch (weights) {
    case MR_WEIGHTS_INT8:
      return static_cast<int8_t>(code);
    case MR_WEIGHTS_INT4:
      return static_cast<float>(code - 8);
    case MR_WEIGHTS_FP8:
      return fp8_value(code);
    default:
      return kNf4Levels[code];
  }
}

}  // namespace millrace
