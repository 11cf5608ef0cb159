// out[r] = act(in[r] . W^T + b) with int8 or int4 weights, over rows quantised to int8.
//
// W lies in blocks of 64 columns: [block][word along the sum][64], a word is 4 codes of int8
// or 8 of int4 (the first four in the low halves of its bytes). A gated op has 32 columns of
// gate and the same 32 of up in each block. The depth is padded to a multiple of 64 with codes
// that count as 0.
//
// The products of codes are summed as integers: all of them for int8, those of a group for
// int4, whose groups are added as floats in ascending order. So a row has the same bits
// whatever is beside it, and whoever computes the integers.
#include "activation.hpp"
#include "matrix.hpp"
#include "quantise.hpp"
#include "slices.hpp"

namespace mr_quantised {
using namespace mr_matrix;

constexpr int kBlock = mr::kPackedColumns;
constexpr int kVectors = kBlock / MR_LANES;               // of a block
constexpr int kGroups = kVectors / mr::kColumnBlocks;     // sub-groups that share a block
constexpr int kBlockWords = mr::kCodeDepth / 4 * kBlock;  // of int8 codes, per step of the depth

// The column of a block that a sub-group's vector v begins with: gate and up are half a block apart.
MR_INLINE int first_column(int group, int v) { return (v * kGroups + group) * MR_LANES; }

MR_INLINE Columns load_int8(const uint32_t* words, int lane) {
  Columns b;
#pragma unroll
  for (int i = 0; i < 8; ++i) b.words[i] = words[i * kBlock + lane];
  return b;
}

MR_INLINE Columns load_int4(const uint32_t* words, int lane) {
  Columns b;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t eight = words[i * kBlock + lane];
    b.words[2 * i] = centred(eight & 0x0f0f0f0fu);
    b.words[2 * i + 1] = centred(eight >> 4 & 0x0f0f0f0fu);
  }
  return b;
}

struct Pointers {
  const int8_t* codes;      // [rows][padded depth]
  const float* row_scales;  // [rows]
  const uint32_t* weights;
  const void* scales;  // int8: floats [columns]; int4: bf16 [block][group][64]
  const float* bias;   // [columns]
  void* out;
};

// Writes one row's results of a sub-group's columns: y are its sums with all scales.
MR_INLINE void finish(const mr::QuantisedShape& s, const Pointers& p, int64_t row, int64_t block,
                      int group, int lane, float (&y)[mr::kColumnBlocks]) {
#pragma unroll
  for (int v = 0; v < mr::kColumnBlocks; ++v) {
    if (s.bias) y[v] += p.bias[block * kBlock + first_column(group, v) + lane];
  }
#pragma unroll
  for (int v = 0; v < mr::kColumnBlocks; ++v) {
    if (s.gated && v > 0) break;
    const int64_t column = block * (s.gated ? kBlock / 2 : kBlock) + first_column(group, v) + lane;
    if (column >= s.width) continue;
    float value = mr_linear::activate(s.activation, y[v]);
    if (s.gated) value *= y[1];
    const int64_t at = row * s.width + column;
    if (s.accumulate) value += static_cast<const float*>(p.out)[at];
    store(p.out, s.out_f32, at, value);
  }
}

// T tiles of M rows each; local memory [slices][rows][kColumnBlocks][MR_LANES].
template <int M, int T, bool kInt4>
MR_INLINE void run(const Pointers& p, float* local, const mr::QuantisedShape& s) {
  constexpr int kBlocks = mr::kColumnBlocks, kRows = M * T;
  using Sum = std::conditional_t<kInt4, float, int32_t>;
  const Item item = this_item();
  const int lane = item.get_sub_group().get_local_linear_id();
  const int slice = sub_group_index(item);
  const int64_t row_tiles = (s.rows + kRows - 1) / kRows;
  const int64_t first_row = item.get_group(0) % row_tiles * kRows;
  const int64_t task = item.get_group(0) / row_tiles;
  const int64_t block = task / kGroups;
  const int group = task % kGroups;
  const int rows = static_cast<int>(s.rows - first_row < kRows ? s.rows - first_row : kRows);

  mr_linear::Sums<Sum, T, M> sums;
  mr_linear::clear(sums);

  constexpr int kStepWords = kInt4 ? kBlockWords / 2 : kBlockWords;
  const int begin = slice * s.slice_steps;
  const int end = begin + s.slice_steps < s.steps ? begin + s.slice_steps : s.steps;
  const uint32_t* weights = p.weights + (block * s.steps + begin) * kStepWords;
  const auto multiply_step = [&](int step, int32_t(&codes)[T][kBlocks][M])
      __attribute__((always_inline)) {
    Columns b[kBlocks];
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      const uint32_t* words = weights + first_column(group, c);
      b[c] = kInt4 ? load_int4(words, lane) : load_int8(words, lane);
    }
    weights += kStepWords;
#pragma unroll
    for (int t = 0; t < T; ++t) {
      const int64_t row = first_row + (t * M < rows ? t * M : 0);
      const auto a = load_codes<M>(p.codes + row * s.padded_depth + int64_t{step} * mr::kCodeDepth,
                                   s.padded_depth, rows - t * M, lane);
#pragma unroll
      for (int c = 0; c < kBlocks; ++c) multiply<M>(a, b[c], codes[t][c]);
    }
  };
  if constexpr (kInt4) {
    const auto* scales = static_cast<const uint16_t*>(p.scales);
    for (int step = begin; step < end; step += s.group_steps) {
      mr_linear::Sums<int32_t, T, M> codes;
      mr_linear::clear(codes);
#pragma unroll 1
      for (int i = step; i < step + s.group_steps && i < end; ++i) multiply_step(i, codes);
      const int64_t at = (block * s.groups + step / s.group_steps) * kBlock + lane;
#pragma unroll
      for (int c = 0; c < kBlocks; ++c) {
        const float scale = bf16_to_float(scales[at + first_column(group, c)]);
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int m = 0; m < M; ++m) {
            sums[t][c][m] = sycl::fma(static_cast<float>(codes[t][c][m]), scale, sums[t][c][m]);
          }
      }
    }
  } else {
    for (int step = begin; step < end; ++step) multiply_step(step, sums);
  }

  auto* slices = reinterpret_cast<Sum*>(local);
  mr_linear::put_slice(slices, slice, lane, sums);
  sycl::group_barrier(item.get_group());
