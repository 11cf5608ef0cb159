// Linear ops: out = act(in . W^T + bias), with the weights packed at load for
// the instruction set that reads them.
#ifndef MILLRACE_CPU_LINEAR_HPP
#define MILLRACE_CPU_LINEAR_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bf16.hpp"
#include "isa.hpp"
#include "millrace_kernels.h"
#include "pages.hpp"
#include "thread_pool.hpp"

namespace millrace::cpu {

struct LinearKernels;

struct LinearSpec {
  // As mr_part, with the tensors themselves; bias may be null.
  struct Part {
    const mr_tensor* weight;
    const mr_tensor* bias;
    int64_t offset, rows, block, stride;
  };
  std::vector<Part> parts;
  int64_t in_width;   // K
  int64_t out_width;  // N, or N/2 where gated
  int activation;     // mr_activation
  bool gated;         // two parts of out_width rows: act(gate) * up
  bool accumulate;    // out += y; out is float
  bool out_f32;       // else bf16
};

// Immutable after pack. Every output is one sum over K in ascending order in
// one float accumulator, whatever the kernel: so a row's result does not depend,
// bit for bit, on the other rows, their number, or the number of threads.
class Linear {
 public:
  // Rounds the weights to bf16 (nearest even) and lays them out in panels; the
  // biases become floats. The spec is trusted: shapes are checked by the caller.
  // Throws std::bad_alloc.
  static std::unique_ptr<Linear> pack(const LinearSpec& spec, Isa isa, ThreadPool& pool);

  // in: [rows, in_width] bf16; out: [rows, out_width] float or bf16, apart from
  // in. Takes scratch_bytes(rows) of the pool's scratch.
  void run(const bf16* in, int rows, void* out, ThreadPool& pool) const;

  uint64_t bytes() const { return weights_.size() + bias_.size(); }
  size_t scratch_bytes(int rows) const;

 private:
  // Rows in tiles of nearly equal height.
  struct Tiling {
    int rows, tiles;
    int first(int tile) const { return static_cast<int>(int64_t{rows} * tile / tiles); }
  };

  Linear(const LinearSpec& spec, const LinearKernels& kernels);
  int64_t panel_elements() const;
  bf16* panel(int64_t p) const;
  float* panel_bias(int64_t p) const;
  void pack_panel(const LinearSpec& spec, int64_t p, bf16* room);
  const void* pack_operand(const bf16* in, const Tiling& tiling, ThreadPool& pool) const;
  void run_tile(const void* operand, int first_row, int rows, int64_t p, int n, void* out) const;

  const LinearKernels& kernels_;
  int64_t in_width_, out_width_;
  int64_t pairs_;  // of K, the last one filled up with a zero
  int64_t panels_;
  int activation_;
  bool gated_, accumulate_, out_f32_;
  Pages weights_;  // [panels][pairs][2 * lanes][2] bf16
  Pages bias_;     // [panels][2 * lanes] float; empty if no part has one
};

}  // namespace millrace::cpu

#endif
