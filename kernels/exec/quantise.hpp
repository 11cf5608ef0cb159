// What a weight type means: how the numbers of a checkpoint become codes. Every
// backend takes its codes from here, so that they are the same everywhere.
#ifndef MILLRACE_EXEC_QUANTISE_HPP
#define MILLRACE_EXEC_QUANTISE_HPP

#include <cstdint>

namespace millrace {

// An output channel of n weights as w = scale * code, codes -127 to 127: the scale is
// the largest magnitude over 127. A channel with a NaN or an infinity has the scale NaN.
float quantise_int8(const float* w, int64_t n, int8_t* codes);

// A group of n weights as w = scale * (code - 8), codes 0 to 15. The scale is a bf16,
// and negative where that is the better fit: the one of least squared error among
// fractions of what maps the weight of largest magnitude to -8, or to 7. A group with a
// NaN or an infinity has the scale NaN.
float quantise_int4(const float* w, int n, uint8_t* codes);

}  // namespace millrace

#endif
