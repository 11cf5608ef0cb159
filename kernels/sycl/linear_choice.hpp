// Our kernels or oneDNN's: one of the two for all rows of a kind of linear op.
#ifndef MILLRACE_SYCL_LINEAR_CHOICE_HPP
#define MILLRACE_SYCL_LINEAR_CHOICE_HPP

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sycl/linear_kernel.hpp"
#include "sycl/onednn.hpp"

namespace millrace::sycl_backend {

// What a device was found to do best: true is oneDNN. Programs that are loaded
// later take the same, and so have the same bits.
using LinearChoices = std::map<LinearKind, bool>;

// Makes the linear ops of one program. A kind of op is oneDNN's where
//   - every one of its kernels gives a row the same bits, whichever rows are
//     beside it: all are run when the kind is first met; and
//   - it is faster: the product of both speedups, for one row and for many, is
//     above 1. OneDnnUse::always leaves this condition out.
class LinearMaker {
 public:
  // All arguments outlive it and the ops that it makes.
  LinearMaker(Stream& stream, Target target, const std::vector<LinearKernel>& kernels,
              LinearChoices& choices);

  std::unique_ptr<Linear> make(const LinearKind& kind, const Program& program, const Op& op);

  // "oneDNN 3.11 for 4 of 5 kinds"; empty where it is not used.
  std::string onednn_name() const;
  uint64_t scratch_bytes() const { return onednn_ ? onednn_->scratch_bytes() : 0; }

 private:
  bool prefers(const LinearKind& kind, Linear& ours, Linear& theirs);

  Stream& stream_;
  Target target_;
  const std::vector<LinearKernel>& kernels_;
  LinearChoices& choices_;
  std::unique_ptr<OneDnn> onednn_;
  std::map<LinearKind, bool> made_;
};

}  // namespace millrace::sycl_backend

#endif
