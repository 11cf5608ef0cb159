#include "gpu/weights.hpp"

#include <cmath>
#include <cstring>

#include "exec/bf16.hpp"
#include "exec/error.hpp"

namespace millrace::gpu {

uint16_t to_operand(float x, mr_dtype type) {
  if (type == MR_BF16) return cpu::from_float(x);
  return cpu::f16_from_float(x);
}

SourceRow source_row(const Program& p, const Op& op, int expert, int64_t row) {
  const mr_part* part = op.parts_of(expert);
  while (row >= part->rows) row -= (part++)->rows;
  return {&op, p.tensor(part->weight), p.tensor(part->bias), part_row(*part, row)};
}

Buffer upload_floats(Stream& stream, const mr_tensor* tensor) {
  if (tensor == nullptr) return {};
  std::vector<float> values(tensor->dims[0] * (tensor->rank == 2 ? tensor->dims[1] : 1));
  for (size_t i = 0; i < values.size(); ++i) values[i] = element(*tensor, i);
  return stream.upload(values);
}

void read_row(const SourceRow& source, int depth, mr_dtype type, uint16_t* out, int stride) {
  const mr_tensor& w = *source.weight;
  if (w.dtype == type) {
    const auto* same = reinterpret_cast<const uint16_t*>(row_data(w, source.row));
    if (stride == 2) {
      std::memcpy(out, same, depth * sizeof *out);
      return;
    }
    for (int64_t k = 0; k < depth; ++k) out[k / 2 * stride + k % 2] = same[k];
    return;
  }
  std::vector<float> values(depth);
  millrace::read_row(w, source.row, values.data());
  for (int64_t k = 0; k < depth; ++k) {
    const float x = values[k];
    uint16_t& number = out[k / 2 * stride + k % 2];
    number = to_operand(x, type);
    if (type == MR_F16 && std::isfinite(x) && !std::isfinite(cpu::f16_to_float(number))) {
      fail(MR_UNSUPPORTED,
           "op %d (LINEAR, layer %d): a weight of %g is beyond F16, which ends at 65504; BF16 "
           "(--dtype bf16) holds it",
           source.op->index, source.op->layer, static_cast<double>(x));
    }
  }
}

}  // namespace millrace::gpu
