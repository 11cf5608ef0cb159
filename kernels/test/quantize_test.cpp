// What a weight type means, and the 16-bit floats.
#include "exec/quantize.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "exec/bf16.hpp"

namespace millrace {
namespace {

using cpu::f16_to_float;
using cpu::from_float;
using cpu::to_float;

TEST(Quantize, Int8IsWithinHalfAStepOfTheLargestOver127) {
  const float w[] = {-12.7f, 0.04f, 0.06f, 6.35f, 0.0f};
  int8_t codes[5];
  EXPECT_FLOAT_EQ(quantize_int8(w, 5, codes), 0.1f);
  EXPECT_EQ(std::vector<int>(codes, codes + 5), (std::vector<int>{-127, 0, 1, 64, 0}));
  const float zeros[] = {0.0f, -0.0f};
  EXPECT_EQ(quantize_int8(zeros, 2, codes), 0.0f);
}

TEST(Quantize, Int4TakesTheScaleOfLeastError) {
  // Exact with -8: the largest maps to the end of the longer side, here by a negative scale.
  const float w[] = {4.0f, -3.5f, 0.5f, -1.0f};
  uint8_t codes[4];
  EXPECT_EQ(quantize_int4(w, 4, codes), -0.5f);
  EXPECT_EQ(std::vector<int>(codes, codes + 4), (std::vector<int>{0, 15, 7, 10}));
  // One outlier among many small weights costs more than it brings to keep whole.
  std::vector<float> many(128, 0.47f);
  many[0] = 8.0f;
  uint8_t all[128];
  const float scale = quantize_int4(many.data(), 128, all);
  EXPECT_LT(std::fabs(scale), 1.0f);
  double error = 0, plain = 0;
  for (int i = 0; i < 128; ++i) {
    error += std::pow(many[i] - scale * (all[i] - 8), 2);
    plain += std::pow(many[i] - std::round(many[i]), 2);  // the scale -1 of the largest
  }
  EXPECT_LT(error, plain);
}

TEST(Quantize, EveryFp8CodeIsItsOwn) {
  EXPECT_EQ(fp8_value(0x7e), 448.0f);
  EXPECT_EQ(fp8_value(0x38), 1.0f);
  EXPECT_EQ(fp8_value(0x01), 0x1p-9f);  // the least subnormal
  EXPECT_EQ(fp8_value(0x87), -7 * 0x1p-9f);
  std::vector<float> values;
  std::vector<uint8_t> expected, codes(254);
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN
    values.push_back(fp8_value(static_cast<uint8_t>(code)));
    expected.push_back(static_cast<uint8_t>(code));
  }
  EXPECT_EQ(quantize_fp8(values.data(), 254, codes.data()), 1.0f);
  EXPECT_EQ(codes, expected);
}

TEST(Quantize, Fp8RoundsToTheNearestAndToEven) {
  // Between 1 and 1.125, between 1.125 and 1.25, among the subnormals, and up to the normal ones.
  const float w[] = {448, 1.0625f, 1.1875f, -1.07f, 1.5 * 0x1p-9f, 0.5 * 0x1p-9f, 7.6 * 0x1p-9f};
  uint8_t codes[7];
  EXPECT_EQ(quantize_fp8(w, 7, codes), 1.0f);
  EXPECT_EQ(std::vector<int>(codes, codes + 7),
            (std::vector<int>{0x7e, 0x38, 0x3a, 0xb9, 0x02, 0x00, 0x08}));
}

TEST(Quantize, Nf4TakesTheNearestLevel) {
  EXPECT_EQ(kNf4Levels[7], 0.0f);
  EXPECT_NEAR(kNf4Levels[1], -0.6961928, 0.002);
  EXPECT_NEAR(kNf4Levels[12], 0.4407098, 0.002);
  std::vector<float> w = {-3.0f};  // the scale, exact in bf16
  for (int i = 1; i < 16; ++i) w.push_back(3.0f * kNf4Levels[i]);
  for (int i = 1; i < 16; ++i) {  // on either side of the middle of two
    w.push_back(3.0f * (0.51f * kNf4Levels[i - 1] + 0.49f * kNf4Levels[i]));
    w.push_back(3.0f * (0.49f * kNf4Levels[i - 1] + 0.51f * kNf4Levels[i]));
  }
  std::vector<uint8_t> codes(w.size());
  EXPECT_EQ(quantize_nf4(w.data(), static_cast<int>(w.size()), codes.data()), 3.0f);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(codes[i], i);
  for (int i = 1; i < 16; ++i) {
    EXPECT_EQ(codes[14 + 2 * i], i - 1);
    EXPECT_EQ(codes[15 + 2 * i], i);
  }
  const float zeros[] = {0.0f, -0.0f};
  EXPECT_EQ(quantize_nf4(zeros, 2, codes.data()), 0.0f);
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(from_float(1.0f), 0x3f80);
  EXPECT_EQ(from_float(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // a tie, down to even
  EXPECT_EQ(from_float(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // a tie, up to even
  EXPECT_EQ(from_float(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(from_float(3.4e38f), 0x7f80);  // beyond the largest
  EXPECT_EQ(from_float(-INFINITY), 0xff80);
  EXPECT_TRUE(std::isnan(to_float(from_float(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Bf16, EveryF16IsExact) {
  for (uint32_t x = 0; x < 0x10000; ++x) {
    const int exponent = x >> 10 & 31, fraction = x & 1023;
    const float y = f16_to_float(static_cast<uint16_t>(x));
    ASSERT_EQ(std::signbit(y), (x & 0x8000) != 0);
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(y), fraction != 0);
      ASSERT_EQ(std::isinf(y), fraction == 0);
    } else {
      const double expected =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      ASSERT_EQ(std::fabs(y), expected) << x;
    }
  }
}

}  // namespace
}  // namespace millrace
