#include "exec/exponential.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace millrace {
namespace {

constexpr double kLn2 = 0.69314718055994530942;

// log(1 + x) for x from 0 to e^20: by frexp, and the series of the area tangent, whose rest is below 2^-50.
double log1p_of(double x) {
  if (x < 0x1p-20) return x - x * x / 2;
  int exponent = 0;
  double m = std::frexp(1 + x, &exponent);  // exact
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int i = 19; i > 0; i -= 2) sum = sum * square + 1.0 / i;
  return exponent * kLn2 + 2 * s * sum;
}

// By reduction with n ln 2, then Taylor's series, whose rest is below 2^-50.
double exponential_of(double x) {
  constexpr double kRounder = 0x1.8p52;
  const double n = (x / kLn2 + kRounder) - kRounder, r = x - n * kLn2;
  double term = 1, sum = 1;
  for (int i = 1; i <= 13; ++i) {
    term = term * r / i;
    sum += term;
  }
  return sum * std::bit_cast<double>((static_cast<int64_t>(n) + 1023) << 52);
}

}  // namespace

float exponential(float x) {
  if (!(x > -104.0f)) return x != x ? x : 0.0f;
  if (x > 89.0f) return std::numeric_limits<float>::infinity();
  return static_cast<float>(exponential_of(x));
}

float sigmoid(float x) { return 1 / (1 + exponential(-x)); }

float softplus(float x) {
  if (!(x > -104.0f)) return x != x ? x : 0.0f;
  if (x > 20.0f) return x;
  return static_cast<float>(log1p_of(exponential_of(x)));
}

}  // namespace millrace
