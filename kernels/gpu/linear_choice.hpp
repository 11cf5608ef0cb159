// Which linear ops oneDNN computes, by a fixed rule.
#ifndef MILLRACE_GPU_LINEAR_CHOICE_HPP
#define MILLRACE_GPU_LINEAR_CHOICE_HPP

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/linear_kernel.hpp"
#include "gpu/onednn.hpp"

namespace millrace::gpu {

// Who computes a kind of linear op on a device. Programs that are loaded later take the same.
struct LinearChoice {
  bool onednn = false;  // else our kernels, for all rows
  OwnRows own;          // of an op of oneDNN's
  bool floats = false;  // which it multiplies
};
using LinearChoices = std::map<LinearKind, LinearChoice>;

// Makes the linear ops of one program. oneDNN computes many rows, and our kernels up to
// kMostOwnRows over the same weights. Nothing is timed, so every start of a process decides alike.
// A row must have the same bits in every batch. So each kind of op is run when it is first met:
//   - where oneDNN's kernels give a row different bits, all rows are by our own kernels;
//   - where ours over its weights have other bits than oneDNN's, all rows are oneDNN's.
class LinearMaker {
 public:
  // All arguments outlive it and the ops that it makes.
  LinearMaker(Stream& stream, Target target, const LinearKernels& kernels, LinearChoices& choices);

  std::unique_ptr<Linear> make(const LinearKind& kind, const Program& program, const Op& op);

  // "oneDNN 3.11: 4 of 5 kinds, few rows ours in 4"; empty where it is not used.
  std::string onednn_name() const;
  // The part of the choices that bits depend on: "oneDNN 3.11: 1010", a digit for each kind in
  // order; empty where all are ours.
  std::string numerics() const;
  uint64_t scratch_bytes() const { return onednn_ ? onednn_->scratch_bytes() : 0; }

 private:
  LinearChoice choose(const LinearKind& kind, OneDnnLinear& theirs);

  Stream& stream_;
  Target target_;
  const LinearKernels& kernels_;
  LinearChoices& choices_;
  std::unique_ptr<OneDnn> onednn_;
  std::map<LinearKind, LinearChoice> made_;
};

}  // namespace millrace::gpu

#endif
