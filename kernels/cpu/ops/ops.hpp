// The ops other than linear and attention, over the kernels of an instruction set. An object
// is what one op of a program keeps from load to load.
#ifndef MILLRACE_CPU_OPS_OPS_HPP
#define MILLRACE_CPU_OPS_OPS_HPP

#include <vector>

#include "cpu/machine/thread_pool.hpp"
#include "cpu/ops/kernels.hpp"
#include "cpu/ops/kivi.hpp"
#include "exec/backend.hpp"
#include "exec/buffer.hpp"

namespace millrace::cpu {

struct Context {
  const Program& program;
  const KvLayout& kv;
  const OpKernels& kernels;
  const AttentionKernels& attention;
  ThreadPool& pool;
};

// A vector's elements as floats; empty for a null tensor.
std::vector<float> floats(const mr_tensor* vector);

// The number of tasks for this many rows: each is long enough that handing it out costs little,
// and all threads get as many.
int row_tasks(int rows, int width, int threads);

// Runs fn(row, thread) for rows [0, rows) of `width` elements.
template <class F>
void for_rows(ThreadPool& pool, int rows, int width, F&& fn) {
  const int64_t tasks = row_tasks(rows, width, pool.size());
  pool.parallel_for(static_cast<int>(tasks), [&](int task, int thread) {
    const auto end = static_cast<int>(rows * (task + 1) / tasks);
    for (auto row = static_cast<int>(rows * task / tasks); row < end; ++row) fn(row, thread);
  });
}

// out[r] = scale * table[token[r]] + positions[position[r] + offset]; the tables
// are read where they lie.
void embed(const Context&, const Op&, const Batch&, Slot out);

class Norm {
 public:
  Norm(const Context&, const Op&);
  void run(const Context&, int rows, Slot in, Slot out) const;
  // One row, to what the out slot's type says.
  void row(const Context& c, const float* in, void* out) const { c.kernels.norm(row_, in, out); }
  uint64_t bytes() const { return (weight_.size() + bias_.size()) * sizeof(float); }

 private:
  int groups_, offset_;
  std::vector<float> weight_, bias_;
  NormRow row_;  // of the first group
};

// Cosines and sines of a step's positions, the same in every layer, and of the largest position of
// a query for sinks.
class Angles {
 public:
  Angles(const Op&, int max_rows);
  bool serves(const Op&) const;
  void compute(const Batch&, ThreadPool&);
  // The row whose angles are those of a row's query for the sinks.
  int sink_row(const Op& op, int row, int position) const {
    return op.sink_position(position) == position ? row : max_rows_;
  }
  const float* cosine(int row) const { return data() + int64_t{row} * 2 * half(); }
  const float* sine(int row) const { return cosine(row) + half(); }
  uint64_t bytes() const { return values_.size(); }

 private:
  int half() const { return static_cast<int>(inv_freq_.size()); }
  float* data() const { return static_cast<float*>(values_.data()); }
  void compute(int row, int position) const;

  std::vector<float> inv_freq_;
  float scale_;
  int max_rows_, sink_position_;  // of row max_rows
  Buffer values_;                 // [max_rows + 1][cosines, sines]
};

class RopeStore {
 public:
  RopeStore(const Context&, const Op&, const Angles*);
  void run(const Context&, const Batch&, Slot in, Slot sink_q);
  uint64_t bytes() const { return (q_norm_.size() + k_norm_.size()) * sizeof(float); }

 private:
  void store(const Context&, const Sequence&, int row, int value, const float* heads) const;
  static void store_bf16(const Context&, int value, const float* head, int d, int token,
                         bf16* block);

  const Op& op_;
  std::vector<float> q_norm_, k_norm_;
  const Angles* angles_;  // null: no rotary embedding
  KiviStore kivi_;        // used with MR_KV_KIVI
};

class Conv {
 public:
  Conv(const Context&, const Op&);
  void run(const Context&, const Batch&, Slot in, Slot out) const;
  uint64_t bytes() const { return (weights_.size() + bias_.size()) * sizeof(float); }

 private:
  const Op& op_;
  std::vector<float> weights_, bias_;  // [kernel][channels]
};

class Recur {
 public:
  Recur(const Context&, const Op&);
  void run(const Context&, const Batch&, Slot in, Slot gates, Slot rates, Slot out) const;

 private:
  const Op& op_;
  // [heads]; of MR_RECUR_CHANNELS dt_bias_ is [heads][keys]; of MR_RECUR_SCAN a_ is [heads][keys][state row], and
  // the others are [heads][values].
  std::vector<float> a_, dt_bias_, skip_;
};

// A step of alternating updates.
void altup(const Context&, const Op&, int rows, const Slot* streams, Slot coefs, Slot x);

class Gate {
 public:
  Gate(const Context&, const Op&);
  void run(const Context&, int rows, Slot in, Slot gates, Slot out) const;

 private:
  const Op& op_;
  std::vector<float> weight_;
  GateRow row_;
};

}  // namespace millrace::cpu

#endif
