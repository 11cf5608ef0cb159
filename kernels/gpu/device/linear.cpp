// out[r] = act(in[r] . W^T + b), gated and accumulated as mr_op says.
//
// W lies in blocks of 16 (along the sum) by MR_LANES columns, in the order of
// the matrix engine's operand: [column block][depth block][8 pairs][lane]. A
// sub-group computes kColumnBlocks blocks of columns of some rows. A gated op has
// the blocks of gate and up in turn, so that one sub-group has both.
//
// The sum is cut into slices of the depth, one per sub-group of a work-group, so
// that few columns fill a wide device too. The slices depend on the op alone, and
// are added in ascending order: the same bits for one row as for a thousand.
#include "activation.hpp"
#include "matrix.hpp"
#include "slices.hpp"

namespace mr_linear {
using namespace mr_matrix;

MR_INLINE Columns load_columns(const uint32_t* weights, int64_t block, int lane) {
  Columns b;
  const uint32_t* data = weights + block * 8 * MR_LANES + lane;
#pragma unroll
  for (int i = 0; i < 8; ++i) b.words[i] = data[i * MR_LANES];
  return b;
}

// Writes one row's results of a sub-group's columns.
MR_INLINE void finish(const mr::LinearShape& s, const float* bias, void* out, int64_t row,
                      int64_t group, int lane, const float (&sum)[mr::kColumnBlocks]) {
  constexpr int kBlocks = mr::kColumnBlocks;
  float y[kBlocks];
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) {
    y[c] = sum[c] + (s.bias ? bias[(group * kBlocks + c) * MR_LANES + lane] : 0.0f);
  }
  const int blocks = s.gated ? kBlocks / 2 : kBlocks;
#pragma unroll
  for (int c = 0; c < blocks; ++c) {
    const int64_t column = (group * blocks + c) * MR_LANES + lane;
    if (column >= s.width) continue;
    float value;
    if (s.gated) {
      value = activate(s.activation, y[2 * c]) * multiplier(s.activation, y[2 * c + 1]);
    } else {
      value = activate(s.activation, y[c]);
    }
    const int64_t at = row * s.width + column;
    if (s.accumulate) value += static_cast<const float*>(out)[at];
    store(out, s.out_f32, at, value);
  }
}

// T tiles of M rows each.
template <int M, int T>
MR_INLINE void run(const operand* in, const uint32_t* weights, const float* bias, void* out,
                   const mr::ExpertTile* tiles, float* slices, const mr::LinearShape& s) {
  constexpr int kBlocks = mr::kColumnBlocks, kRows = M * T;
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto sub_group = item.get_sub_group();
  const int lane = sub_group.get_local_linear_id();
  const int slice = sub_group_index(item);
  const RowTile tile = row_tile<kRows>(item, s, tiles);
  const int64_t first_row = tile.first_row, group = tile.task;
  const int rows = tile.rows;
  if constexpr (MR_EXPERTS != 0) {
    if (rows == 0) return;
    weights += tile.expert * s.expert.words;
    if (s.bias) bias += tile.expert * s.expert.columns;
  }

  Sums<float, T, M> sums;
  clear(sums);

  const int begin = slice * s.slice_blocks;
  const int end = begin + s.slice_blocks < s.depth_blocks ? begin + s.slice_blocks : s.depth_blocks;
  const int whole = end * mr::kDepth <= s.depth ? end : end - 1;  // the last block may be cut
  const int64_t column_block = group * kBlocks * s.depth_blocks;
  const auto step = [&](int k, int columns) __attribute__((always_inline)) {
    Columns b[kBlocks];
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      b[c] = load_columns(weights, column_block + int64_t{c} * s.depth_blocks + k, lane);
    }
#pragma unroll
    for (int t = 0; t < T; ++t) {
      const int64_t row = first_row + (t * M < rows ? t * M : 0);
      const auto a = load_rows<M>(in + row * s.depth + int64_t{k} * mr::kDepth, s.depth,
                                  rows - t * M, columns, lane);
#pragma unroll
      for (int c = 0; c < kBlocks; ++c) multiply<M>(a, b[c], sums[t][c]);
    }
  };
  for (int k = begin; k < whole; ++k) step(k, mr::kDepth);
  if (whole < end && begin < end) step(whole, s.depth - whole * mr::kDepth);

  // Through local memory also where there is one slice: what follows is long, and
  // would otherwise be there once per row.
  put_slice(slices, slice, lane, sums);
  sycl::group_barrier(item.get_group());
#pragma unroll 1
  for (int m = slice; m < rows; m += s.slices) {
    float total[kBlocks];
    add_slices(slices, s.slices, kRows, m, lane, total);
    finish(s, bias, out, first_row + m, group, lane, total);
  }
}

}  // namespace mr_linear

#define MR_LINEAR(name, M, T)                                                                   \
  MR_KERNEL name(const operand* in, const uint32_t* weights, const float* bias, void* out,      \
                 MR_TILES_PARAMETER sycl::local_accessor<float, 1> slices, mr::LinearShape s) { \
    mr_linear::run<M, T>(in, weights, bias, out, MR_TILES,                                      \
                         slices.get_multi_ptr<sycl::access::decorated::no>().get(), s);         \
  }

MR_LINEAR(mr_linear_1, 1, 1)
MR_LINEAR(mr_linear_2, 2, 1)
MR_LINEAR(mr_linear_4, 4, 1)
MR_LINEAR(mr_linear_8, 8, 1)
#if MR_XMX
MR_LINEAR(mr_linear_tiles, 8, MR_LANES / 4)
#endif
