// The sums of a linear op, T tiles of M rows in kColumnBlocks blocks of columns, and their
// slices: each sub-group of a work-group adds up one, and local memory brings them together,
// [slices][rows][kColumnBlocks][MR_LANES].
#ifndef MILLRACE_SYCL_DEVICE_SLICES_HPP
#define MILLRACE_SYCL_DEVICE_SLICES_HPP

#include "common.hpp"

namespace mr_linear {

template <class Sum, int T, int M>
using Sums = Sum[T][mr::kColumnBlocks][M];

template <class Sum, int T, int M>
MR_INLINE void clear(Sum (&sums)[T][mr::kColumnBlocks][M]) {
#pragma unroll
  for (int t = 0; t < T; ++t)
#pragma unroll
    for (int c = 0; c < mr::kColumnBlocks; ++c)
#pragma unroll
      for (int m = 0; m < M; ++m) sums[t][c][m] = 0;
}

template <class Sum, int T, int M>
MR_INLINE void put_slice(Sum* slices, int slice, int lane,
                         const Sum (&sums)[T][mr::kColumnBlocks][M]) {
  Sum* mine = slices + int64_t{slice} * T * M * mr::kColumnBlocks * MR_LANES + lane;
#pragma unroll
  for (int t = 0; t < T; ++t)
#pragma unroll
    for (int c = 0; c < mr::kColumnBlocks; ++c)
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mine[((t * M + m) * mr::kColumnBlocks + c) * MR_LANES] = sums[t][c][m];
      }
}

// One row's sums of all slices, in ascending order.
template <class Sum>
MR_INLINE void add_slices(const Sum* slices, int count, int rows, int row, int lane,
                          Sum (&total)[mr::kColumnBlocks]) {
#pragma unroll
  for (int c = 0; c < mr::kColumnBlocks; ++c) total[c] = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const Sum* slice = slices + (int64_t{i} * rows + row) * mr::kColumnBlocks * MR_LANES + lane;
#pragma unroll
    for (int c = 0; c < mr::kColumnBlocks; ++c) total[c] += slice[c * MR_LANES];
  }
}

}  // namespace mr_linear

#endif
