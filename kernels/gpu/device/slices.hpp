// The sums of a linear op, T tiles of M rows in C vectors of columns, and their slices: each
// sub-group of a work-group adds up one, and local memory brings them together,
// [slices][rows][C][MR_LANES].
#ifndef MILLRACE_GPU_DEVICE_SLICES_HPP
#define MILLRACE_GPU_DEVICE_SLICES_HPP

#include "common.hpp"

namespace mr_linear {

template <class Sum, int T, int M, int C = mr::kColumnBlocks>
using Sums = Sum[T][C][M];

template <class Sum, int T, int C, int M>
MR_INLINE void clear(Sum (&sums)[T][C][M]) {
#pragma unroll
  for (int t = 0; t < T; ++t)
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int m = 0; m < M; ++m) sums[t][c][m] = 0;
}

template <class Sum, int T, int C, int M>
MR_INLINE void put_slice(Sum* slices, int slice, int lane, const Sum (&sums)[T][C][M]) {
  Sum* mine = slices + int64_t{slice} * T * M * C * MR_LANES + lane;
#pragma unroll
  for (int t = 0; t < T; ++t)
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int m = 0; m < M; ++m) mine[((t * M + m) * C + c) * MR_LANES] = sums[t][c][m];
}

// One row's sums of all slices, in ascending order.
template <class Sum, int C>
MR_INLINE void add_slices(const Sum* slices, int count, int rows, int row, int lane,
                          Sum (&total)[C]) {
#pragma unroll
  for (int c = 0; c < C; ++c) total[c] = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const Sum* slice = slices + (int64_t{i} * rows + row) * C * MR_LANES + lane;
#pragma unroll
    for (int c = 0; c < C; ++c) total[c] += slice[c * MR_LANES];
  }
}

}  // namespace mr_linear

#endif
