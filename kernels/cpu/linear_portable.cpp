// Linear kernels in C++ alone; four lanes, which compilers map to any SIMD unit.
#include "linear_float.hpp"

namespace millrace::cpu {

const LinearKernels& linear_kernels_portable() {
  static constexpr LinearKernels kernels = make_float_kernels<4, 4>("portable");
  return kernels;
}

}  // namespace millrace::cpu
