// Tensors of a checkpoint as numbers.
#ifndef MILLRACE_EXEC_TENSOR_HPP
#define MILLRACE_EXEC_TENSOR_HPP

#include <cstdint>
#include <cstring>

#include "exec/bf16.hpp"
#include "millrace_kernels.h"

namespace millrace {

// Element i of a tensor that is not of blocks, whose rows lie without gaps.
inline float element(const mr_tensor& t, int64_t i) {
  if (t.dtype == MR_F32) {
    float x;
    std::memcpy(&x, static_cast<const std::byte*>(t.data) + i * sizeof x, sizeof x);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, static_cast<const std::byte*>(t.data) + i * sizeof bits, sizeof bits);
  return t.dtype == MR_BF16 ? cpu::to_float(bits) : cpu::f16_to_float(bits);
}

// The bytes of a row of a matrix of any type, without those up to the next one.
int64_t row_bytes(const mr_tensor& t);

inline const std::byte* row_data(const mr_tensor& t, int64_t row) {
  const int64_t from_row_to_row = t.row_bytes > 0 ? t.row_bytes : row_bytes(t);
  return static_cast<const std::byte*>(t.data) + row * from_row_to_row;
}

// A row of a matrix of any type: [dims[1]].
void read_row(const mr_tensor& t, int64_t row, float* out);

// The row of a part's tensors that is row i of the part. Part: what has mr_part's fields.
template <class Part>
constexpr int64_t part_row(const Part& part, int64_t i) {
  int64_t within = i % part.block;
  if (part.interleaved) {
    const int64_t half = part.block / 2;
    within = within % half * 2 + within / half;
  }
  return part.offset + i / part.block * part.stride + within;
}

}  // namespace millrace

#endif
