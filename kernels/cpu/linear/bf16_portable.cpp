// Linear kernels in C++ alone; four lanes, which compilers map to any SIMD unit.
#include "cpu/linear/float.hpp"

namespace millrace::cpu {
namespace {

// Two roundings: processors without FMA have no other way.
struct Fma {
  using Vector = Math<4>::Vector;
  static Vector multiply_add(Vector a, Vector b, Vector c) { return a * b + c; }
};

}  // namespace

const LinearKernels& linear_kernels_portable() {
  static constexpr LinearKernels kernels = make_float_kernels<4, 4, Fma>("portable");
  return kernels;
}

}  // namespace millrace::cpu
