// The attention ops, over the kernels of an instruction set.
#ifndef MILLRACE_CPU_ATTENTION_ATTENTION_HPP
#define MILLRACE_CPU_ATTENTION_ATTENTION_HPP

#include <vector>

#include "cpu/ops/ops.hpp"
#include "exec/backend.hpp"
#include "exec/buffer.hpp"
#include "exec/cascade.hpp"

namespace millrace::cpu {

// What a thread needs for the largest tile of a program: scratch, and two states.
struct TileRoom {
  size_t scratch_bytes = 0, state_floats = 0;

  explicit TileRoom(const Context&);
  size_t bytes() const { return scratch_bytes + 2 * sizeof(float) * state_floats; }
};

// All attention ops of a program: they differ in their arguments only.
class Attention {
 public:
  explicit Attention(const Context&);
  void begin(const Batch&);  // before the first op of a step
  void run(const Context&, const Op&, const Batch&, Slot in, Slot sink_q, Slot out);
  uint64_t bytes() const { return threads_.size() + states_.size(); }

 private:
  // Query heads of one KV head.
  struct Heads {
    int first, count, kv_head;
  };
  // States of the same queries, one after the other.
  struct States {
    float* memory = nullptr;
    size_t floats = 0;  // of one
    int n = 0;
    int queries = 0, first = 0;  // as AttentionState has them

    AttentionState operator[](int i) const { return {memory + i * floats, queries, first}; }
  };
  // Some rows of one sequence, some heads of one KV head.
  struct Tile {
    AttentionTile arguments;
    AttentionTile apart;  // sinks, or the bf16 keys of KIVI; its state is merged first; end 0: none
    int64_t out;          // element of the out slot
    States shared;        // of the keys before `begin` that other sequences have too, in order
    States own;           // of the pieces that are separate tasks, in order
  };
  // Rows of several sequences over the keys that they share.
  struct SharedTile {
    AttentionTile arguments;
    States states;  // of each piece; or of all whole pieces, merged, and of what follows them
  };
  // A tile's keys, or one piece of them.
  struct Task {
    int tile;
    int piece;  // its number, or kAll or kApart
    AttentionState state;
  };
  // Where a sequence has its rows in shared tiles.
  struct Place {
    int tile = -1;  // the first heads', the others' follow; -1: nowhere
    int row = 0;
  };

  void plan_heads(const Op&);
  void plan_shared(const Context&, const Op&, const Batch&, Slot in);
  void add_shared(const Context&, const Op&, const Batch&, Slot in, const Cascade::Group&,
                  int begin, int end, bool divide);
  void plan_tiles(const Context&, const Op&, const Batch&, Slot in, Slot sink_q, Slot out);
  static void split_recent(const Context&, const Op&, const Sequence&, Slot in, int kv_head, Tile&);
  void plan_tasks(const Context&);
  bool take(const Context&, const AttentionTile&, int n, States&);
  void run_shared(const Context&, const SharedTile&, int thread) const;
  void run_tile(const Context&, const Tile&, int thread, Slot out) const;
  void run_apart(const Context&, const Tile&, int thread, const AttentionState&) const;
  void merge_split(const Context&, const Tile&, Slot out) const;
  void merge(const Context&, const AttentionTile&, const States&, int first,
             const AttentionState& total) const;
  void finish(const Context&, const Tile&, const AttentionState&, Slot out) const;
  void* scratch(int thread) const;
  States thread_states(int thread, int queries) const;

  int most_shared_rows_;     // of a sequence
  int least_shared_tokens_;  // of a group
  TileRoom room_;
  Buffer threads_;    // [threads][room]
  Buffer states_;     // of shared tiles, and of pieces that are separate tasks
  size_t taken_ = 0;  // floats of states_

  Cascade cascade_;
  std::vector<Heads> heads_;
  std::vector<SharedTile> shared_;
  std::vector<Place> places_;  // [sequences]
  std::vector<Tile> tiles_;
  std::vector<Task> shared_tasks_, tasks_;
  std::vector<int> splits_;  // tiles whose pieces are separate tasks
};

}  // namespace millrace::cpu

#endif
