// Linear ops with FP8 or NF4 weights, device/dequantize.cpp: rows are as they are, codes become
// operands in registers.
#ifndef MILLRACE_GPU_DEQUANTIZED_LINEAR_HPP
#define MILLRACE_GPU_DEQUANTIZED_LINEAR_HPP

#include <memory>
#include <string>
#include <vector>

#include "gpu/linear_kernel.hpp"
#include "platform/bundle.hpp"

namespace millrace::gpu {

// Whether some linear op of the program has such weights, of experts or not.
bool dequantizes(const Program& program, bool of_experts = false);

// Makes the ops with FP8 or NF4 weights of one program.
class DequantizedLinears {
 public:
  // The stream outlives it, and it outlives the ops that it makes.
  DequantizedLinears(Stream& stream, Target target, const Bundle& bundle);

  std::unique_ptr<Linear> make(const LinearKind& kind, const Program& program, const Op& op);
  std::string name() const;  // "fp8, nf4"

 private:
  Stream& stream_;
  Target target_;
  std::vector<LinearKernel> fp8_, nf4_;  // by rows
  Buffer levels_;                        // of NF4, as bf16
  bool has_fp8_ = false, has_nf4_ = false;
};

}  // namespace millrace::gpu

#endif
