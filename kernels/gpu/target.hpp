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
  bool onednn;          // linear ops of many rows by oneDNN, see LinearMaker
  bool wide = false;    // with mma: products of four warps too, which give the same bits
  bool serial = false;  // a processor: the sub-groups of a work-group run one after the other

  bool xmx() const { return products == Products::xmx; }
  bool mma() const { return products == Products::mma; }
  // What attention is written out for: its sub-groups have at most as many lanes as a slab has tokens.
  Target written_out() const { return mma() ? Target{16, Products::simd, false} : *this; }
  std::string name() const { return xmx() ? "xmx" : mma() ? "mma" : "simd"; }
};

}  // namespace millrace::gpu

#endif
