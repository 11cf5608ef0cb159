// Functions of vectors of floats. As cpu/linear/tile.hpp, it is included after the compiler was
// switched to an instruction set, and everything is in an unnamed namespace.
#ifndef MILLRACE_CPU_MACHINE_MATH_TILE_HPP
#define MILLRACE_CPU_MACHINE_MATH_TILE_HPP

#include <cstdint>
#include <cstring>

#include "millrace_kernels.h"

namespace millrace::cpu {
namespace {

// Target: multiply_add(a, b, c) is a * b + c, rounded once where the instruction set can.
template <int kLanes>
struct Math {
  typedef float Vector __attribute__((vector_size(4 * kLanes)));
  typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

  // Minus zero is x whatever x is, and no instruction; plus zero is not.
  static Vector splat(float x) { return x - Vector{}; }

  // e^x, relative error below 2^-22 in [-87, 88], where x is clamped; NaN stays.
  // Cody-Waite reduction by n ln 2; on [-ln2/2, ln2/2] a polynomial through Chebyshev's
  // nodes, error 2^-26.
  template <class Target>
  static Vector exp(Vector x) {
    const Vector low = splat(-87.0f), high = splat(88.0f);
    x = x < low ? low : x;
    x = x > high ? high : x;
    const Vector shifter = splat(0x1.8p23f);  // adding it rounds to an integer
    const Vector shifted = Target::multiply_add(x, splat(1.44269504f), shifter);
    const Vector n = shifted - shifter;
    Vector r = Target::multiply_add(n, splat(-0.693359375f), x);
    r = Target::multiply_add(n, splat(2.12194440e-4f), r);
    // 1 + r + r^2 (0.5 + a r + r^2 (b + c r + d r^2)), in short chains
    const Vector r2 = r * r;
    const Vector inner =
        Target::multiply_add(splat(0.00139262143f), r2,
                             Target::multiply_add(splat(0.00836320315f), r, splat(0.0416665561f)));
    const Vector outer = Target::multiply_add(splat(0.166665763f), r, splat(0.5f));
    const Vector p = Target::multiply_add(Target::multiply_add(inner, r2, outer), r2, r) + 1.0f;
    const Ints exponent = (Ints)shifted << 23;  // n is in the low bits of the mantissa
    return (Vector)((Ints)p + exponent);
  }

  // Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
  template <class Target>
  static Vector erf(Vector x) {
    const Vector a = x < 0.0f ? -x : x;
    const Vector t = 1.0f / (1.0f + 0.3275911f * a);
    Vector p = splat(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const Vector y = 1.0f - p * t * exp<Target>(-a * a);
    return x < 0.0f ? -y : y;
  }

  template <class Target>
  static Vector activate(Vector x, int activation) {
    switch (activation) {
      case MR_ACT_SILU:
        return x / (1.0f + exp<Target>(-x));
      case MR_ACT_GELU_TANH:  // (1 + tanh(u)) / 2 = 1 / (1 + e^-2u)
        return x / (1.0f + exp<Target>(-1.595769122f * (x + 0.044715f * x * x * x)));
      case MR_ACT_GELU_ERF:
        return 0.5f * x * (1.0f + erf<Target>(x * 0.707106781f));
      case MR_ACT_RELU:
        return x < 0.0f ? splat(0.0f) : x;
      default:
        return x;
    }
  }

  static Vector load(const float* p) {
    Vector x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
