#include "exec/step.hpp"

#include <algorithm>

#include "exec/error.hpp"

namespace millrace {
namespace {

void check_counts(const Program& p, const mr_step& s) {
  if (s.rows < 1 || s.rows > p.max_rows) {
    fail(MR_INVALID, "step has %d rows, expected 1 to %d", s.rows, p.max_rows);
  }
  if (s.n_sequences < 1 || s.n_sequences > s.rows) {
    fail(MR_INVALID, "step has %d sequences for %d rows, expected 1 to %d", s.n_sequences, s.rows,
         s.rows);
  }
  if (s.outputs < 0 || s.outputs > std::min(p.max_outputs, s.rows)) {
    fail(MR_INVALID, "step has %d outputs, expected 0 to %d", s.outputs,
         std::min(p.max_outputs, s.rows));
  }
  if (s.tokens == nullptr || s.sequences == nullptr ||
      (s.outputs > 0 && (s.output_rows == nullptr || s.logits == nullptr))) {
    fail(MR_INVALID, "step: tokens, sequences, output_rows or logits is a null pointer");
  }
}

void check_rows(const Program& p, const mr_step& s) {
  for (int r = 0; r < s.rows; ++r) {
    if (s.tokens[r] < 0 || s.tokens[r] >= p.vocab) {
      fail(MR_INVALID, "row %d: token %d, expected 0 to %d", r, s.tokens[r], p.vocab - 1);
    }
  }
  for (int i = 0; i < s.outputs; ++i) {
    const int least = i == 0 ? 0 : s.output_rows[i - 1] + 1;
    if (s.output_rows[i] < least || s.output_rows[i] >= s.rows) {
      fail(MR_INVALID, "output %d is row %d, expected %d to %d, ascending", i, s.output_rows[i],
           least, s.rows - 1);
    }
  }
}

void check_sequence(const Program& p, const KvPool* pool, const mr_sequence& s, int index,
                    int next_row, int step_rows) {
  if (s.first_row != next_row || s.rows < 1 || s.rows > step_rows - next_row) {
    fail(MR_INVALID, "sequence %d has %d rows from row %d, expected 1 to %d rows from row %d",
         index, s.rows, s.first_row, step_rows - next_row, next_row);
  }
  if (s.region == nullptr || s.region->pool() != pool || pool == nullptr) {
    fail(MR_INVALID, "sequence %d: its region is not one of this program", index);
  }
  if (s.position < 0 || s.position > p.max_positions - s.rows) {
    fail(MR_INVALID, "sequence %d has positions %d to %lld, expected 0 to %d", index, s.position,
         s.position + static_cast<long long>(s.rows) - 1, p.max_positions - 1);
  }
  const int last = (s.position + s.rows - 1) / MR_SLAB_TOKENS;
  if (last >= s.region->slabs()) {
    fail(MR_INVALID, "sequence %d reaches position %d, its region of %d slabs ends at %lld", index,
         s.position + s.rows - 1, s.region->slabs(),
         static_cast<long long>(s.region->slabs()) * MR_SLAB_TOKENS - 1);
  }
  for (int i = std::max(0, s.position - p.lookback) / MR_SLAB_TOKENS; i <= last; ++i) {
    if (!s.region->mapped(i)) {
      fail(MR_INVALID, "sequence %d at positions %d to %d needs place %d of its region, not mapped",
           index, s.position, s.position + s.rows - 1, i);
    }
  }
}

}  // namespace

void read_step(const Program& p, const KvPool* pool, const mr_step& s, uint64_t step_id,
               Batch& batch) {
  check_counts(p, s);
  check_rows(p, s);
  batch.sequences.clear();
  batch.positions.resize(s.rows);
  int row = 0;
  for (int i = 0; i < s.n_sequences; ++i) {
    const mr_sequence& q = s.sequences[i];
    check_sequence(p, pool, q, i, row, s.rows);
    // Two writers of one region would make the result depend on the batch.
    if (q.region->step == step_id) fail(MR_INVALID, "sequence %d: its region is used twice", i);
    q.region->step = step_id;
    for (int r = 0; r < q.rows; ++r) batch.positions[row + r] = q.position + r;
    batch.sequences.push_back(
        {q.region->data(), q.first_row, q.rows, q.position, q.region->table()});
    row += q.rows;
  }
  if (row != s.rows) {
    fail(MR_INVALID, "the sequences end at row %d, expected %d rows", row, s.rows);
  }
  batch.pool = pool;
  batch.rows = s.rows;
  batch.outputs = s.outputs;
  batch.tokens = {s.tokens, static_cast<size_t>(s.rows)};
  batch.output_rows = {s.output_rows, static_cast<size_t>(s.outputs)};
}

}  // namespace millrace
