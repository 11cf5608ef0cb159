// Attention ops that give up tokens (H2O, arXiv:2306.14048), over the kernels of an instruction set.
#ifndef MILLRACE_CPU_ATTENTION_H2O_HPP
#define MILLRACE_CPU_ATTENTION_H2O_HPP

#include <vector>

#include "cpu/attention/attention.hpp"
#include "cpu/ops/ops.hpp"
#include "exec/backend.hpp"
#include "exec/buffer.hpp"
#include "exec/h2o.hpp"

namespace millrace::cpu {

// Attention of a program with heavy tokens. A task is a sequence and one of its KV heads: it stores
// the step's tokens, attends, adds up probabilities and evicts, in order of position. Rows between
// two evictions are tiles over the places of the KV head, as if these were positions.
class H2oAttention {
 public:
  explicit H2oAttention(const Context&);
  void run(const Context&, const Op&, const Batch&, Slot in, Slot out) const;
  uint64_t bytes() const { return threads_.size(); }

 private:
  struct Task;

  void rows(const Context&, const Task&, int begin, int end, int thread) const;
  void tile(const Context&, const AttentionTile&, size_t sums, int thread, const Slot& out,
            int64_t at) const;

  TileRoom room_;
  Buffer threads_;  // [threads][room]; none without heavy tokens
};

}  // namespace millrace::cpu

#endif
