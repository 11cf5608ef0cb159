// Products of small matrices: the matrix engine's instruction (dpas), and the
// same written out for devices without one.
//
//   C[m][n] += sum over k = 0..15 of A[m][k] * B[k][n],  n = lane
//
// The sum of one element runs over k in one order, whatever M is: a row's result
// does not depend on the rows beside it.
#ifndef MILLRACE_SYCL_DEVICE_MATRIX_HPP
#define MILLRACE_SYCL_DEVICE_MATRIX_HPP

#include "common.hpp"

namespace mr_matrix {

// B of one block: pairs[i] holds B[2i][lane] (low half) and B[2i + 1][lane].
struct Columns {
  uint32_t pairs[8];
};

#if MR_BF16
MR_INLINE float low(uint32_t pair) { return sycl::bit_cast<float>(pair << 16); }
MR_INLINE float high(uint32_t pair) { return sycl::bit_cast<float>(pair & 0xffff0000u); }
#else
MR_INLINE float low(uint32_t pair) { return f16_to_float(static_cast<uint16_t>(pair)); }
MR_INLINE float high(uint32_t pair) { return f16_to_float(static_cast<uint16_t>(pair >> 16)); }
#endif

#if MR_XMX

// A as the instruction wants it: 16 lanes hold a column each, 8 lanes a pair.
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
typedef Cell cell2v __attribute__((ext_vector_type(2)));
typedef Cell cell4v __attribute__((ext_vector_type(4)));
typedef Cell cell8v __attribute__((ext_vector_type(8)));
typedef float float2v __attribute__((ext_vector_type(2)));
typedef float float4v __attribute__((ext_vector_type(4)));
typedef float float8v __attribute__((ext_vector_type(8)));

#if MR_BF16 && MR_LANES == 16
#define MR_DPAS(suffix) _Z40intel_sub_group_bf16_bf16_matrix_mad_k16##suffix
#elif MR_BF16
#define MR_DPAS(suffix) _Z40intel_sub_group_bf16_bf16_matrix_mad_k16##suffix
#else
#define MR_DPAS(suffix) _Z38intel_sub_group_f16_f16_matrix_mad_k16##suffix
#endif
#if MR_LANES == 16
#define MR_DPAS_1 MR_DPAS(sDv8_if)
#define MR_DPAS_2 MR_DPAS(Dv2_sDv8_iDv2_f)
#define MR_DPAS_4 MR_DPAS(Dv4_sDv8_iDv4_f)
#define MR_DPAS_8 MR_DPAS(Dv8_sDv8_iDv8_f)
#else
#define MR_DPAS_1 MR_DPAS(iDv8_if)
#define MR_DPAS_2 MR_DPAS(Dv2_iDv8_iDv2_f)
#define MR_DPAS_4 MR_DPAS(Dv4_iDv8_iDv4_f)
#define MR_DPAS_8 MR_DPAS(Dv8_iS_Dv8_f)
#endif
#ifdef __SYCL_DEVICE_ONLY__
extern "C" SYCL_EXTERNAL float MR_DPAS_1(Cell, int8v, float);
extern "C" SYCL_EXTERNAL float2v MR_DPAS_2(cell2v, int8v, float2v);
extern "C" SYCL_EXTERNAL float4v MR_DPAS_4(cell4v, int8v, float4v);
extern "C" SYCL_EXTERNAL float8v MR_DPAS_8(cell8v, int8v, float8v);

MR_INLINE float mad(Cell a, int8v b, float c) { return MR_DPAS_1(a, b, c); }
MR_INLINE float2v mad(cell2v a, int8v b, float2v c) { return MR_DPAS_2(a, b, c); }
MR_INLINE float4v mad(cell4v a, int8v b, float4v c) { return MR_DPAS_4(a, b, c); }
MR_INLINE float8v mad(cell8v a, int8v b, float8v c) { return MR_DPAS_8(a, b, c); }
#else
// A compiler ahead of time compiles the kernels for the host too, which never calls them.
template <class Cells, class Sums>
MR_INLINE Sums mad(Cells, int8v, Sums c) {
  return c;
}
#endif

template <int M>
MR_INLINE void multiply(const Rows<M>& a, const Columns& b, float (&c)[M]) {
  int8v pairs;
#pragma unroll
  for (int i = 0; i < 8; ++i) pairs[i] = static_cast<int>(b.pairs[i]);
  if constexpr (M == 1) {
    c[0] = mad(a.cells[0], pairs, c[0]);
  } else {
    typedef Cell CellV __attribute__((ext_vector_type(M)));
    typedef float FloatV __attribute__((ext_vector_type(M)));
    CellV rows;
    FloatV sums;
#pragma unroll
    for (int m = 0; m < M; ++m) rows[m] = a.cells[m];
#pragma unroll
    for (int m = 0; m < M; ++m) sums[m] = c[m];
    sums = mad(rows, pairs, sums);
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

#else  // written out

// Lane k holds column k of A; on 8 lanes, columns k and k + 8.
constexpr int kParts = mr::kDepth / MR_LANES;
template <int M>
struct Rows {
  float cells[kParts][M];
};

template <int M>
MR_INLINE Rows<M> load_rows(const operand* a, int64_t stride, int rows, int columns, int lane) {
  Rows<M> r;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const operand* row = a + (m < rows ? m : 0) * stride;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
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
    const float column = k % 2 == 0 ? low(b.pairs[k / 2]) : high(b.pairs[k / 2]);
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
