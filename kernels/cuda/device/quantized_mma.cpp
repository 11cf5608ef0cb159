// out[r] = act(in[r] . W^T + b) by tensor cores, over weights that are int8 or int4 codes and rows quantized to int8.
// mma.hpp says how. The products of codes are summed as integers, all of them for int8, those of a group for int4.
#include "mma.hpp"
#include "quantize_rows.hpp"

namespace mr_quantized_mma {

// Bytes of 0 to 15 as signed bytes of -8 to 7.
MR_INLINE uint32_t centered(uint32_t bytes) {
  return ((bytes | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
}

template <bool kInt4>
struct Codes {
  using Sum = int32_t;
  using Total = std::conditional_t<kInt4, float, int32_t>;
  static constexpr int kTileSteps = kInt4 ? 2 : 1;
  static constexpr bool kInGroups = kInt4, kSliced = kInt4;

  mr_mma::Shape shape;
  const int8_t* codes;      // [rows][padded_depth]
  const float* row_scales;  // [rows]
  const void* scales;       // floats [columns]; int4: bf16 [group of columns][group of steps][32]
  int padded_depth, step_groups, group_steps;

  MR_INLINE Codes(const mr::CodedShape& s, const int8_t* codes, const float* row_scales,
                  const void* scales)
      : shape{s.rows,        s.width,      s.blocks,     s.steps,           s.slices,
              s.slice_steps, s.activation, s.gated != 0, s.accumulate != 0, s.bias != 0,
              s.out_f32 != 0},
        codes(codes),
        row_scales(row_scales),
        scales(scales),
        padded_depth(s.padded_depth),
        step_groups(s.groups),
        group_steps(s.group_steps) {}

  MR_INLINE static void columns(const uint32_t (&words)[4], int step, uint32_t (&columns)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kInt4) {
        const uint32_t eight = words[step * 2 + i % 2];
        columns[i] = centered((i < 2 ? eight : eight >> 4) & 0x0f0f0f0fu);
      } else {
        columns[i] = words[i];
      }
    }
  }

  MR_INLINE mr_mma::RowWords row(int64_t row, int step, int lane) const {
    return mr_mma::row_words(codes + row * padded_depth + step * mr_mma::kStepBytes, lane);
  }

  template <int kThreads, int kRows, class Place>
  MR_INLINE void copy_rows(uint8_t* to, int64_t first_row, int rows, int stage,
                           const Place& place) const {
    constexpr int kChunks = mr_mma::kStageSteps * mr_mma::kStepBytes / 16;  // of a row
#pragma unroll
    for (int first = 0; first < kRows * kChunks; first += kThreads) {
      const int i = first + threadIdx.x;
      if (kRows * kChunks % kThreads != 0 && i >= kRows * kChunks) break;
      const int row = i / kChunks, k = (stage * kChunks + i % kChunks) * 16;
      const bool there = row < rows && k < padded_depth;
      mr_ptx::copy16(to + place(row, i % kChunks),
                     there ? codes + (first_row + row) * padded_depth + k : codes, there);
    }
  }

  MR_INLINE int group_steps_of() const { return group_steps; }
  MR_INLINE const uint16_t* scales_of(int64_t group, int step) const {
    return static_cast<const uint16_t*>(scales) +
           (group * step_groups + step / group_steps) * mr_mma::kGroup;
  }

  MR_INLINE float y(Total total, int64_t row, int64_t column) const {
    float scale = row_scales[row];
    if constexpr (!kInt4) scale *= static_cast<const float*>(scales)[column];
    return static_cast<float>(total) * scale;
  }
};

}  // namespace mr_quantized_mma

#define MR_QUANTIZED(name, kInt4, ...)                                                  \
  MR_KERNEL name(const int8_t* codes, const float* row_scales, const uint32_t* weights, \
                 const void* scales, const float* bias, void* out,                      \
                 sycl::local_accessor<float, 1> local, mr::CodedShape s) {              \
    using MrFormat = mr_quantized_mma::Codes<kInt4>;                                    \
    mr_mma::__VA_ARGS__(MrFormat(s, codes, row_scales, scales), weights, bias, out,     \
                        local.get_multi_ptr<sycl::access::decorated::no>().get());      \
  }
MR_QUANTIZED(mr_int8_8, false, few<MrFormat, 1>)
MR_QUANTIZED(mr_int8_16, false, few<MrFormat, 2>)
MR_QUANTIZED(mr_int8_32, false, few<MrFormat, 4>)
MR_QUANTIZED(mr_int4_8, true, few<MrFormat, 1>)
MR_QUANTIZED(mr_int4_16, true, few<MrFormat, 2>)

#undef MR_MOST_ITEMS
#define MR_MOST_ITEMS (32 * mr::kLargeTile.warps())
MR_QUANTIZED(mr_int8_tiles, false, tile<MrFormat, mr::kLargeTile>)
#undef MR_MOST_ITEMS
#define MR_MOST_ITEMS (32 * mr::kLargeTileInt4.warps())
MR_QUANTIZED(mr_int4_tiles, true, tile<MrFormat, mr::kLargeTileInt4>)

#ifdef MR_WGMMA
#undef MR_MOST_ITEMS
#define MR_MOST_ITEMS 128
MR_QUANTIZED(mr_int8_wide, false, wide<MrFormat, mr::kWide>)
MR_QUANTIZED(mr_int4_wide, true, wide<MrFormat, mr::kWideInt4>)
#undef MR_MOST_ITEMS
#define MR_MOST_ITEMS 256
MR_QUANTIZED(mr_int8_widest, false, wide<MrFormat, mr::kWidest>)
MR_QUANTIZED(mr_int4_widest, true, wide<MrFormat, mr::kWidestInt4>)
#endif
