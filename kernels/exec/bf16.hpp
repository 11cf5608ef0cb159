// bf16 and f16 as bit patterns: the upper half of a float, and IEEE binary16.
#ifndef MILLRACE_EXEC_BF16_HPP
#define MILLRACE_EXEC_BF16_HPP

#include <bit>
#include <cstdint>

namespace millrace::cpu {

using bf16 = uint16_t;

constexpr float to_float(bf16 x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// Round to nearest even; a NaN stays a (quiet) NaN.
constexpr bf16 from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x40u);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float rounded(float x) { return to_float(from_float(x)); }

// Exact: every binary16 is a float. The multiplication moves the exponent's
// bias from 15 to 127 and normalizes the subnormals on its way.
inline float f16_to_float(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t magnitude = uint32_t{x & 0x7fffu} << 13;
  if ((x & 0x7c00u) == 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | magnitude);
  const float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

// Round to nearest even, subnormals too; a NaN stays a (quiet) NaN.
inline uint16_t f16_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (magnitude != magnitude) return sign | 0x7e00u | (bits >> 13 & 0x1ffu);
  if (magnitude >= 65520.0f) return sign | 0x7c00u;  // half a step above the largest
  if (magnitude < 0x1p-14f) {
    // The sum rounds to whole steps of 2^-24, which its last bits count.
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(magnitude + 0.5f));
  }
  const uint32_t rebiased = std::bit_cast<uint32_t>(magnitude) - (112u << 23);
  return sign | static_cast<uint16_t>((rebiased + 0xfffu + (rebiased >> 13 & 1u)) >> 13);
}

}  // namespace millrace::cpu

#endif
