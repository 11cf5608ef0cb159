// The ops other than linear and attention, over the kernels of an instruction set.
#ifndef MILLRACE_CPU_OPS_OPS_HPP
#define MILLRACE_CPU_OPS_OPS_HPP

#include <deque>
#include <memory>
#include <vector>

#include "cpu/machine/float_mode.hpp"
#include "cpu/machine/thread_pool.hpp"
#include "cpu/ops/kernels.hpp"
#include "cpu/ops/kivi.hpp"
#include "exec/backend.hpp"
#include "exec/buffer.hpp"
#include "exec/route.hpp"

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

// What a NORM keeps.
struct Norm {
  Norm(const Context&, const Op&);

  int groups, offset;
  std::vector<float> weight, bias;
  NormRow row;  // of the first group
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

// What a ROPE_STORE keeps.
struct RopeStore {
  std::vector<float> q_norm, k_norm;
  const Angles* angles;  // null: no rotary embedding
  KiviStore kivi{};      // used with MR_KV_KIVI
};

// What a CONV keeps.
struct Conv {
  Conv(const Context&, const Op&);

  std::vector<float> weights, bias;  // [kernel][channels], [channels]
};

// What a RECUR keeps.
struct Recur {
  Recur(const Context&, const Op&);

  // [heads]; of MR_RECUR_CHANNELS dt_bias is [heads][keys]; of MR_RECUR_SCAN a is [heads][keys][state row], and
  // the others are [heads][values].
  std::vector<float> a, dt_bias, skip;
};

// What a GATE keeps.
struct Gate {
  Gate(const Context&, const Op&);

  std::vector<float> weight;
  GateRow row;
};

// The ops of a loaded program, but linear and attention. Each is in a file with those like it.
class CpuOps : public Kernels {
 public:
  CpuOps(const Program& program, const KvLayout& kv, const OpKernels& kernels, ThreadPool& pool);

  void begin(const Batch&) override;
  void embed(const Op&, const Run&) override;
  void norm(const Op&, const Run&) override;
  void rope_store(const Op&, const Run&) override;
  void route(const Op&, const Run&) override;
  void conv(const Op&, const Run&) override;
  void recur(const Op&, const Run&) override;
  void gate(const Op&, const Run&) override;
  void altup(const Op&, const Run&) override;
  void all_reduce(const Op&, const Run&) override;

  uint64_t weight_bytes() const override;
  uint64_t scratch_bytes() const override;

 protected:
  const Norm& norm_of(const Op& op) const { return *kept_[op.index].norm; }

  const Context context_;
  const FloatMode mode_;  // of all ops but ROUTE

 private:
  // What an op keeps from load to load; one of them is set, or none.
  struct Kept {
    std::unique_ptr<Router> router;
    std::unique_ptr<Norm> norm;
    std::unique_ptr<RopeStore> rope_store;
    std::unique_ptr<Conv> conv;
    std::unique_ptr<Recur> recur;
    std::unique_ptr<Gate> gate;
  };

  void keep(const Op& op);
  const Angles* angles_of(const Op& op);

  std::deque<Angles> angles_;  // RopeStore points to them
  std::vector<Kept> kept_;     // [ops]
};

}  // namespace millrace::cpu

#endif
