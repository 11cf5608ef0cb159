// out[r] = act(in[r] . W^T + b) where the weights are codes.
//
// W lies in blocks of 64 columns: [block][word along the sum][64]. A word is 4 codes of a byte
// (int8, FP8), or 8 of half a byte, the first four in the low halves of its bytes (int4, NF4). A
// gated op has 32 columns of gate and the same 32 of up in each block. The depth is padded to a
// multiple of 64 with codes that count as 0.
//
// A format says how steps of mr::kCodeDepth of the depth are multiplied:
//   Sum          of products
//   kWordCodes   codes of a word
//   kInGroups    whether groups of steps have their scales, or a column has one
//   kVectors     of columns that a sub-group computes
//   multiply()   adds a step's products of some rows to their sums
//   row_scale()  what a row's sums are multiplied with beside the weights' scales
// The sums of groups are added as floats in ascending order. So a row has the same bits whatever
// is beside it.
#ifndef MILLRACE_GPU_DEVICE_BLOCKS_HPP
#define MILLRACE_GPU_DEVICE_BLOCKS_HPP

#include <type_traits>

#include "activation.hpp"
#include "slices.hpp"

namespace mr_blocks {

constexpr int kBlock = mr::kPackedColumns;

struct Pointers {
  const uint32_t* weights;
  const void* scales;  // floats [columns]; in groups: bf16 [block][group][64]
  const float* bias;   // [columns]
  void* out;
  const mr::ExpertTile* tiles;  // of experts
};

// What a sub-group computes: some rows, and of a block the vectors of columns that are its share.
struct Part {
  int64_t first_row;
  int rows;
  int share, lane;
};

// The number of sub-groups that share a block.
template <int kVectors>
constexpr int kShares = kBlock / MR_LANES / kVectors;

// The column of a block that vector v begins with: gate and up are half a block apart.
template <int kVectors>
MR_INLINE int first_column(int share, int v) {
  return (v * kShares<kVectors> + share) * MR_LANES;
}

// Writes one row's results of a sub-group's columns: y are its sums with all scales.
template <int kVectors>
MR_INLINE void finish(const mr::CodedShape& s, const Pointers& p, int64_t row, int64_t block,
                      int share, int lane, float (&y)[kVectors]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (s.bias) y[v] += p.bias[block * kBlock + first_column<kVectors>(share, v) + lane];
  }
  constexpr int kHalf = kVectors / 2;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (s.gated && v >= kHalf) break;
    const int64_t column =
        block * (s.gated ? kBlock / 2 : kBlock) + first_column<kVectors>(share, v);
    float value = mr_linear::activate(s.activation, y[v]);
    if (s.gated) value *= mr_linear::multiplier(s.activation, y[(v + kHalf) % kVectors]);
    mr_linear::write(s, p.out, row, column, value);
  }
}

// Few rows take less time than their weights need from memory.
template <int kRows, int kWords>
MR_INLINE void fetch_step(const uint32_t* weights, int lane) {
  if constexpr (kRows > 2) return;
#pragma unroll
  for (int i = 0; i < kWords; i += kFetchedWords) fetch_ahead(weights + i, lane);
}

// T tiles of M rows each; local memory [slices][rows][kVectors][MR_LANES].
template <int M, int T, class Format>
MR_INLINE void run(const Format& format, Pointers p, float* local, const mr::CodedShape& s) {
  constexpr int kVectors = Format::kVectors, kRows = M * T;
  using Sum = typename Format::Sum;
  using Total = std::conditional_t<Format::kInGroups, float, Sum>;
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int lane = item.get_sub_group().get_local_linear_id();
  const int slice = sub_group_index(item);
  const mr_linear::RowTile tile = mr_linear::row_tile<kRows>(item, s, p.tiles);
  const int64_t first_row = tile.first_row;
  const int64_t block = tile.task / kShares<kVectors>;
  const int share = tile.task % kShares<kVectors>;
  const int rows = tile.rows;
  if constexpr (MR_EXPERTS != 0) {
    if (rows == 0) return;
    p.weights += tile.expert * s.expert.words;
    const int64_t scales = tile.expert * s.expert.scales;
    p.scales = Format::kInGroups
                   ? static_cast<const void*>(static_cast<const uint16_t*>(p.scales) + scales)
                   : static_cast<const float*>(p.scales) + scales;
    if (s.bias) p.bias += tile.expert * s.expert.columns;
  }
  const Part part{first_row, rows, share, lane};

  mr_linear::Sums<Total, T, M, kVectors> sums;
  mr_linear::clear(sums);

  constexpr int kStepWords = mr::kCodeDepth / Format::kWordCodes * kBlock;
  const int begin = slice * s.slice_steps;
  const int end = begin + s.slice_steps < s.steps ? begin + s.slice_steps : s.steps;
  // Places are computed from a step's number: a CPU's compiler sees that all lanes have it, and not that they have a pointer
  // that two loops move on.
  const uint32_t* weights = p.weights + block * s.steps * kStepWords;
  if constexpr (Format::kInGroups) {
    const auto* scales = static_cast<const uint16_t*>(p.scales);
    for (int step = begin; step < end; step += s.group_steps) {
      const int next = step + s.group_steps < end ? step + s.group_steps : end;
      mr_linear::Sums<Sum, T, M, kVectors> group;
      mr_linear::clear(group);
#pragma unroll 1
      for (int i = step; i < next; ++i) {
        const uint32_t* words = weights + int64_t{i} * kStepWords;
        fetch_step<kRows, kStepWords>(words, lane);
        format.template multiply<M>(s, part, words, i, group);
      }
      const int64_t at = (block * s.groups + step / s.group_steps) * kBlock;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const float scale = bf16_to_float(scales[at + first_column<kVectors>(share, v) + lane]);
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int m = 0; m < M; ++m) {
            sums[t][v][m] = sycl::fma(static_cast<float>(group[t][v][m]), scale, sums[t][v][m]);
          }
      }
    }
  } else {
    for (int step = begin; step < end; ++step) {
      const uint32_t* words = weights + int64_t{step} * kStepWords;
      fetch_step<kRows, kStepWords>(words, lane);
      format.template multiply<M>(s, part, words, step, sums);
    }
  }

  auto* slices = reinterpret_cast<Total*>(local);
  mr_linear::put_slice(slices, slice, lane, sums);
  sycl::group_barrier(item.get_group());
#pragma unroll 1
  for (int m = slice; m < rows; m += s.slices) {
    const float row_scale = format.row_scale(first_row + m);
    Total total[kVectors];
    mr_linear::add_slices(slices, s.slices, kRows, m, lane, total);
    float y[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float scale = row_scale;
      if constexpr (!Format::kInGroups) {
        const int64_t column = block * kBlock + first_column<kVectors>(share, v) + lane;
        scale *= static_cast<const float*>(p.scales)[column];
      }
      y[v] = static_cast<float>(total[v]) * scale;
    }
    finish(s, p, first_row + m, block, share, lane, y);
  }
}

}  // namespace mr_blocks

#endif
