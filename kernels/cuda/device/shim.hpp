// The part of SYCL 2020 that Millrace's device code uses, in CUDA's terms, for NVRTC. It stands in
// for <sycl/sycl.hpp>, <cstdint>, <limits> and <type_traits>: NVRTC needs no other header, and so
// no CUDA toolkit.
//
// A work-item is a thread and a work-group a block. A sub-group is MR_LANES (8, 16 or 32)
// neighboring lanes of a warp; group functions name only the lanes of their own sub-group, so that
// the sub-groups of a warp may go different ways.
#ifndef MILLRACE_CUDA_DEVICE_SHIM_HPP
#define MILLRACE_CUDA_DEVICE_SHIM_HPP

#if __CUDA_ARCH__ < 800
#error "sm_80 or later: bf16 products, mma of 16 along the sum"
#endif

// ---- What the standard library has

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
using size_t = unsigned long;
static_assert(sizeof(int64_t) == 8);
#ifndef INT32_MAX
#define INT32_MAX 2147483647
#endif

namespace std {
template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static constexpr float max() { return 3.402823466e+38f; }
  static constexpr float min() { return 1.175494351e-38f; }
  static constexpr float infinity() { return __builtin_bit_cast(float, 0x7f800000); }
  static constexpr float quiet_NaN() { return __builtin_bit_cast(float, 0x7fc00000); }
};
template <>
struct numeric_limits<int> {
  static constexpr int max() { return INT32_MAX; }
};
template <bool, class A, class>
struct conditional {
  using type = A;
};
template <class A, class B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool b, class A, class B>
using conditional_t = typename conditional<b, A, B>::type;
}  // namespace std

// ---- Kernels: free functions that the host finds by name

// Threads of a block at most, for which the registers have to suffice: of a sum in slices
// (MR_MOST_SLICES is the host's kMostSlices), or the stripes of attention. A file may define its own.
#ifndef MR_MOST_ITEMS
#ifdef MR_HEAD_DIM
#define MR_MOST_ITEMS (4 * MR_LANES)
#else
#define MR_MOST_ITEMS (MR_MOST_SLICES * MR_LANES)
#endif
#endif

// Bounds make the compiler aim at more blocks of an SM too, which costs spills: 256 threads need none, as they have
// the most registers of a thread, 255, in any case.
#if MR_MOST_ITEMS > 256
#define SYCL_EXTERNAL __global__ __launch_bounds__(MR_MOST_ITEMS)
#else
#define SYCL_EXTERNAL __global__
#endif
#define SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(property)

// common.hpp's attribute means nothing to NVRTC: what is not inlined may keep its arrays in memory.
#define MR_INLINE __forceinline__

// The block's dynamic shared memory. The host passes a byte for it, and the size at the launch.
#ifndef MR_DYNAMIC_SHARED
#define MR_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

#include "ptx.hpp"

#define MR_AFTER_PREVIOUS() (mr_ptx::start_next(), mr_ptx::wait_for_previous())

namespace sycl {

// ---- Numbers

template <class To, class From>
MR_INLINE constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}

struct half {
  uint16_t bits;
  half() = default;
  MR_INLINE explicit half(float x) : bits(mr_ptx::half_of(x)) {}
  MR_INLINE explicit half(int32_t x) : half(static_cast<float>(x)) {}  // exact below 2^24
  MR_INLINE explicit operator float() const { return mr_ptx::float_of(bits); }
};

MR_INLINE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
MR_INLINE float fabs(float x) { return ::fabsf(x); }
MR_INLINE float fmax(float a, float b) { return ::fmaxf(a, b); }
MR_INLINE float fmin(float a, float b) { return ::fminf(a, b); }
MR_INLINE float rint(float x) { return ::rintf(x); }
MR_INLINE float sqrt(float x) { return __fsqrt_rn(x); }
MR_INLINE float exp(float x) { return ::expf(x); }
MR_INLINE float expm1(float x) { return ::expm1f(x); }
MR_INLINE float log1p(float x) { return ::log1pf(x); }
MR_INLINE float tanh(float x) { return ::tanhf(x); }
MR_INLINE float erf(float x) { return ::erff(x); }
MR_INLINE float sin(float x) { return ::sinf(x); }
MR_INLINE float cos(float x) { return ::cosf(x); }

