#include <vector>

#include "ref/ref.hpp"

namespace millrace::ref {

void RefKernels::embed(const Op& op, const Run& run) {
  const Batch& batch = run.batch;
  const Slot out = run.slot(op.out);
  const mr_tensor* table = context_.program.tensor(op.embed.table);
  const mr_tensor* positions = context_.program.tensor(op.embed.positions);
  const mr_tensor* types = context_.program.tensor(op.embed.types);
  std::vector<float> row(out.width);
  for (int r = 0; r < batch.rows; ++r) {
    float* y = out.f32() + int64_t{r} * out.width;
    if (op.embed.accumulate) {
      read_row(*table, op.table_row(batch.tokens[r], *table), row.data());
      for (int i = 0; i < out.width; ++i) y[i] += op.embed.scale * row[i];
      continue;
    }
    for (int i = 0; i < out.width; ++i) y[i] = 0;
    if (table != nullptr) {
      read_row(*table, batch.tokens[r], row.data());
      for (int i = 0; i < out.width; ++i) y[i] = op.embed.scale * row[i];
    }
    if (positions != nullptr) {
      read_row(*positions, int64_t{batch.positions[r]} + op.embed.position_offset, row.data());
      for (int i = 0; i < out.width; ++i) y[i] += row[i];
    }
    if (types != nullptr) {
      read_row(*types, batch.type(r, *types), row.data());
      for (int i = 0; i < out.width; ++i) y[i] += row[i];
    }
  }
}

}  // namespace millrace::ref
