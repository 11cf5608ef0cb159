// A linear op of experts: each row meets those that it chose, or all of them with a part for each.
#ifndef MILLRACE_CPU_LINEAR_EXPERTS_HPP
#define MILLRACE_CPU_LINEAR_EXPERTS_HPP

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/linear/linear.hpp"
#include "cpu/machine/thread_pool.hpp"
#include "exec/bf16.hpp"
#include "millrace_kernels.h"

namespace millrace::cpu {

class Experts {
 public:
  // experts: of one shape.
  Experts(std::vector<std::unique_ptr<Linear>> experts, const mr_linear& op);

  // chosen: [rows][top_k][2], as of MR_OP_ROUTE; of MR_ROUTED_HEADS null. in and out as mr_linear has them; floats: what
  // `in` was rounded from, where there are tails.
  void run(const bf16* in, const float* floats, const float* chosen, int rows, void* out,
           ThreadPool& pool) const;

 private:
  // What a step brings an expert.
  struct Share {
    int expert;
    int first, rows;  // of the rows in the order of experts
    Linear::Plan plan;
    Linear::Batch batch;
    int packs, tasks;  // before this one
  };
  struct Sorted {
    std::vector<int>
        from;  // [rows * top_k] the row and choice, row * top_k + choice, in the order of experts
    std::vector<int> place;  // [rows * top_k] the reverse
    std::vector<Share> shares;
    int packs = 0, tasks = 0;  // of all shares
  };
  Sorted sort(const float* chosen, int rows, int threads) const;
  void pack(const Sorted& sorted, const bf16* in, const float* chosen, std::byte* copies,
            ThreadPool& pool) const;
  void add_up(const Sorted& sorted, const float* chosen, const float* products, int rows,
              float* out, ThreadPool& pool) const;

  std::vector<std::unique_ptr<Linear>> experts_;
  int top_k_, tail_;
  bool slices_;   // each choice has a part of the row
  bool reduces_;  // the op adds up what experts give, by their weights
  bool accumulates_;
  bool weighs_in_;  // the weights are factors of what the op that does not reduce reads
};

}  // namespace millrace::cpu

#endif
