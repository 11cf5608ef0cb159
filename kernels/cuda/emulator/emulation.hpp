// What NVRTC has built in, for g++: the emulated NVRTC includes this file before every source. The
// emulated driver includes its first part, which is the interface between the two.
//
// A thread of a block is a fiber. Its state lies at the top of its stack, whose size and alignment
// are kSlot, so that a thread finds its state from its stack pointer.
#ifndef MILLRACE_CUDA_EMULATION_HPP
#define MILLRACE_CUDA_EMULATION_HPP

namespace mr_emulator {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long;

constexpr u32 kAbi = 2;  // changes with everything in this part
constexpr u32 kLanes = 32;
constexpr u32 kMostThreads = 1024;
constexpr u64 kSlot = 64 << 10;

// The operations that lanes of a warp do together.
enum Op : u32 {
  kSyncWarp,
  kShuffle,
  kShuffleXor,
  kShuffleUp,
  kShuffleDown,
  kBallot,
  kMultiplyBf16,
  kMultiplyF16,
  kMultiplyS8,
  kLoadMatrices,
  kLoadTransposed,
  kTranspose,
};

struct Dim {
  u32 x, y, z;
};
struct Fiber;
struct Copies;

// Operands and results of lanes. Words of a matrix's fragments are ordered by register and then by
// lane: a register of all lanes is then a piece of the matrix in row-major order.
struct alignas(64) Warp {
  u32 ready;       // lanes that can run, the running one among them
  u32 waiting;     // lanes that wait in an operation of the warp
  u32 at_barrier;  // lanes that wait in __syncthreads
  u32 alive;       // lanes that have not returned
  u32 index;
  void* sp[kLanes];
  u64 key[kLanes];  // the operation that a lane waits in, and its mask
  u64 value[kLanes], result[kLanes];
  u32 source[kLanes];
  const void* row[kLanes];
  alignas(64) u32 a[4][kLanes];
  alignas(64) u32 b[2][kLanes];
  alignas(64) u32 c[2][kLanes][2];
};

struct Block {
  Dim index, size, grid;
  u8* shared;  // dynamic
  u64 shared_bytes;
  u64 static_begin, static_end;  // static shared memory of the module
  u64 global_begin, global_end;  // all device memory lies there
};

struct Runtime {
  void (*join)(Fiber*, u64 key);
  void (*barrier)(Fiber*);
  void (*copy16)(Fiber*, void* shared, const void* global, bool there);
  void (*commit)(Fiber*);
  void (*wait)(Fiber*, u32 left);
  void (*wait_for_previous)(Fiber*);
  // Prints what the thread did wrong with which value, and ends the process.
  [[noreturn]] void (*misuse)(Fiber*, const char* what, u64 value);
};

struct alignas(128) Fiber {
  const Runtime* run;
  Warp* warp;
  Block* block;
  Copies* copies;
  u32 lane;
  Dim thread;
};

// Slots follow each other at kSlot bytes. Without the shift, all fibers would use the same few sets
// of the first cache.
__attribute__((always_inline)) static inline Fiber* fiber_of_slot(u64 slot) {
  return reinterpret_cast<Fiber*>(slot + kSlot - sizeof(Fiber) * (1 + slot / kSlot % 32));
}

// A kernel of a module, under the name mr_emulator_kernel_NAME.
struct Kernel {
  u32 abi;
  const char* name;
  void (*invoke)(void** arguments);
  u32 count;           // of arguments
  const u32* sizes;    // bytes of each
  const u8* pointers;  // 1: the argument is a pointer
  u32 most_threads;    // __launch_bounds__, or kMostThreads
  u32 architecture;    // 90
};

}  // namespace mr_emulator

#ifndef MILLRACE_CUDA_EMULATOR_RUNTIME

// ---- The compiler's words

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define MILLRACE_CUDA_EMULATED 1

// __inline__ because the shim defines inline as __forceinline__.
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __device__
#define __host__
#define __constant__ static const
// Blocks of a module run one after the other, so that one copy is enough. The emulated NVRTC searches
// for "extern static" and makes it a pointer to the block's dynamic shared memory.
#define __shared__ static
// The emulated NVRTC searches for these two.
#define __global__ [[mr_emulator::kernel]]
#define __launch_bounds__(...) [[mr_emulator::bounds(__VA_ARGS__)]]
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

#define MR_DYNAMIC_SHARED(type, name) type* const name = ::mr_emulator::dynamic_shared<type>()

