#include <algorithm>

#include "cpu/ops/ops.hpp"

namespace millrace::cpu {

std::vector<float> floats(const mr_tensor* vector) {
  std::vector<float> values(vector == nullptr ? 0 : vector->dims[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    if (vector->dtype == MR_F32) {
      values[i] = static_cast<const float*>(vector->data)[i];
    } else {
      const uint16_t bits = static_cast<const uint16_t*>(vector->data)[i];
      values[i] = vector->dtype == MR_BF16 ? to_float(bits) : f16_to_float(bits);
    }
  }
  return values;
}

int row_tasks(int rows, int width, int threads) {
  constexpr int kElements = 16 << 10;
  const int step = std::max(1, kElements / width);
  const int tasks = (rows + step - 1) / step;
  return tasks <= 1 ? tasks : std::min(rows, (tasks + threads - 1) / threads * threads);
}

}  // namespace millrace::cpu
