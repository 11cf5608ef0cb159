// What a weight type means: how the numbers of a checkpoint become codes. Every
// backend takes its codes from here, so that they are the same everywhere.
#ifndef MILLRACE_EXEC_QUANTIZE_HPP
#define MILLRACE_EXEC_QUANTIZE_HPP

#include <cstdint>

#include "exec/bf16.hpp"
#include "millrace_kernels.h"

namespace millrace {

// An output channel of n weights as w = scale * code, codes -127 to 127: the scale is
// the largest magnitude over 127. A channel with a NaN or an infinity has the scale NaN.
float quantize_int8(const float* w, int64_t n, int8_t* codes);

// A group of n weights as w = scale * (code - 8), codes 0 to 15. The scale is a bf16,
// and negative where that is the better fit: the one of least squared error among
// fractions of what maps the weight of largest magnitude to -8, or to 7. A group with a
// NaN or an infinity has the scale NaN.
float quantize_int4(const float* w, int n, uint8_t* codes);

// FP8 e4m3fn (OCP 8-bit floating point, 2023): sign, four bits of exponent, three of
// mantissa; up to 448, no infinities, and no NaN among the codes of weights.
inline constexpr float kFp8Largest = 448.0f;

constexpr float fp8_value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  float x = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa);
  for (int e = exponent == 0 ? 1 : exponent; e < 10; ++e) x *= 0.5f;
  for (int e = 10; e < exponent; ++e) x *= 2.0f;
  return code >> 7 ? -x : x;
}

// An output channel of n weights as w = scale * fp8_value(code): the scale is the largest
// magnitude over 448, the code that of the nearest value. NaN as quantize_int8.
float quantize_fp8(const float* w, int64_t n, uint8_t* codes);

// The levels of NF4 (Dettmers et al., QLoRA, 2023, appendix E), quantiles of a normal
// distribution, as bitsandbytes writes them to files.
inline constexpr float kNf4Exact[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// The same rounded to bf16, as they are multiplied.
struct Nf4Levels {
  float of[16];
};
inline constexpr Nf4Levels kNf4Rounded = [] {
  Nf4Levels levels{};
  for (int i = 0; i < 16; ++i) levels.of[i] = cpu::rounded(kNf4Exact[i]);
  return levels;
}();
inline constexpr const float (&kNf4Levels)[16] = kNf4Rounded.of;

// A group of n weights as w = scale * kNf4Levels[code]: the scale is their largest
// magnitude as a bf16, the code that of the nearest level. NaN as quantize_int4.
float quantize_nf4(const float* w, int n, uint8_t* codes);

// A code stands for zero + scale * code. Both are bf16.
struct Kivi {
  float scale, zero;
};

// n numbers, stride apart, as codes: the zero is the smallest, the scale a third of the distance to
// the largest (KIVI, arXiv:2402.02750, section 3.1). With a NaN or an infinity both are NaN.
Kivi quantize_kivi(const float* x, int n, int stride, uint8_t* codes);

// The first position whose key and value are bf16 for the row at a position (MR_KV_KIVI).
constexpr int kivi_exact(int position) {
  const int before = position + 1 - MR_KIVI_TOKENS;
  return before <= 0 ? 0 : before / MR_KIVI_TOKENS * MR_KIVI_TOKENS;
}

// The codes of n weights of a type (mr_weights) other than 16 bits, and their scale; int8's are
// two's complement.
float quantize(int32_t weights, const float* w, int n, uint8_t* codes);

// What a code stands for, over the scale.
float code_value(int32_t weights, uint8_t code);

}  // namespace millrace

#endif