namespace mr_emulator {

__forceinline__ Fiber* self() {
  u64 sp;
  asm("mov %%rsp, %0" : "=r"(sp));
  return fiber_of_slot(sp & ~(kSlot - 1));
}
__forceinline__ void join(u32 op, u32 mask) {
  Fiber* const fiber = self();
  fiber->run->join(fiber, static_cast<u64>(op) << 32 | mask);
}
__forceinline__ void misuse(const char* what, u64 value) {
  self()->run->misuse(self(), what, value);
}
__forceinline__ u64 address(const void* p) { return reinterpret_cast<u64>(p); }

template <class T>
__forceinline__ T* dynamic_shared() {
  static_assert(alignof(T) <= 16, "dynamic shared memory is aligned to 16 bytes");
  return reinterpret_cast<T*>(self()->block->shared);
}
__forceinline__ bool is_global(const void* p) {
  const Block& block = *self()->block;
  return address(p) >= block.global_begin && address(p) < block.global_end;
}
__forceinline__ bool is_shared(const void* p) {
  const Block& block = *self()->block;
  return address(p) - address(block.shared) < block.shared_bytes ||
         (address(p) >= block.static_begin && address(p) < block.static_end);
}

// ---- Kernels

template <u32... I>
struct Indices {};
template <class T>
constexpr u8 kIsPointer = 0;
template <class T>
constexpr u8 kIsPointer<T*> = 1;
template <auto F>
struct Invoker;
template <class... A, void (*F)(A...)>
struct Invoker<F> {
  static constexpr u32 kCount = sizeof...(A);
  static constexpr u32 kSizes[kCount + 1] = {sizeof(A)..., 0};
  static constexpr u8 kPointers[kCount + 1] = {kIsPointer<A>..., 0};
  template <u32... I>
  static void call(void** arguments, Indices<I...>) {
    F(*static_cast<A*>(arguments[I])...);
  }
  static void invoke(void** arguments) { call(arguments, Indices<__integer_pack(kCount)...>()); }
};
// Arguments of __launch_bounds__.
constexpr u32 most_threads() { return kMostThreads; }
constexpr u32 most_threads(u32 threads, u32 = 0, u32 = 0) { return threads; }

// ---- Operations of a warp

template <class T>
__forceinline__ T shuffle(Op op, u32 mask, T x, u32 source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  Fiber* const fiber = self();
  Warp* const warp = fiber->warp;
  if (!(mask >> source & 1)) misuse("a shuffle from a lane that is not in the mask, lane", source);
  u64 bits = 0;
  __builtin_memcpy(&bits, &x, sizeof(T));
  warp->value[fiber->lane] = bits;
  warp->source[fiber->lane] = source;
  join(op, mask);
  bits = warp->result[fiber->lane];
  __builtin_memcpy(&x, &bits, sizeof(T));
  return x;
}
// The lane from which lane `lane` reads; PTX ISA, shfl.sync.
__forceinline__ u32 source_of(Op op, u32 lane, u32 by, u32 width) {
  if (width == 0 || width > kLanes || (width & (width - 1))) misuse("a shuffle of width", width);
  const u32 first = lane & ~(width - 1), last = first + width - 1;
  if (op == kShuffle) return first | (by & (width - 1));
  if (op == kShuffleUp) return (by & 31) <= lane - first ? lane - (by & 31) : lane;
  const u32 from = op == kShuffleXor ? lane ^ (by & 31) : lane + (by & 31);
  return from <= last ? from : lane;
}

}  // namespace mr_emulator

#define threadIdx (::mr_emulator::self()->thread)
#define blockIdx (::mr_emulator::self()->block->index)
#define blockDim (::mr_emulator::self()->block->size)
#define gridDim (::mr_emulator::self()->block->grid)
constexpr int warpSize = 32;

__forceinline__ void __syncthreads() { ::mr_emulator::self()->run->barrier(::mr_emulator::self()); }
__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) {
  ::mr_emulator::join(::mr_emulator::kSyncWarp, mask);
}

// CUDA has these types and no others.
#define MR_EMULATED_SHUFFLE(name, op, Type, By)                                                    \
  __forceinline__ Type name(unsigned mask, Type x, By by, int width = warpSize) {                  \
    const unsigned source = ::mr_emulator::source_of(                                              \
        op, ::mr_emulator::self()->lane, static_cast<unsigned>(by), static_cast<unsigned>(width)); \
    return ::mr_emulator::shuffle<Type>(op, mask, x, source);                                      \
  }
#define MR_EMULATED_SHUFFLES(Type)                                               \
  MR_EMULATED_SHUFFLE(__shfl_sync, ::mr_emulator::kShuffle, Type, int)           \
  MR_EMULATED_SHUFFLE(__shfl_xor_sync, ::mr_emulator::kShuffleXor, Type, int)    \
  MR_EMULATED_SHUFFLE(__shfl_up_sync, ::mr_emulator::kShuffleUp, Type, unsigned) \
  MR_EMULATED_SHUFFLE(__shfl_down_sync, ::mr_emulator::kShuffleDown, Type, unsigned)
