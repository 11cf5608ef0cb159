// How kernels are built for a device.
#ifndef MILLRACE_GPU_TARGET_HPP
#define MILLRACE_GPU_TARGET_HPP

#include <string>

namespace millrace::gpu {

// What computes products.
enum class Products {
  simd,  // written out
  xmx,   // Intel's matrix engine
  mma,   // NVIDIA's tensor cores
};

struct Target {
  int lanes;  // of a sub-group
  Products products;
  bool onednn;  // linear ops of many rows by oneDNN, see LinearMaker

  bool xmx() const { return products == Products::xmx; }
  bool mma() const { return products == Products::mma; }
  std::string name() const { return xmx() ? "xmx" : mma() ? "mma" : "simd"; }
};

}  // namespace millrace::gpu

#endif
