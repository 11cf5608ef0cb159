// The attention ops, over the kernels of an instruction set.
#ifndef MILLRACE_CPU_ATTENTION_ATTENTION_HPP
#define MILLRACE_CPU_ATTENTION_ATTENTION_HPP

#include <vector>

#include "cpu/ops/ops.hpp"
#include "exec/backend.hpp"
#include "exec/buffer.hpp"

namespace millrace::cpu {

// All attention ops of a program: they differ in their arguments only.
class Attention {
 public:
  explicit Attention(const Context&);
  void run(const Context&, const Op&, const Batch&, Slot in, Slot out);
  uint64_t bytes() const { return threads_.size() + states_.size(); }

 private:
  // Some rows of one sequence, some heads of one KV head.
  struct Tile {
    AttentionTile arguments;
    int64_t out;  // element of the out slot
  };
  // A tile's keys, or one piece of them.
  struct Task {
    int tile;
    int piece;     // -1: all, to the end
    float* state;  // of the piece
  };
  // A tile whose pieces are separate tasks.
  struct Split {
    int tile;
    float* states;  // [pieces]
  };

  void plan_tiles(const Context&, const Op&, const Batch&, Slot in, Slot out);
  void plan_tasks(const Context&);
  void run_tile(const Context&, const Tile&, int thread, Slot out) const;
  void merge_split(const Context&, const Split&, Slot out) const;
  void finish(const Context&, const Tile&, const float* state, Slot out) const;
  void* scratch(int thread) const;

  size_t scratch_bytes_, state_floats_;
  Buffer threads_;  // [threads][scratch, two states]
  Buffer states_;   // of pieces that are separate tasks
  std::vector<Tile> tiles_;
  std::vector<Task> tasks_;
  std::vector<Split> splits_;
};

}  // namespace millrace::cpu

#endif
