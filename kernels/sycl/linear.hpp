// A linear op's weights in the order of device/linear.cpp, on the device.
#ifndef MILLRACE_SYCL_LINEAR_HPP
#define MILLRACE_SYCL_LINEAR_HPP

#include <vector>

#include "exec/program.hpp"
#include "sycl/runtime.hpp"
#include "sycl/shapes.hpp"
#include "sycl/stream.hpp"

namespace millrace::sycl_backend {

// The kernels by the most rows that they take at once, ascending.
struct LinearKernel {
  int rows;
  sycl::kernel kernel;
};

class Linear {
 public:
  // type: of the operands, MR_F16 or MR_BF16.
  Linear(Stream& stream, Target target, mr_dtype type, const Program& program, const Op& op);

  void run(Stream& stream, const std::vector<LinearKernel>& kernels, int rows, const void* in,
           void* out) const;
  uint64_t bytes() const { return weights_.size() + bias_.size(); }

 private:
  void cut(const Stream& stream);

  Target target_;
  LinearShape shape_{};
  int column_groups_;  // of kColumnBlocks blocks
  Buffer weights_;     // [column blocks][depth blocks][8][lanes] pairs
  Buffer bias_;        // [column blocks][lanes] floats
};

}  // namespace millrace::sycl_backend

#endif
