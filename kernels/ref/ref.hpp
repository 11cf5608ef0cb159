// The reference backend: plain scalar float32 code, one function per op. It is
// the oracle of every other backend, so it is meant to be read, not to be fast.
#ifndef MILLRACE_REF_REF_HPP
#define MILLRACE_REF_REF_HPP

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

void embed(const Context&, const Op&, const Batch&, Slot out);
void norm(const Context&, const Op&, int rows, Slot in, Slot out);
void linear(const Context&, const Op&, int rows, Slot in, Slot out);
void experts(const Context&, const Op&, int rows, Slot in, Slot chosen, Slot out);
void rope_store(const Context&, const Op&, const Batch&, Slot in, Slot sink_q);
// scores: [threads][max_positions]
void attention(const Context&, const Op&, const Batch&, Slot in, Slot sink_q, Slot out,
               std::vector<float>& scores);

void conv(const Context&, const Op&, const Batch&, Slot in, Slot out);
void recur(const Context&, const Op&, const Batch&, Slot in, Slot gates, Slot rates, Slot out);
void gate(const Context&, const Op&, int rows, Slot in, Slot gates, Slot out);

// Attention that gives up tokens, which stores those of the step itself. scores: as attention's
void h2o(const Context&, const Op&, const Batch&, Slot in, Slot out, std::vector<float>& scores);

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

void altup(const Op&, int rows, const Slot* streams, Slot coefs, Slot x);

}  // namespace millrace::ref

#endif
