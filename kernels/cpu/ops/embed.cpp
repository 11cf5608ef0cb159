#include <vector>

#include "cpu/ops/ops.hpp"
#include "exec/tensor.hpp"

namespace millrace::cpu {
namespace {

// y = scale * row of the table, or y += it.
template <class Element, class Convert>
void take_row(const mr_tensor& table, int64_t row, float scale, bool add, int width, float* y,
              Convert convert) {
  const auto* x = static_cast<const Element*>(table.data) + row * width;
  for (int i = 0; i < width; ++i) {
    const float value = scale * convert(x[i]);
    y[i] = add ? y[i] + value : value;
  }
}

void take_row(const mr_tensor& table, int64_t row, float scale, bool add, int width, float* y) {
  if (table.dtype >= MR_BLOCKS) {
    thread_local std::vector<float> values;
    values.resize(width);
    read_row(table, row, values.data());
    for (int i = 0; i < width; ++i) y[i] = add ? y[i] + scale * values[i] : scale * values[i];
    return;
  }
  switch (table.dtype) {
    case MR_F32:
      return take_row<float>(table, row, scale, add, width, y, [](float x) { return x; });
    case MR_F16:
      return take_row<uint16_t>(table, row, scale, add, width, y, f16_to_float);
    default:
      return take_row<bf16>(table, row, scale, add, width, y, to_float);
  }
}

}  // namespace

void CpuOps::embed(const Op& op, const Run& run) {
  const FloatScope mode(mode_);
  const Context& c = context_;
  const Batch& batch = run.batch;
  const Slot out = run.slot(op.out);
  const mr_tensor* table = c.program.tensor(op.embed.table);
  const mr_tensor* positions = c.program.tensor(op.embed.positions);
  const mr_tensor* types = c.program.tensor(op.embed.types);
  const int width = out.width;
  // Rows for the operand type are made as floats first.
  auto* rows = static_cast<float*>(c.pool.scratch(sizeof(float) * c.pool.size() * width));
  for_rows(c.pool, batch.rows, width, [&](int r, int thread) {
    const bool f32 = out.type == MR_SLOT_F32;
    float* y = f32 ? out.f32() + int64_t{r} * width : rows + int64_t{thread} * width;
    if (table != nullptr) {
      take_row(*table, op.table_row(batch.tokens[r], *table), op.embed.scale,
               op.embed.accumulate != 0, width, y);
    }
    if (positions != nullptr) {
      const int64_t position = int64_t{batch.positions[r]} + op.embed.position_offset;
      take_row(*positions, position, 1.0f, table != nullptr, width, y);
    }
    if (types != nullptr) take_row(*types, batch.type(r, *types), 1.0f, true, width, y);
    if (!f32) c.kernels.to_bf16(y, width, static_cast<bf16*>(out.data) + int64_t{r} * width);
  });
}

}  // namespace millrace::cpu
