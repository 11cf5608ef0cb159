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

// What a device was found to do best. Programs that are loaded later take the same, and
// so have the same bits.
struct LinearChoice {
  bool onednn;
  FewRows few;
};
using LinearChoices = std::map<LinearKind, LinearChoice>;

// Makes the linear ops of one program. A kind of op is oneDNN's where
//   - every one of its kernels gives a row the same bits, whichever rows are
//     beside it: all are run when the kind is first met; and
//   - it is not clearly slower: the product of both speedups, for one row and for many,
//     is above a half. OneDnnUse::always leaves this condition out.
// Few rows of it are ours where they have oneDNN's bits and are faster.
class LinearMaker {
 public:
  // All arguments outlive it and the ops that it makes.
  LinearMaker(Stream& stream, Target target, const LinearKernels& kernels, LinearChoices& choices);

  std::unique_ptr<Linear> make(const LinearKind& kind, const Program& program, const Op& op);

  // "oneDNN 3.11: 4 of 5 kinds, few rows ours in 4"; empty where it is not used.
  std::string onednn_name() const;
  // Of the choices, what bits depend on: "oneDNN 3.11: 1010", a digit for each kind in
  // order; empty where all are ours.
  std::string numerics() const;
  uint64_t scratch_bytes() const { return onednn_ ? onednn_->scratch_bytes() : 0; }

 private:
  LinearChoice choose(const LinearKind& kind, Linear& ours, OneDnnLinear& theirs);

  Stream& stream_;
  Target target_;
  const LinearKernels& kernels_;
  LinearChoices& choices_;
  std::unique_ptr<OneDnn> onednn_;
  std::map<LinearKind, LinearChoice> made_;
};

}  // namespace millrace::sycl_backend

#endif
