#include "exec/angle.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness.hpp"

namespace millrace::test {
namespace {

// Steps of a float of this size.
double ulps(float x, long double exact) {
  const float size = std::max(std::fabs(static_cast<float>(exact)), 0x1p-126f);
  const float step = std::nextafter(size, std::numeric_limits<float>::infinity()) - size;
  return static_cast<double>(std::fabs(x - exact) / step);
}

void expect_nearest(float angle) {
  const SineCosine at = sine_cosine(angle);
  const long double x = angle;
  // Half a step, and what the C library's own rounding leaves.
  EXPECT_LE(ulps(at.sine, std::sin(x)), 0.5001) << angle;
  EXPECT_LE(ulps(at.cosine, std::cos(x)), 0.5001) << angle;
}

TEST(Angle, SineAndCosineAreTheNearestFloats) {
  Random random(3);
  for (const float largest : {1e-3f, 1.0f, 100.0f, 4096.0f, 131072.0f, 16777216.0f, 0x1p28f}) {
    for (int i = 0; i < 20000; ++i) {
      const float angle = largest * (static_cast<float>(random.below(1 << 24)) * 0x1p-23f - 1.0f);
      expect_nearest(angle);
    }
  }
}

// Where all bits but the last are lost: floats next to multiples of a quarter turn.
TEST(Angle, ZerosAreAsNearAsOtherNumbers) {
  for (int quarter = 1; quarter < 1 << 24; quarter += quarter < 1 << 12 ? 1 : 4099) {
    const auto angle = static_cast<float>(quarter * 1.57079632679489661923L);
    expect_nearest(angle);
    expect_nearest(-angle);
  }
}

TEST(Angle, OfZeroOfWhatIsHugeAndOfWhatIsNoNumber) {
  EXPECT_EQ(sine_cosine(0.0f).sine, 0.0f);
  EXPECT_EQ(sine_cosine(0.0f).cosine, 1.0f);
  for (const float huge : {1e20f, -3e38f}) {
    EXPECT_EQ(sine_cosine(huge).sine, 0.0f);
    EXPECT_EQ(sine_cosine(huge).cosine, 1.0f);
  }
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_TRUE(std::isnan(sine_cosine(bad).sine));
    EXPECT_TRUE(std::isnan(sine_cosine(bad).cosine));
  }
}

}  // namespace
}  // namespace millrace::test
