#include "exec/angle.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace millrace {
namespace {

// A quarter turn: three parts of 25 bits, so that up to 2^28 of each are exact, and the rest.
constexpr double kFirst = 0x1.921fb5p+0, kSecond = 0x1.110b46p-26, kThird = 0x1.1a6263p-54,
                 kRest = 0x1.8a2e03707344ap-81;
constexpr double kQuartersPerRadian = 0x1.45f306dc9c883p-1;
constexpr double kShifter = 0x1.8p52;  // adding it rounds to an integer, in the low bits

// Taylor's series up to degree 17 and 18: on an eighth of a turn what is left out is below 2^-60.
constexpr int kTerms = 9;

// 1 / first!, 1 / (first + 2)!, ...
template <int kCount>
constexpr std::array<double, kCount> inverse_factorials(int first) {
  std::array<double, kCount> inverse{};
  double factorial = 1;
  for (int i = 1, n = 0; n < kCount; ++i) {
    if (i >= first && (i - first) % 2 == 0) inverse[n++] = 1 / (factorial * i);
    factorial *= i;
  }
  return inverse;
}

constexpr auto kSine = inverse_factorials<kTerms>(1);    // of x, x^3, ...
constexpr auto kCosine = inverse_factorials<kTerms>(2);  // of x^2, x^4, ...

// a - x (b - x (c - ...
template <size_t kCount>
double alternating(const std::array<double, kCount>& terms, double x) {
  double sum = terms.back();
  for (int i = kCount - 2; i >= 0; --i) sum = terms[i] - x * sum;
  return sum;
}

}  // namespace

// Additions and products of doubles alone, each rounded once (-ffp-contract=off): no compiler
// and no processor of IEEE 754 has another result.
SineCosine sine_cosine(float angle) {
  constexpr double kMost = 0x1p28;
  const double x = angle;
  if (x > kMost || x < -kMost) {
    const float zero = angle - angle;  // NaN of what is infinite
    return {zero, 1 + zero};
  }
  const double shifted = x * kQuartersPerRadian + kShifter;
  const double quarters = shifted - kShifter;
  const double left = ((x - quarters * kFirst) - quarters * kSecond) - quarters * kThird;
  const double r = left - quarters * kRest, square = r * r;
  const auto sine = static_cast<float>(r * alternating(kSine, square));
  const auto cosine = static_cast<float>(1 - square * alternating(kCosine, square));
  switch (std::bit_cast<uint64_t>(shifted) & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

}  // namespace millrace
