// A checked step, as the ops see it.
#ifndef MILLRACE_EXEC_STEP_HPP
#define MILLRACE_EXEC_STEP_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/kv.hpp"
#include "exec/program.hpp"
#include "millrace_kernels.h"

namespace millrace {

// Memory of a region. Token t is in its slab t / MR_SLAB_TOKENS.
struct Kept {
  std::byte* kv;         // its base, null where the pool maps nothing
  const int32_t* slabs;  // its table
};

// The beams of a sequence, one per row; see mr_beams.
struct Beams {
  int prompt;                  // tokens in the sequence's own region
  int steps;                   // response tokens that a row sees, its own included
  int common;                  // the first of them that are the same for all rows
  std::vector<std::byte*> kv;  // [rows] of the response regions
  std::vector<const int32_t*> slabs;
  std::vector<int32_t> index;  // [rows][steps]; a row's own step is its own
  std::vector<const KvRegion*> regions;
};

// Tokens of one sequence: rows [first_row, first_row + rows) of the step, at
// positions from `position` on, or all at `position` if they are beams.
struct Sequence {
  std::byte* kv;  // base of its region's tokens, null where the pool maps nothing
  int first_row, rows, position;
  const int32_t* slabs;  // of its region's tokens, up to the one of the last row
  const Beams* beams = nullptr;
  const KvRegion* region = nullptr;
  std::byte* head = nullptr;  // the slabs before those of its tokens, KvLayout's head_slabs

  void select(int group);  // points to the region's slabs of a group of layers
  int row_position(int row) const { return beams == nullptr ? position + row : position; }
  // The region that keeps the token at `at` which row `row` sees; `at` becomes
  // the token's number there.
  Kept kept(int row, int& at) const {
    if (beams == nullptr || at < beams->prompt) return {kv, slabs};
    at -= beams->prompt;
    const int32_t beam = beams->index[size_t(row) * beams->steps + at];
    return {beams->kv[beam], beams->slabs[beam]};
  }
};

struct Batch {
  int rows = 0, outputs = 0;
  int logits = 0;  // of the outputs: the first ones; the hidden states of the others are read
  std::span<const int32_t> tokens;       // [rows]
  std::span<const int32_t> output_rows;  // [outputs], ascending
  std::vector<int32_t> positions;        // [rows]
  std::vector<uint8_t> types;            // [rows] 0 or 1; of a program of attention both ways
  std::vector<Sequence> sequences;
  std::vector<Beams> beams;  // of those sequences that have them, in order
  const KvPool* pool = nullptr;
  int group = 0;  // of layers, whose slabs the sequences and beams point to

  void select(int group);
  // The row of a table of types that a row has.
  int64_t type(int row, const mr_tensor& table) const {
    return types.empty() || table.dims[0] == 1 ? 0 : types[row];
  }
  // The sequence of a row, of which `from` is one not after it.
  const Sequence& sequence_of(int row, size_t& from) const {
    while (row >= sequences[from].first_row + sequences[from].rows) ++from;
    return sequences[from];
  }
};

// Checks a step against the program and its KV pool and fills the batch, whose
// memory is reused. step_id differs from one call to the next; 0: of a step that another rank has
// checked with it. drawn: outputs of the step before, whose tokens -1, -2, ... stand for. Throws
// Error(MR_INVALID) naming what was found and expected.
void read_step(const Program& program, const KvPool* pool, const mr_step& step, uint64_t step_id,
               int drawn, Batch& batch);

}  // namespace millrace

// The opaque region of the ABI.
struct mr_region : millrace::KvRegion {
  using KvRegion::KvRegion;
};

#endif
