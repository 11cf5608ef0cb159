// Products of small matrices: the matrix engine's instruction (dpas), and the
// same written out for devices without one.
//
//   C[m][n] += sum over k of A[m][k] * B[k][n],  n = lane
//
// for 16 operands along the sum and sums of float, or, by the engine, 32 codes (signed bytes) and sums of
// int32.
//
// The sum of one element runs over k in one order, whatever M is: a row's result
// does not depend on the rows beside it.
#ifndef MILLRACE_GPU_DEVICE_MATRIX_HPP
#define MILLRACE_GPU_DEVICE_MATRIX_HPP

#include "common.hpp"
#if MR_XMX
#include "dpas.hpp"
#endif

namespace mr_matrix {

// B of one block: words[i] holds B[2i][lane] (low half) and B[2i + 1][lane], or four codes.
struct Columns {
  uint32_t words[8];
};

// A: kDeep columns of M rows.
template <int M, int kDeep = mr::kDepth>
struct Rows;
template <int M>
using CodeRows = Rows<M, mr::kCodeDepth>;

// Bytes of 0 to 15 as signed bytes of -8 to 7.
MR_INLINE uint32_t centered(uint32_t bytes) {
  return ((bytes | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
}

#if MR_BF16
MR_INLINE float low(uint32_t pair) { return sycl::bit_cast<float>(pair << 16); }
MR_INLINE float high(uint32_t pair) { return sycl::bit_cast<float>(pair & 0xffff0000u); }
#else
MR_INLINE float low(uint32_t pair) { return f16_to_float(static_cast<uint16_t>(pair)); }
MR_INLINE float high(uint32_t pair) { return f16_to_float(static_cast<uint16_t>(pair >> 16)); }
#endif

#if MR_XMX

template <int M, int kDeep>
struct Rows {
  Cell cells[M];
};

template <int M, int kDeep, class Sum>
MR_INLINE void multiply(const Rows<M, kDeep>& a, const Columns& b, Sum (&c)[M]) {
  int8v words;
#pragma unroll
  for (int i = 0; i < 8; ++i) words[i] = static_cast<int>(b.words[i]);
  if constexpr (M == 1) {
    c[0] = mad(a.cells[0], words, c[0]);
  } else {
    typedef Cell CellV __attribute__((ext_vector_type(M)));
    typedef Sum SumV __attribute__((ext_vector_type(M)));
    CellV rows;
    SumV sums;
#pragma unroll
    for (int m = 0; m < M; ++m) rows[m] = a.cells[m];
#pragma unroll
    for (int m = 0; m < M; ++m) sums[m] = c[m];
    sums = mad(rows, words, sums);
#pragma unroll
    for (int m = 0; m < M; ++m) c[m] = sums[m];
  }
}

// Rows of A at a, `stride` elements apart; of the 16 columns only the first
// `columns` are there, and of the M rows the first `rows`. The others are 0.
template <int M>
MR_INLINE Rows<M> load_rows(const operand* a, int64_t stride, int rows, int columns, int lane) {
  Rows<M> r;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const operand* row = a + (m < rows ? m : 0) * stride;
#if MR_LANES == 16
    r.cells[m] = lane < columns ? row[lane] : 0;
#else
    const uint32_t first = 2 * lane < columns ? row[2 * lane] : 0;
    const uint32_t second = 2 * lane + 1 < columns ? row[2 * lane + 1] : 0;
    r.cells[m] = static_cast<Cell>(first | second << 16);
#endif
  }
  return r;
}

// Rows of A at a, `stride` codes apart, of which only the first `rows` are there.
template <int M>
MR_INLINE CodeRows<M> load_codes(const int8_t* a, int64_t stride, int rows, int lane) {
  CodeRows<M> r;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    r.cells[m] = reinterpret_cast<const Cell*>(a + (m < rows ? m : 0) * stride)[lane];
  }
  return r;
}

#else  // written out

// Lane k holds columns k, k + MR_LANES, ...
template <int M, int kDeep>
struct Rows {
  static constexpr int kParts = kDeep / MR_LANES;
  float cells[kParts][M];
};

template <int M>
MR_INLINE Rows<M> load_rows(const operand* a, int64_t stride, int rows, int columns, int lane) {
  Rows<M> r;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const operand* row = a + (m < rows ? m : 0) * stride;
#pragma unroll
    for (int i = 0; i < r.kParts; ++i) {
      const int k = i * MR_LANES + lane;
      r.cells[i][m] = k < columns ? to_float(row[k]) : 0.0f;
    }
  }
  return r;
}

template <int M>
MR_INLINE void multiply(const Rows<M>& a, const Columns& b, float (&c)[M]) {
  const auto sub_group = this_item().get_sub_group();
#pragma unroll
  for (int k = 0; k < mr::kDepth; ++k) {
    const float column = k % 2 == 0 ? low(b.words[k / 2]) : high(b.words[k / 2]);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const float row = sycl::group_broadcast(sub_group, a.cells[k / MR_LANES][m], k % MR_LANES);
      c[m] = sycl::fma(row, column, c[m]);
    }
  }
}

#endif

}  // namespace mr_matrix

#endif