template <class T>
struct plus {
  MR_INLINE T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct maximum {
  MR_INLINE T operator()(T a, T b) const { return a < b ? b : a; }
};
template <>
struct maximum<float> {
  MR_INLINE float operator()(float a, float b) const { return ::fmaxf(a, b); }
};

template <class T, int N>
struct alignas(sizeof(T) * N) vec {
  T at[N];
  vec() = default;
  MR_INLINE explicit vec(T x) {
#pragma unroll
    for (int i = 0; i < N; ++i) at[i] = x;
  }
  MR_INLINE T& operator[](int i) { return at[i]; }
  MR_INLINE const T& operator[](int i) const { return at[i]; }
  MR_INLINE vec& operator+=(const vec& other) {
#pragma unroll
    for (int i = 0; i < N; ++i) at[i] += other.at[i];
    return *this;
  }
};

// ---- Groups. Blocks are one-dimensional.

struct sub_group {
  static_assert(MR_LANES == 8 || MR_LANES == 16 || MR_LANES == 32);
  MR_INLINE uint32_t get_local_linear_id() const { return threadIdx.x % MR_LANES; }
  MR_INLINE uint32_t get_group_linear_id() const { return threadIdx.x / MR_LANES; }
  template <class T>
  MR_INLINE T load(const T* first) const {
    return first[get_local_linear_id()];
  }
  template <class T>
  MR_INLINE void store(T* first, T x) const {
    first[get_local_linear_id()] = x;
  }
  // The lanes of this sub-group in its warp.
  MR_INLINE static uint32_t lanes() {
    if (MR_LANES == 32) return 0xffffffffu;
    return ((1u << MR_LANES % 32) - 1) << (threadIdx.x % 32 / MR_LANES * MR_LANES);
  }
};

template <int>
struct group {
  MR_INLINE uint32_t get_local_linear_id() const { return threadIdx.x; }
};

template <int>
struct nd_item {
  MR_INLINE sub_group get_sub_group() const { return {}; }
  MR_INLINE group<1> get_group() const { return {}; }
  MR_INLINE size_t get_group(int) const { return blockIdx.x; }
  MR_INLINE size_t get_local_id(int) const { return threadIdx.x; }
  MR_INLINE size_t get_local_range(int) const { return blockDim.x; }
  MR_INLINE size_t get_global_id(int) const {
    return size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  }
  MR_INLINE size_t get_global_range(int) const { return size_t{gridDim.x} * blockDim.x; }
};

MR_INLINE void group_barrier(const sub_group&) { __syncwarp(sub_group::lanes()); }
MR_INLINE void group_barrier(const group<1>&) { __syncthreads(); }

template <class T>
MR_INLINE T select_from_group(const sub_group&, T x, int lane) {
  return __shfl_sync(sub_group::lanes(), x, lane, MR_LANES);
}
template <class T>
MR_INLINE T group_broadcast(const sub_group&, T x, int lane) {
  return __shfl_sync(sub_group::lanes(), x, lane, MR_LANES);
}
template <class T>
MR_INLINE T permute_group_by_xor(const sub_group&, T x, int mask) {
  return __shfl_xor_sync(sub_group::lanes(), x, mask, MR_LANES);
}

// Pairs at half the distance each time: one order, and the same bits in every lane.
template <class T, class Op>
MR_INLINE T reduce_over_group(const sub_group&, T x, Op op) {
#pragma unroll
  for (int mask = MR_LANES / 2; mask > 0; mask /= 2) {
    x = op(x, __shfl_xor_sync(sub_group::lanes(), x, mask, MR_LANES));
  }
  return x;
}
// Sub-groups in ascending order.
template <class T, class Op>
MR_INLINE T reduce_over_group(const group<1>&, T x, Op op) {
  __shared__ T parts[1024 / MR_LANES];
  x = reduce_over_group(sub_group{}, x, op);
  if (threadIdx.x % MR_LANES == 0) parts[threadIdx.x / MR_LANES] = x;
  __syncthreads();
  x = parts[0];
  for (int i = 1; i < blockDim.x / MR_LANES; ++i) x = op(x, parts[i]);
  __syncthreads();  // the next reduction writes there
  return x;
}

// ---- Memory

template <class T>
struct decorated_global_ptr {
  using pointer = T*;
};

namespace access {
enum class decorated { no, yes };
enum class address_space { local_space, global_space };
}  // namespace access

template <access::address_space, access::decorated, class T>
MR_INLINE T* address_space_cast(T* address) {
  return address;
}

enum class memory_order { relaxed };
enum class memory_scope { work_group };

template <class T, memory_order, memory_scope, access::address_space>
struct atomic_ref {
  T& at;
  MR_INLINE explicit atomic_ref(T& at) : at(at) {}
  MR_INLINE T fetch_add(T x) const { return atomicAdd(&at, x); }
};

template <class T, int>
struct local_accessor {
  struct Pointer {
    T* data;
    MR_INLINE T* get() const { return data; }
  };
  template <access::decorated>
  MR_INLINE Pointer get_multi_ptr() const {
    MR_DYNAMIC_SHARED(float4, mr_local);
    return {reinterpret_cast<T*>(mr_local)};
  }
};

namespace ext::oneapi {
namespace experimental {
template <int>
struct nd_range_kernel;
template <int>
struct sub_group_size;
}  // namespace experimental
namespace this_work_item {
template <int N>
MR_INLINE nd_item<N> get_nd_item() {
  return {};
}
}  // namespace this_work_item
}  // namespace ext::oneapi

}  // namespace sycl

#endif
