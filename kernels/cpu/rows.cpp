#include <algorithm>

#include "ops.hpp"

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

int rows_per_task(int width) {
  constexpr int kElements = 16 << 10;
  return std::max(1, kElements / width);
}

}  // namespace millrace::cpu
