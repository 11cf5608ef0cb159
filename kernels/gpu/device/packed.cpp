// Linear ops over weights in oneDNN's blocks: few rows by our kernels, and what precedes and follows
// the products of many rows.
//
// W lies as [block of 64 columns][pair along the sum][column][2], or where oneDNN multiplies floats as
// [block][depth][column]: one stream for whoever computes a block. A gated op has 32 columns of gate
// and the same 32 of up in each block.
//
// oneDNN multiplies many rows there. Our kernels for few rows add up in its order, so that
// a row has the same bits in both: of a pair the second product first, chunk by chunk, the
// sum of each chunk from zero. Whether that is its order is checked when a program is
// loaded (linear_choice.cpp).
#include "activation.hpp"
#include "matrix.hpp"

namespace mr_packed {
using mr_matrix::high;
using mr_matrix::low;

constexpr int kBlock = mr::kPackedColumns;
constexpr int kVectors = kBlock / MR_LANES;

// A word of the weights, one of each lane: a pair along the sum, or two neighboring columns.
template <bool kPairs>
constexpr int kDeep = kPairs ? 2 : 1;
template <bool kPairs>
constexpr int kWordVectors = kVectors* kDeep<kPairs> / 2;

// The column of a block whose sum this lane has in vector v.
template <bool kPairs>
MR_INLINE int column_of(int v, int lane) {
  return kPairs ? v * MR_LANES + lane : v / 2 * 2 * MR_LANES + 2 * lane + v % 2;
}

// The depth of what is fetched at once.
template <bool kPairs>
constexpr int kFetchedSteps = kFetchedWords / (kWordVectors<kPairs> * MR_LANES) * kDeep<kPairs>;

// A sub-group computes a block of columns of M rows.
template <int M, bool kPairs>
MR_INLINE void run(const operand* in, const uint32_t* weights, const float* bias, void* out,
                   const mr::PackedShape& s) {
  MR_AFTER_PREVIOUS();
  constexpr int kStep = kDeep<kPairs>, kWords = kWordVectors<kPairs>;
  const Item item = this_item();
  const int lane = item.get_sub_group().get_local_linear_id();
  const int64_t block = item.get_group(0);
  const uint32_t* w = weights + block * (s.padded_depth / 2) * kBlock;
  const operand* x[M];
#pragma unroll
  for (int m = 0; m < M; ++m) x[m] = in + int64_t{m < s.rows ? m : 0} * s.depth;
  float total[M][kVectors];
  for (int begin = 0; begin < s.depth; begin += s.chunk) {
    const int end = begin + s.chunk < s.depth ? begin + s.chunk : s.depth;
    float sum[M][kVectors];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int v = 0; v < kVectors; ++v) sum[m][v] = 0;
    for (int k = begin; k < end; k += kStep) {
      if ((k - begin) % kFetchedSteps<kPairs> == 0) fetch_ahead(w, lane);
      uint32_t word[kWords];
#pragma unroll
      for (int v = 0; v < kWords; ++v) word[v] = w[v * MR_LANES + lane];
      w += kWords * MR_LANES;
#pragma unroll
      for (int m = 0; m < M; ++m) {
        if constexpr (kPairs) {
          const uint32_t pair = reinterpret_cast<const uint32_t*>(x[m])[k / 2];
          const float first = low(pair), second = high(pair);
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
            sum[m][v] = sycl::fma(second, high(word[v]), sum[m][v]);
            sum[m][v] = sycl::fma(first, low(word[v]), sum[m][v]);
          }
        } else {
          const float number = to_float(x[m][k]);
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
            const float weight = v % 2 == 0 ? low(word[v / 2]) : high(word[v / 2]);
            sum[m][v] = sycl::fma(number, weight, sum[m][v]);
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        total[m][v] = begin == 0 ? sum[m][v] : total[m][v] + sum[m][v];
      }
  }
  const int vectors = s.gated ? kVectors / 2 : kVectors;
#pragma unroll 1
  for (int m = 0; m < M && m < s.rows; ++m)
#pragma unroll 1
    for (int v = 0; v < vectors; ++v) {
      const int64_t packed = block * kBlock + column_of<kPairs>(v, lane);
      const int64_t column = block * vectors * MR_LANES + column_of<kPairs>(v, lane);
      if (column >= s.width) continue;
      float y = total[m][v];
      if (s.bias) y += bias[packed];
      y = mr_linear::activate(s.activation, y);
      if (s.gated) {
        float up = total[m][v + vectors];
        if (s.bias) up += bias[packed + kBlock / 2];
        y *= mr_linear::multiplier(s.activation, up);
      }
      mr_linear::write_at(s, out, int64_t{m} * s.width + column, y);
    }
}

}  // namespace mr_packed

#define MR_PACKED(name, M, kPairs)                                                         \
  MR_KERNEL name(const operand* in, const uint32_t* weights, const float* bias, void* out, \
                 mr::PackedShape s) {                                                      \
    mr_packed::run<M, kPairs>(in, weights, bias, out, s);                                  \
  }
MR_PACKED(mr_packed_1, 1, true)
MR_PACKED(mr_packed_2, 2, true)
MR_PACKED(mr_packed_4, 4, true)
MR_PACKED(mr_floats_1, 1, false)
MR_PACKED(mr_floats_2, 2, false)
MR_PACKED(mr_floats_4, 4, false)

// Operands as floats. A work-group per mr::kWidened of them.
MR_KERNEL mr_widen(const operand* in, float* out, int64_t n) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto sub_group = item.get_sub_group();
  const int lane = sub_group.get_local_linear_id();
  const int64_t begin = static_cast<int64_t>(item.get_group(0)) * mr::kWidened;
  for (int i = sub_group_index(item) * MR_LANES; i < mr::kWidened; i += mr::kRowItems) {
    const int64_t first = begin + i;
    if (first + MR_LANES <= n) {
      store_lanes(sub_group, out + first, to_float(load_lanes(sub_group, in + first)));
    } else if (first + lane < n) {
      out[first + lane] = to_float(in[first + lane]);
    }
  }
}

// out = act(in), gated, of [rows][packed columns] sums with their bias, and what a row's last vector
// reads after them. A work-group per row.
MR_KERNEL mr_finish(const float* in, void* out, mr::PackedShape s) {
  MR_AFTER_PREVIOUS();
  constexpr int kHalf = mr::kPackedColumns / 2, kVectors = kHalf / MR_LANES;
  const Item item = this_item();
  const auto sub_group = item.get_sub_group();
  const int64_t row = item.get_group(0);
  const float* sums = in + row * s.columns;
  for (int v = sub_group_index(item); v * MR_LANES < s.width; v += mr::kRowItems / MR_LANES) {
    const int packed =
        s.gated ? v / kVectors * mr::kPackedColumns + v % kVectors * MR_LANES : v * MR_LANES;
    const float* gate = sums + packed;
    float y = mr_linear::activate(s.activation, load_lanes(sub_group, gate));
    if (s.gated) y *= mr_linear::multiplier(s.activation, load_lanes(sub_group, gate + kHalf));
    mr_linear::write(s, out, row, v * MR_LANES, y);
  }
}
