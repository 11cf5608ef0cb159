// Linear ops by our own kernels, device/linear.cpp.
#ifndef MILLRACE_GPU_LINEAR_KERNEL_HPP
#define MILLRACE_GPU_LINEAR_KERNEL_HPP

#include <vector>

#include "gpu/linear.hpp"
#include "platform/runtime.hpp"
#include "gpu/shapes.hpp"

namespace millrace::gpu {

// The kernels by the most rows that they take at once, ascending.
struct LinearKernel {
  int rows;
  Kernel kernel;
};
inline const LinearKernel& kernel_for(const std::vector<LinearKernel>& kernels, int rows) {
  for (const LinearKernel& k : kernels) {
    if (k.rows >= rows) return k;
  }
  return kernels.back();
}

// The kernels of device/linear.cpp and of device/packed.cpp.
struct LinearKernels {
  int lanes;  // of a sub-group
  std::vector<LinearKernel> tiles, packed;
  Kernel finish;
};

class KernelLinear : public Linear {
 public:
  // The kernels outlive it.
  KernelLinear(Stream& stream, Target target, const std::vector<LinearKernel>& kernels,
               const LinearKind& kind, const Program& program, const Op& op);

  void run(Stream& stream, int rows, const void* in, void* out) override;
  uint64_t bytes() const override { return weights_.size() + bias_.size(); }
  WeightBlocks blocks() const override {
    return {shape_.gated ? nullptr : weights_.data(), lanes_, shape_.depth_blocks * kDepth / 2};
  }

 private:
  const std::vector<LinearKernel>& kernels_;
  int lanes_;
  LinearShape shape_{};
  int column_groups_;  // of kColumnBlocks blocks
  Buffer weights_;     // [column blocks][depth blocks][8][lanes] pairs
  Buffer bias_;        // [column blocks][lanes] floats
};

}  // namespace millrace::gpu

#endif
