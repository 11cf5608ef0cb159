// The matrix engine's instruction (dpas): c[m] += sum over k of a[m][k] * b[k][lane], of 16
// operands along the sum and sums of float, or of 32 signed bytes and sums of int32. Only
// where MR_XMX is 1.
#ifndef MILLRACE_GPU_DEVICE_DPAS_HPP
#define MILLRACE_GPU_DEVICE_DPAS_HPP

#include "common.hpp"

namespace mr_matrix {

// As the instruction wants it: a word is spread over 16 lanes by halves, or 8 lanes hold one each.
#if MR_LANES == 16
using Cell = int16_t;
#else
using Cell = int32_t;
#endif

typedef int int8v __attribute__((ext_vector_type(8)));
typedef Cell cell2v __attribute__((ext_vector_type(2)));
typedef Cell cell4v __attribute__((ext_vector_type(4)));
typedef Cell cell8v __attribute__((ext_vector_type(8)));
typedef int int2v __attribute__((ext_vector_type(2)));
typedef int int4v __attribute__((ext_vector_type(4)));
typedef float float2v __attribute__((ext_vector_type(2)));
typedef float float4v __attribute__((ext_vector_type(4)));
typedef float float8v __attribute__((ext_vector_type(8)));

#if MR_BF16
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

#ifdef __SYCL_DEVICE_ONLY__
extern "C" SYCL_EXTERNAL float MR_DPAS_1(Cell, int8v, float);
extern "C" SYCL_EXTERNAL float2v MR_DPAS_2(cell2v, int8v, float2v);
extern "C" SYCL_EXTERNAL float4v MR_DPAS_4(cell4v, int8v, float4v);
extern "C" SYCL_EXTERNAL float8v MR_DPAS_8(cell8v, int8v, float8v);

MR_INLINE float mad(Cell a, int8v b, float c) { return MR_DPAS_1(a, b, c); }
MR_INLINE float2v mad(cell2v a, int8v b, float2v c) { return MR_DPAS_2(a, b, c); }
MR_INLINE float4v mad(cell4v a, int8v b, float4v c) { return MR_DPAS_4(a, b, c); }
MR_INLINE float8v mad(cell8v a, int8v b, float8v c) { return MR_DPAS_8(a, b, c); }

extern "C" SYCL_EXTERNAL int MR_DPAS_INT8_1(Cell, int8v, int);
extern "C" SYCL_EXTERNAL int2v MR_DPAS_INT8_2(cell2v, int8v, int2v);
extern "C" SYCL_EXTERNAL int4v MR_DPAS_INT8_4(cell4v, int8v, int4v);
extern "C" SYCL_EXTERNAL int8v MR_DPAS_INT8_8(cell8v, int8v, int8v);

MR_INLINE int mad(Cell a, int8v b, int c) { return MR_DPAS_INT8_1(a, b, c); }
MR_INLINE int2v mad(cell2v a, int8v b, int2v c) { return MR_DPAS_INT8_2(a, b, c); }
MR_INLINE int4v mad(cell4v a, int8v b, int4v c) { return MR_DPAS_INT8_4(a, b, c); }
MR_INLINE int8v mad(cell8v a, int8v b, int8v c) { return MR_DPAS_INT8_8(a, b, c); }
#else
// A compiler ahead of time compiles the kernels for the host too, which never calls them.
template <class Cells, class Sums>
MR_INLINE Sums mad(Cells, int8v, Sums c) {
  return c;
}
#endif

}  // namespace mr_matrix

#endif
