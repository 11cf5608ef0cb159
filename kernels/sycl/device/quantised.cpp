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
#include "matrix_int8.hpp"

namespace mr_quantised {
using namespace mr_int8;

constexpr int kBlock = mr::kPackedColumns;
constexpr int kVectors = kBlock / MR_LANES;               // of a block
constexpr int kGroups = kVectors / mr::kColumnBlocks;     // sub-groups that share a block
constexpr int kBlockWords = mr::kCodeDepth / 4 * kBlock;  // of int8 codes, per step of the depth

// The column of a block that a sub-group's vector v begins with: gate and up are half a block apart.
MR_INLINE int first_column(int group, int v) { return (v * kGroups + group) * MR_LANES; }

MR_INLINE Columns load_int8(const uint32_t* words, int lane) {
  Columns b;
#pragma unroll
  for (int i = 0; i < 8; ++i) b.quads[i] = words[i * kBlock + lane];
  return b;
}

// Bytes of 0 to 15 as signed bytes of -8 to 7.
MR_INLINE uint32_t centred(uint32_t bytes) {
  return ((bytes | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
}

MR_INLINE Columns load_int4(const uint32_t* words, int lane) {
  Columns b;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t eight = words[i * kBlock + lane];
    b.quads[2 * i] = centred(eight & 0x0f0f0f0fu);
    b.quads[2 * i + 1] = centred(eight >> 4 & 0x0f0f0f0fu);
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

  Sum sums[T][kBlocks][M];
#pragma unroll
  for (int t = 0; t < T; ++t)
#pragma unroll
    for (int c = 0; c < kBlocks; ++c)
#pragma unroll
      for (int m = 0; m < M; ++m) sums[t][c][m] = 0;

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
      const auto a = load_rows<M>(p.codes + row * s.padded_depth + int64_t{step} * mr::kCodeDepth,
                                  s.padded_depth, rows - t * M, lane);
#pragma unroll
      for (int c = 0; c < kBlocks; ++c) multiply<M>(a, b[c], codes[t][c]);
    }
  };
  if constexpr (kInt4) {
    const auto* scales = static_cast<const uint16_t*>(p.scales);
    for (int step = begin; step < end; step += s.group_steps) {
      int32_t codes[T][kBlocks][M];
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int c = 0; c < kBlocks; ++c)
#pragma unroll
          for (int m = 0; m < M; ++m) codes[t][c][m] = 0;
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
  Sum* mine = slices + int64_t{slice} * kRows * kBlocks * MR_LANES + lane;
#pragma unroll
  for (int t = 0; t < T; ++t)
#pragma unroll
    for (int c = 0; c < kBlocks; ++c)
#pragma unroll
      for (int m = 0; m < M; ++m) mine[((t * M + m) * kBlocks + c) * MR_LANES] = sums[t][c][m];
  sycl::group_barrier(item.get_group());
#pragma unroll 1
  for (int m = slice; m < rows; m += s.slices) {
    const float row_scale = p.row_scales[first_row + m];
    float y[kBlocks];
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      Sum total = 0;
#pragma unroll 1
      for (int i = 0; i < s.slices; ++i) {
        total += slices[(((int64_t{i} * kRows + m) * kBlocks) + c) * MR_LANES + lane];
      }
      float scale = row_scale;
      if constexpr (!kInt4) {
        const int64_t column = block * kBlock + first_column(group, c) + lane;
        scale *= static_cast<const float*>(p.scales)[column];
      }
      y[c] = static_cast<float>(total) * scale;
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

// Each row's codes, its largest magnitude over 127 as its scale (exec/quantise.hpp). A
// work-group per row. A row with a number that is not finite has the scale NaN.
MR_KERNEL mr_quantise_rows(const operand* in, int8_t* codes, float* scales, int32_t depth,
                           int32_t padded_depth) {
  const Item item = this_item();
  const auto group = item.get_group();
  const int64_t row = item.get_group(0);
  const int first = item.get_local_id(0);
  const operand* x = in + row * depth;
  float most = 0, bad = 0;
  for (int i = first; i < depth; i += mr::kRowItems) {
    const float magnitude = sycl::fabs(to_float(x[i]));
    if (!(magnitude <= std::numeric_limits<float>::max())) bad = 1;
    most = sycl::fmax(most, magnitude);
  }
  most = sycl::reduce_over_group(group, most, sycl::maximum<float>());
  bad = sycl::reduce_over_group(group, bad, sycl::maximum<float>());
  const float scale = most / 127.0f;
  const bool fits = bad == 0 && scale >= std::numeric_limits<float>::min();
  const float inverse = fits ? 127.0f / most : 0.0f;
  for (int i = first; i < padded_depth; i += mr::kRowItems) {
    const float code = fits && i < depth ? sycl::rint(to_float(x[i]) * inverse) : 0.0f;
    codes[row * padded_depth + i] = static_cast<int8_t>(static_cast<int>(code));
  }
  if (first == 0) {
    scales[row] = bad > 0 ? std::numeric_limits<float>::quiet_NaN() : fits ? scale : 0.0f;
  }
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
