// Norms that write the operand of the linear ops that follow instead of rows.
#ifndef MILLRACE_CPU_LINEAR_FUSED_NORMS_HPP
#define MILLRACE_CPU_LINEAR_FUSED_NORMS_HPP

#include <vector>

#include "cpu/linear/linear.hpp"
#include "cpu/machine/pages.hpp"
#include "cpu/ops/ops.hpp"

namespace millrace::cpu {

// FusedNorms are the norms of a program whose rows only linear ops with quantized weights read,
// all before the next norm and all alike, so that one operand serves them.
class FusedNorms {
 public:
  // linears: [ops], null for the ops of other kinds.
  FusedNorms(const Context& context, const std::vector<const Linear*>& linears);

  // Whether the op with this index does so.
  bool leaves_operand(int norm) const { return norms_[norm] != nullptr; }
  bool reads_operand(int linear) const { return reads_[linear]; }

  void run(int index, const Norm& norm, int rows, Slot in);
  // What the last of them left.
  const Linear::Operand& operand() const { return operand_; }

  uint64_t bytes() const { return room_.size() + normed_.size(); }

 private:
  const bf16* normed_rows(const Norm& norm, Slot in, int first, int count, int thread) const;

  const Context& context_;
  std::vector<const Linear*> norms_;  // [ops] a reader of each of these norms
  std::vector<bool> reads_;           // [ops]
  Pages room_;
  Linear::Operand operand_{};
  Buffer normed_;  // [threads][Linear::kPackRows] rows
};

}  // namespace millrace::cpu

#endif
