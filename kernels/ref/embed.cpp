#include "ref/ref.hpp"

namespace millrace::ref {

void embed(const Context& c, const Op& op, const Batch& batch, Slot out) {
  const mr_tensor* table = c.program.tensor(op.weight);
  const mr_tensor* positions = c.program.tensor(op.bias);
  for (int r = 0; r < batch.rows; ++r) {
    float* y = out.f32() + int64_t{r} * out.width;
    const int64_t token = batch.tokens[r];
    const int64_t position = int64_t{batch.positions[r]} + op.position_offset;
    for (int i = 0; i < out.width; ++i) {
      y[i] = table != nullptr ? op.embed_scale * element(*table, token * out.width + i) : 0.0f;
      if (positions != nullptr) y[i] += element(*positions, position * out.width + i);
    }
  }
}

}  // namespace millrace::ref
