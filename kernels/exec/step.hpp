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

// Tokens of one sequence: rows [first_row, first_row + rows) of the step, at
// positions from `position` on.
struct Sequence {
  std::byte* kv;  // base of its region, null where the pool maps nothing
  int first_row, rows, position;
  const int32_t* slabs;  // of its region, up to the one of the last row
};

struct Batch {
  int rows = 0, outputs = 0;
  std::span<const int32_t> tokens;       // [rows]
  std::span<const int32_t> output_rows;  // [outputs], ascending
  std::vector<int32_t> positions;        // [rows]
  std::vector<Sequence> sequences;
  const KvPool* pool = nullptr;
};

// Checks a step against the program and its KV pool and fills the batch, whose
// memory is reused. step_id differs from one call to the next. Throws
// Error(MR_INVALID) naming what was found and expected.
void read_step(const Program& program, const KvPool* pool, const mr_step& step, uint64_t step_id,
               Batch& batch);

}  // namespace millrace

// The opaque region of the ABI.
struct mr_region : millrace::KvRegion {
  using KvRegion::KvRegion;
};

#endif
