// matrix.hpp for int8: 32 products of a block along the sum, sums of int32.
//
//   C[m][n] += sum over k = 0..31 of A[m][k] * B[k][n],  n = lane
#ifndef MILLRACE_SYCL_DEVICE_MATRIX_INT8_HPP
#define MILLRACE_SYCL_DEVICE_MATRIX_INT8_HPP

#include "common.hpp"

namespace mr_int8 {

// B of one block: quads[i] holds B[4i .. 4i + 3][lane], the first one in the low byte.
struct Columns {
  uint32_t quads[8];
};

#if MR_XMX

// A as the instruction wants it: 16 lanes hold two columns each, 8 lanes four.
#if MR_LANES == 16
using Cell = int16_t;
#else
using Cell = int32_t;
#endif
template <int M>
struct Rows {
  Cell cells[M];
};

typedef int int8v __attribute__((ext_vector_type(8)));

#ifdef __SYCL_DEVICE_ONLY__
typedef Cell cell2v __attribute__((ext_vector_type(2)));
typedef Cell cell4v __attribute__((ext_vector_type(4)));
typedef Cell cell8v __attribute__((ext_vector_type(8)));
typedef int int2v __attribute__((ext_vector_type(2)));
typedef int int4v __attribute__((ext_vector_type(4)));
#define MR_DPAS_INT8(suffix) _Z36intel_sub_group_i8_i8_matrix_mad_k32##suffix
#if MR_LANES == 16
#define MR_DPAS_INT8_1 MR_DPAS_INT8(sDv8_ii)
#define MR_DPAS_INT8_2 MR_DPAS_INT8(Dv2_sDv8_iDv2_i)
#define MR_DPAS_INT8_4 MR_DPAS_INT8(Dv4_sDv8_iDv4_i)
#define MR_DPAS_INT8_8 MR_DPAS_INT8(Dv8_sDv8_iS0_)
#else
#define MR_DPAS_INT8_1 MR_DPAS_INT8(iDv8_ii)
#define MR_DPAS_INT8_2 MR_DPAS_INT8(Dv2_iDv8_iS_)
#define MR_DPAS_INT8_4 MR_DPAS_INT8(Dv4_iDv8_iS_)
#define MR_DPAS_INT8_8 MR_DPAS_INT8(Dv8_iS_S_)
#endif
extern "C" SYCL_EXTERNAL int MR_DPAS_INT8_1(Cell, int8v, int);
extern "C" SYCL_EXTERNAL int2v MR_DPAS_INT8_2(cell2v, int8v, int2v);
extern "C" SYCL_EXTERNAL int4v MR_DPAS_INT8_4(cell4v, int8v, int4v);
extern "C" SYCL_EXTERNAL int8v MR_DPAS_INT8_8(cell8v, int8v, int8v);

MR_INLINE int mad(Cell a, int8v b, int c) { return MR_DPAS_INT8_1(a, b, c); }
MR_INLINE int2v mad(cell2v a, int8v b, int2v c) { return MR_DPAS_INT8_2(a, b, c); }
MR_INLINE int4v mad(cell4v a, int8v b, int4v c) { return MR_DPAS_INT8_4(a, b, c); }
MR_INLINE int8v mad(cell8v a, int8v b, int8v c) { return MR_DPAS_INT8_8(a, b, c); }
#else
// As in matrix.hpp.
template <class Cells, class Sums>
MR_INLINE Sums mad(Cells, int8v, Sums c) {
  return c;
}
#endif

template <int M>
MR_INLINE void multiply(const Rows<M>& a, const Columns& b, int32_t (&c)[M]) {
  int8v quads;
#pragma unroll
  for (int i = 0; i < 8; ++i) quads[i] = static_cast<int>(b.quads[i]);
  if constexpr (M == 1) {
    c[0] = mad(a.cells[0], quads, c[0]);
  } else {
    typedef Cell CellV __attribute__((ext_vector_type(M)));
    typedef int IntV __attribute__((ext_vector_type(M)));
    CellV rows;
    IntV sums;
#pragma unroll
    for (int m = 0; m < M; ++m) rows[m] = a.cells[m];
#pragma unroll
    for (int m = 0; m < M; ++m) sums[m] = c[m];
    sums = mad(rows, quads, sums);
#pragma unroll
    for (int m = 0; m < M; ++m) c[m] = sums[m];
  }
}

// Rows of A at a, `stride` codes apart, of which only the first `rows` are there.
template <int M>
MR_INLINE Rows<M> load_rows(const int8_t* a, int64_t stride, int rows, int lane) {
  Rows<M> r;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    r.cells[m] = reinterpret_cast<const Cell*>(a + (m < rows ? m : 0) * stride)[lane];
  }
  return r;
}

#else  // written out

// Lane n holds codes n, n + MR_LANES, ... as floats: a block's sums are whole numbers below
// 2^24, and so exact in them.
constexpr int kParts = mr::kCodeDepth / MR_LANES;
template <int M>
struct Rows {
  float cells[kParts][M];
};

template <int M>
MR_INLINE Rows<M> load_rows(const int8_t* a, int64_t stride, int rows, int lane) {
  Rows<M> r;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const int8_t* row = a + (m < rows ? m : 0) * stride;
#pragma unroll
    for (int i = 0; i < kParts; ++i) r.cells[i][m] = row[i * MR_LANES + lane];
  }
  return r;
}

template <int M>
MR_INLINE void multiply(const Rows<M>& a, const Columns& b, int32_t (&c)[M]) {
  const auto sub_group = this_item().get_sub_group();
  float sums[M];
#pragma unroll
  for (int m = 0; m < M; ++m) sums[m] = 0;
#pragma unroll
  for (int k = 0; k < mr::kCodeDepth; ++k) {
    const float column = static_cast<int32_t>(b.quads[k / 4] << (24 - 8 * (k % 4))) >> 24;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const float row = sycl::group_broadcast(sub_group, a.cells[k / MR_LANES][m], k % MR_LANES);
      sums[m] = sycl::fma(row, column, sums[m]);
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) c[m] += static_cast<int32_t>(sums[m]);
}

#endif

}  // namespace mr_int8

#endif