#pragma unroll 1
  for (int m = slice; m < rows; m += s.slices) {
    const float row_scale = p.row_scales[first_row + m];
    Sum total[kBlocks];
    mr_linear::add_slices(slices, s.slices, kRows, m, lane, total);
    float y[kBlocks];
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      float scale = row_scale;
      if constexpr (!kInt4) {
        const int64_t column = block * kBlock + first_column(group, c) + lane;
        scale *= static_cast<const float*>(p.scales)[column];
      }
      y[c] = static_cast<float>(total[c]) * scale;
    }
    finish(s, p, first_row + m, block, group, lane, y);
  }
}

}  // namespace mr_quantised

#define MR_QUANTISED(name, M, T, kInt4)                                                          \
  MR_KERNEL name(const int8_t* codes, const float* row_scales, const uint32_t* weights,          \
                 const void* scales, const float* bias, void* out,                               \
                 sycl::local_accessor<float, 1> local, mr::QuantisedShape s) {                   \
    mr_quantised::run<M, T, kInt4>({codes, row_scales, weights, scales, bias, out},              \
                                   local.get_multi_ptr<sycl::access::decorated::no>().get(), s); \
  }
MR_QUANTISED(mr_int8_1, 1, 1, false)
MR_QUANTISED(mr_int8_2, 2, 1, false)
MR_QUANTISED(mr_int8_4, 4, 1, false)
MR_QUANTISED(mr_int8_8, 8, 1, false)
MR_QUANTISED(mr_int4_1, 1, 1, true)
MR_QUANTISED(mr_int4_2, 2, 1, true)
MR_QUANTISED(mr_int4_4, 4, 1, true)
MR_QUANTISED(mr_int4_8, 8, 1, true)
#if MR_XMX && MR_LANES == 16  // more would not fit into the registers
MR_QUANTISED(mr_int8_tiles, 8, 2, false)
#endif

// Each row's codes and scale. A work-group per row.
MR_KERNEL mr_quantise_rows(const operand* in, int8_t* codes, float* scales, int32_t depth,
                           int32_t padded_depth) {
  const Item item = this_item();
  const int64_t row = item.get_group(0);
  const operand* x = in + row * depth;
  const float scale = quantise_int8(
      item.get_group(), mr::kRowItems, depth, padded_depth, [&](int i) { return to_float(x[i]); },
      codes + row * padded_depth);
  if (item.get_local_id(0) == 0) scales[row] = scale;
}

// out of sums [rows][columns] of int8 products, which someone else has computed. A work-group
// per row and block of columns.
MR_KERNEL mr_int8_finish(const int32_t* sums, const float* row_scales, const float* scales,
                         const float* bias, void* out, mr::QuantisedShape s) {
  using namespace mr_quantised;
  const Item item = this_item();
  const int lane = item.get_sub_group().get_local_linear_id();
  const int64_t row = item.get_group(0) / s.blocks, block = item.get_group(0) % s.blocks;
  const int group = sub_group_index(item);
  const Pointers p{nullptr, row_scales, nullptr, scales, bias, out};
  float y[mr::kColumnBlocks];
#pragma unroll
  for (int v = 0; v < mr::kColumnBlocks; ++v) {
    const int64_t column = block * kBlock + first_column(group, v) + lane;
    y[v] = static_cast<float>(sums[row * s.blocks * kBlock + column]) *
           (row_scales[row] * scales[column]);
  }
  finish(s, p, row, block, group, lane, y);
}
