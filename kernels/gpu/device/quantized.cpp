// Linear ops with int8 or int4 weights, over rows quantized to int8.
//
// The products of codes are summed as integers: all of them for int8, those of a group for int4.
// So whoever computes the integers, they are the same.
#include "blocks.hpp"
#include "matrix.hpp"
#include "quantize_rows.hpp"

namespace mr_quantized {
using namespace mr_matrix;

#if MR_XMX
MR_INLINE Columns load_int8(const uint32_t* words) {
  Columns b;
#pragma unroll
  for (int i = 0; i < 8; ++i) b.words[i] = words[i * mr_blocks::kBlock];
  return b;
}

MR_INLINE Columns load_int4(const uint32_t* words) {
  Columns b;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t eight = words[i * mr_blocks::kBlock];
    b.words[2 * i] = centered(eight & 0x0f0f0f0fu);
    b.words[2 * i + 1] = centered(eight >> 4 & 0x0f0f0f0fu);
  }
  return b;
}
#endif

template <bool kInt4>
struct Format {
  using Sum = int32_t;
  static constexpr int kWordCodes = kInt4 ? 8 : 4;
  static constexpr bool kInGroups = kInt4;
#if MR_XMX
  static constexpr int kVectors = mr::kColumnBlocks;
#else
  static constexpr int kVectors = mr_blocks::kBlock / MR_LANES;
#endif

  const int8_t* codes;      // [rows][padded depth]
  const float* row_scales;  // [rows]

#if MR_XMX
  template <int M, int T>
  MR_INLINE void multiply(const mr::CodedShape& s, const mr_blocks::Part& part,
                          const uint32_t* weights, int step,
                          int32_t (&sums)[T][kVectors][M]) const {
    Columns b[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint32_t* words =
          weights + mr_blocks::first_column<kVectors>(part.share, v) + part.lane;
      b[v] = kInt4 ? load_int4(words) : load_int8(words);
    }
#pragma unroll
    for (int t = 0; t < T; ++t) {
      const int64_t row = part.first_row + (t * M < part.rows ? t * M : 0);
      const auto a = load_codes<M>(codes + row * s.padded_depth + int64_t{step} * mr::kCodeDepth,
                                   s.padded_depth, part.rows - t * M, part.lane);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) mr_matrix::multiply<M>(a, b[v], sums[t][v]);
    }
  }
#else
  // A row's codes are the same for all lanes. The weights' codes count from 0: a CPU's compiler makes products of 16 bits of
  // a number without a sign and one of 16 bits, many times as fast as those of 32. The excess, kZero times the sum of the
  // row's codes, is subtracted at the end of a step.
  static constexpr int kZero = kInt4 ? 8 : 128;
  static constexpr uint32_t kMask = kInt4 ? 0xf : 0xff;

  template <int M, int T>
  MR_INLINE void multiply(const mr::CodedShape& s, const mr_blocks::Part& part,
                          const uint32_t* weights, int step,
                          int32_t (&sums)[T][kVectors][M]) const {
    static_assert(T == 1);
    const int32_t* rows[M];  // four codes each
    int32_t row_sums[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const int64_t row = part.first_row + (m < part.rows ? m : 0);
      rows[m] = reinterpret_cast<const int32_t*>(codes + row * s.padded_depth +
                                                 int64_t{step} * mr::kCodeDepth);
      row_sums[m] = 0;
    }
    for (int i = 0; i < mr::kCodeDepth / kWordCodes; ++i) {
      uint32_t words[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        words[v] =
            weights[i * mr_blocks::kBlock + v * MR_LANES + part.lane] ^ (kInt4 ? 0 : 0x80808080u);
      }
#pragma unroll
      for (int k = 0; k < kWordCodes; ++k) {
        int32_t weight[kVectors];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          weight[v] = static_cast<int32_t>(words[v] >> (k % 4 * 8 + k / 4 * 4) & kMask);
        }
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const int32_t four = rows[m][i * (kWordCodes / 4) + k / 4];
          const int32_t row = four << (24 - k % 4 * 8) >> 24;
          row_sums[m] += row;
#pragma unroll
          for (int v = 0; v < kVectors; ++v) sums[0][v][m] += weight[v] * row;
        }
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int v = 0; v < kVectors; ++v) sums[0][v][m] -= kZero * row_sums[m];
  }
#endif

  MR_INLINE float row_scale(int64_t row) const { return row_scales[row]; }
};

}  // namespace mr_quantized

#define MR_QUANTIZED(name, M, T, kInt4)                                                       \
  MR_KERNEL name(const int8_t* codes, const float* row_scales, const uint32_t* weights,       \
                 const void* scales, const float* bias, void* out,                            \
                 MR_TILES_PARAMETER sycl::local_accessor<float, 1> local, mr::CodedShape s) { \
    mr_blocks::run<M, T>(mr_quantized::Format<kInt4>{codes, row_scales},                      \
                         {weights, scales, bias, out, MR_TILES},                              \
                         local.get_multi_ptr<sycl::access::decorated::no>().get(), s);        \
  }
MR_QUANTIZED(mr_int8_1, 1, 1, false)
MR_QUANTIZED(mr_int8_2, 2, 1, false)
MR_QUANTIZED(mr_int8_4, 4, 1, false)
MR_QUANTIZED(mr_int4_1, 1, 1, true)
MR_QUANTIZED(mr_int4_2, 2, 1, true)
MR_QUANTIZED(mr_int4_4, 4, 1, true)
#if MR_XMX
MR_QUANTIZED(mr_int8_8, 8, 1, false)
MR_QUANTIZED(mr_int4_8, 8, 1, true)
#if MR_LANES == 16  // more would not fit into the registers
MR_QUANTIZED(mr_int8_tiles, 8, 2, false)
#endif
#endif

// out of sums [rows][columns] of int8 products, which someone else has computed. A work-group
// per row and block of columns.
MR_KERNEL mr_int8_finish(const int32_t* sums, const float* row_scales, const float* scales,
                         const float* bias, void* out, mr::CodedShape s) {
  using namespace mr_blocks;
  MR_AFTER_PREVIOUS();
  constexpr int kVectors = mr_quantized::Format<false>::kVectors;
  const Item item = this_item();
  const auto sub_group = item.get_sub_group();
  const int lane = sub_group.get_local_linear_id();
  const int64_t row = item.get_group(0) / s.blocks, block = item.get_group(0) % s.blocks;
  const int share = sub_group_index(item);
  float y[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = block * kBlock + first_column<kVectors>(share, v);
    const int32_t sum = load_lanes(sub_group, sums + row * s.blocks * kBlock + column);
    y[v] = static_cast<float>(sum) * (row_scales[row] * load_lanes(sub_group, scales + column));
  }
  finish(s, {nullptr, scales, bias, out, nullptr}, row, block, share, lane, y);
}
