// The reference backend: plain scalar float32 code, one function per op, in a file of its own or with
// those like it. It is the oracle of every other backend, so it is meant to be read, not to be fast.
#ifndef MILLRACE_REF_REF_HPP
#define MILLRACE_REF_REF_HPP

#include <string>
#include <vector>

#include "cpu/machine/thread_pool.hpp"
#include "exec/backend.hpp"
#include "exec/tensor.hpp"

namespace millrace::ref {

using cpu::ThreadPool;

// What the ops read: the weights stay in the checkpoint.
struct Context {
  const Program& program;
  const KvLayout& kv;
  ThreadPool& pool;
};

class RefKernels : public Kernels {
 public:
  RefKernels(const Program& program, const KvLayout& kv, ThreadPool& pool)
      : context_{program, kv, pool}, scores_(int64_t{program.max_positions} * pool.size()) {
    for (const Op& op : program.ops) program.use(op, true);
  }

  void embed(const Op&, const Run&) override;
  void norm(const Op&, const Run&) override;
  void linear(const Op&, const Run&) override;
  void rope_store(const Op&, const Run&) override;
  void attention(const Op&, const Run&) override;
  void route(const Op&, const Run&) override;
  void conv(const Op&, const Run&) override;
  void recur(const Op&, const Run&) override;
  void gate(const Op&, const Run&) override;
  void altup(const Op&, const Run&) override;
  void all_reduce(const Op&, const Run&) override;

  bool takes_beams() const override { return true; }
  uint64_t weight_bytes() const override { return 0; }  // they stay in the checkpoint
  uint64_t scratch_bytes() const override { return scores_.size() * sizeof(float); }
  std::string linear_name() const override { return "ref"; }
  std::string numerics() const override;

 private:
  void experts(const Op&, const Run&);  // LINEAR of experts
  // Attention that gives up tokens, which stores those of the step itself.
  void h2o(const Op&, const Run&);

  Context context_;
  std::vector<float> scores_;  // [threads][max_positions]
};

// The key or the value of the token at `position` that a row of the sequence sees. A latent's value is
// its key.
inline float* kv_row(const KvLayout& kv, const Sequence& s, int row, int place, int value, int head,
                     int position) {
  const Kept kept = s.kept(row, position);
  std::byte* slab = kept.kv + kv.slab_bytes * (position / MR_SLAB_TOKENS);
  float* block = reinterpret_cast<float*>(slab + kv.block(place, value, head));
  return block + int64_t{position % MR_SLAB_TOKENS} * kv.layers[place].width(value);
}

// What the codes of such a row stand for, where kv_row is what it is itself (MR_KV_KIVI).
inline float* coded_row(float* row, int width) { return row + int64_t{MR_SLAB_TOKENS} * width; }

}  // namespace millrace::ref

#endif
