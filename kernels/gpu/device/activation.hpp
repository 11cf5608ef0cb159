// What a linear op may end with.
#ifndef MILLRACE_GPU_DEVICE_ACTIVATION_HPP
#define MILLRACE_GPU_DEVICE_ACTIVATION_HPP

#include "common.hpp"

namespace mr_linear {

// activation: mr_activation.
MR_INLINE float activate(int activation, float x) {
  switch (activation) {
    case 1:  // SiLU
      return x / (1 + sycl::exp(-x));
    case 2:  // GELU, tanh
      return 0.5f * x * (1 + sycl::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    case 3:  // GELU, erf
      return 0.5f * x * (1 + sycl::erf(x * 0.7071067812f));
    case 4:                  // ReLU
      return x < 0 ? 0 : x;  // keeps a NaN
    default:
      return x;
  }
}

}  // namespace mr_linear

#endif
