// The sums of a linear op, T tiles of M rows in C vectors of columns, and their slices: each
// sub-group of a work-group adds up one, and local memory brings them together,
// [slices][rows][C][MR_LANES].
#ifndef MILLRACE_GPU_DEVICE_SLICES_HPP
#define MILLRACE_GPU_DEVICE_SLICES_HPP

#include "common.hpp"

namespace mr_linear {

// Ops of experts have one more argument.
#ifndef MR_EXPERTS
#define MR_EXPERTS 0
#endif
#if MR_EXPERTS
#define MR_TILES_PARAMETER const mr::ExpertTile *tiles,
#define MR_TILES tiles
#else
#define MR_TILES_PARAMETER
#define MR_TILES nullptr
#endif

// The rows of a work-group, and its task among those of the columns.
struct RowTile {
  int64_t first_row;
  int rows;
  int64_t task;
  int expert;
};

// Row tiles run fastest: neighbors read the same weights.
template <int kRows, class Shape>
MR_INLINE RowTile row_tile(const Item& item, const Shape& s, const mr::ExpertTile* tiles) {
#if MR_EXPERTS
  const mr::ExpertTile tile = tiles[item.get_group(0) % s.tiles];
  return {tile.first_row, tile.rows, static_cast<int64_t>(item.get_group(0) / s.tiles),
          tile.expert};
#else
  const int64_t row_tiles = (s.rows + kRows - 1) / kRows;
  const int64_t first_row = item.get_group(0) % row_tiles * kRows;
  const int rows = static_cast<int>(s.rows - first_row < kRows ? s.rows - first_row : kRows);
  return {first_row, rows, static_cast<int64_t>(item.get_group(0) / row_tiles), 0};
#endif
}

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