MR_EMULATED_SHUFFLES(int)
MR_EMULATED_SHUFFLES(unsigned)
MR_EMULATED_SHUFFLES(long)
MR_EMULATED_SHUFFLES(unsigned long)
MR_EMULATED_SHUFFLES(long long)
MR_EMULATED_SHUFFLES(unsigned long long)
MR_EMULATED_SHUFFLES(float)
MR_EMULATED_SHUFFLES(double)

__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate) {
  ::mr_emulator::Fiber* const fiber = ::mr_emulator::self();
  fiber->warp->value[fiber->lane] = predicate != 0;
  ::mr_emulator::join(::mr_emulator::kBallot, mask);
  return static_cast<unsigned>(fiber->warp->result[fiber->lane]);
}
__forceinline__ int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

// ---- Memory

__forceinline__ unsigned __isGlobal(const void* p) { return ::mr_emulator::is_global(p); }
__forceinline__ unsigned __isShared(const void* p) { return ::mr_emulator::is_shared(p); }
__forceinline__ unsigned long __cvta_generic_to_shared(const void* p) {
  if (!::mr_emulator::is_shared(p)) {
    ::mr_emulator::misuse("not in shared memory, address", ::mr_emulator::address(p));
  }
  return static_cast<unsigned>(::mr_emulator::address(p));
}
#define __builtin_assume(x) \
  ((x) ? static_cast<void>(0) : ::mr_emulator::misuse("__builtin_assume is false, line", __LINE__))
template <class T>
__forceinline__ T __ldg(const T* p) {
  return *p;
}
__forceinline__ void __threadfence() {}
__forceinline__ void __threadfence_block() {}
template <class T>
__forceinline__ T atomicAdd(T* p, T x) {
  const T old = *p;
  *p = old + x;
  return old;
}
template <class T>
__forceinline__ T atomicMax(T* p, T x) {
  const T old = *p;
  if (old < x) *p = x;
  return old;
}

// ---- Numbers

extern "C" {
float fabsf(float);
float fmaxf(float, float);
float fminf(float, float);
float fmaf(float, float, float);
float rintf(float);
float floorf(float);
float ceilf(float);
float truncf(float);
float roundf(float);
float sqrtf(float);
float expf(float);
float exp2f(float);
float expm1f(float);
float logf(float);
float log1pf(float);
float log2f(float);
float powf(float, float);
float tanhf(float);
float erff(float);
float sinf(float);
float cosf(float);
int printf(const char*, ...);
}
__forceinline__ float rsqrtf(float x) { return 1 / sqrtf(x); }
__forceinline__ float __expf(float x) { return expf(x); }
__forceinline__ float __logf(float x) { return logf(x); }
__forceinline__ float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
__forceinline__ float __fadd_rn(float a, float b) { return a + b; }
__forceinline__ float __fsub_rn(float a, float b) { return a - b; }
__forceinline__ float __fmul_rn(float a, float b) { return a * b; }
__forceinline__ float __fdiv_rn(float a, float b) { return a / b; }
__forceinline__ float __frcp_rn(float x) { return 1 / x; }
__forceinline__ float __fsqrt_rn(float x) { return sqrtf(x); }
__forceinline__ float __fdividef(float a, float b) { return a / b; }
__forceinline__ int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
__forceinline__ unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
__forceinline__ float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
__forceinline__ float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
__forceinline__ int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
__forceinline__ float __int2float_rn(int x) { return static_cast<float>(x); }
__forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__forceinline__ int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
__forceinline__ int __ffs(int x) { return __builtin_ffs(x); }
__forceinline__ unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long both = static_cast<unsigned long>(y) << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned which = selector >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(both >> (8 * (which & 7))) & 0xff;
    if (which & 8) byte = byte & 0x80 ? 0xff : 0;
    out |= byte << (8 * i);
  }
  return out;
}
__forceinline__ int __dp4a(int a, int b, int c) {
  unsigned sum = static_cast<unsigned>(c);
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<unsigned>(static_cast<signed char>(a >> (8 * i)) *
                                 static_cast<signed char>(b >> (8 * i)));
  }
  return static_cast<int>(sum);
}
#define MR_EMULATED_ORDER(Type)                                      \
  __forceinline__ Type min(Type a, Type b) { return b < a ? b : a; } \
  __forceinline__ Type max(Type a, Type b) { return a < b ? b : a; }
MR_EMULATED_ORDER(int)
MR_EMULATED_ORDER(unsigned)
MR_EMULATED_ORDER(long)
MR_EMULATED_ORDER(unsigned long)
__forceinline__ float min(float a, float b) { return fminf(a, b); }
__forceinline__ float max(float a, float b) { return fmaxf(a, b); }

__forceinline__ void __trap() { __builtin_trap(); }

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
__forceinline__ float2 make_float2(float x, float y) { return {x, y}; }
__forceinline__ float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
__forceinline__ uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
__forceinline__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

#endif
#endif
