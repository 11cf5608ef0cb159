// out[r] = act(in[r] . W^T + b) by tensor cores, over weights that are operands. mma.hpp says how.
#include "mma.hpp"

namespace mr_linear_mma {

struct Operands {
  using Sum = float;
  using Total = float;
  static constexpr int kTileSteps = 1;
  static constexpr bool kInGroups = false, kSliced = true;

  mr_mma::Shape shape;
  const operand* in;  // [rows][depth]
  int depth;

  MR_INLINE Operands(const mr::LinearShape& s, const operand* in)
      : shape{s.rows,         s.width,       s.gated ? (s.width + 15) / 16 : (s.width + 31) / 32,
              s.depth_blocks, s.slices,      s.slice_blocks,
              s.activation,   s.gated != 0,  s.accumulate != 0,
              s.bias != 0,    s.out_f32 != 0},
        in(in),
        depth(s.depth) {}

  MR_INLINE static void columns(const uint32_t (&words)[4], int, uint32_t (&columns)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) columns[i] = words[i];
  }

  // Two operands at element k of a row; those after its end are 0.
  MR_INLINE uint32_t pair(const operand* row, int k) const {
    return (k < depth ? row[k] : 0u) | (k + 1 < depth ? uint32_t{row[k + 1]} << 16 : 0u);
  }

  MR_INLINE mr_mma::RowWords row(int64_t row, int step, int lane) const {
    const operand* x = in + row * depth;
    if (depth % 2 == 0 && (step + 1) * mr::kDepth <= depth) {
      return mr_mma::row_words(x + step * mr::kDepth, lane);
    }
    const int k = step * mr::kDepth + lane % 4 * 2;
    return {pair(x, k), pair(x, k + 8)};
  }

  template <int kThreads, int kRows, class Place>
  MR_INLINE void copy_rows(uint8_t* to, int64_t first_row, int rows, int stage,
                           const Place& place) const {
    constexpr int kChunks = mr_mma::kStageSteps * mr_mma::kStepBytes / 16;  // of a row
#pragma unroll
    for (int first = 0; first < kRows * kChunks; first += kThreads) {
      const int i = first + threadIdx.x;
      if (kRows * kChunks % kThreads != 0 && i >= kRows * kChunks) break;
      const int row = i / kChunks, k = stage * mr_mma::kStageSteps * mr::kDepth + i % kChunks * 8;
      uint8_t* chunk = to + place(row, i % kChunks);
      const operand* x = in + (first_row + (row < rows ? row : 0)) * depth;
      if (depth % 8 == 0) {
        const bool there = row < rows && k < depth;
        mr_ptx::copy16(chunk, there ? x + k : in, there);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        reinterpret_cast<uint32_t*>(chunk)[j] = row < rows ? pair(x, k + 2 * j) : 0;
      }
    }
  }

  MR_INLINE static int group_steps_of() { return 1; }
  MR_INLINE static const uint16_t* scales_of(int64_t, int) { return nullptr; }
  MR_INLINE static float y(float total, int64_t, int64_t) { return total; }
};

}  // namespace mr_linear_mma

#define MR_LINEAR(name, ...)                                                               \
  MR_KERNEL name(const operand* in, const uint32_t* weights, const float* bias, void* out, \
                 sycl::local_accessor<float, 1> local, mr::LinearShape s) {                \
    mr_mma::__VA_ARGS__(mr_linear_mma::Operands(s, in), weights, bias, out,                \
                        local.get_multi_ptr<sycl::access::decorated::no>().get());         \
  }
#define MR_FORMAT mr_linear_mma::Operands
MR_LINEAR(mr_linear_8, few<MR_FORMAT, 1>)
MR_LINEAR(mr_linear_16, few<MR_FORMAT, 2>)
MR_LINEAR(mr_linear_32, few<MR_FORMAT, 4>)

#undef MR_MOST_ITEMS
#define MR_MOST_ITEMS (32 * mr::kLargeTile.warps())
MR_LINEAR(mr_linear_tiles, tile<MR_FORMAT, mr::kLargeTile>)

#ifdef MR_WGMMA
#undef MR_MOST_ITEMS
#define MR_MOST_ITEMS 128
MR_LINEAR(mr_linear_wide, wide<MR_FORMAT, mr::kWide>)
#undef MR_MOST_ITEMS
#define MR_MOST_ITEMS 256
MR_LINEAR(mr_linear_widest, wide<MR_FORMAT, mr::kWidest>)
#endif
