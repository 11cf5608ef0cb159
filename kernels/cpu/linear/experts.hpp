// A linear op of experts: each row meets those that it chose.
#ifndef MILLRACE_CPU_LINEAR_EXPERTS_HPP
#define MILLRACE_CPU_LINEAR_EXPERTS_HPP

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/linear/linear.hpp"
#include "cpu/machine/thread_pool.hpp"
#include "exec/bf16.hpp"

namespace millrace::cpu {

class Experts {
 public:
  // experts: of one shape. top_k: that a row chose. reduces: the op adds up what they give, by their
  // weights; weighs_in: these are factors of what the other op reads instead.
  Experts(std::vector<std::unique_ptr<Linear>> experts, int top_k, bool reduces, bool accumulates,
          bool weighs_in);

  // chosen: [rows][top_k][2], as of MR_OP_ROUTE. in: [rows, in_width] and out: [rows, top_k * out_width], where the op
  // reduces in: [rows, top_k * in_width] and out: [rows, out_width] floats.
  void run(const bf16* in, const float* chosen, int rows, void* out, ThreadPool& pool) const;

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
  int top_k_;
  bool reduces_, accumulates_, weighs_in_;
};

}  // namespace millrace::cpu

#endif
