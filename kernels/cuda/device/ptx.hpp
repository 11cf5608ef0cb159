// Instructions of NVIDIA GPUs that CUDA C++ has no words for without its headers. Those of a whole warp
// (products, matrices from shared memory) are called by all 32 lanes together.
// emulator/emulated_ptx.hpp has the same functions for the CPU: the two are changed together.
#ifndef MILLRACE_CUDA_PTX_HPP
#define MILLRACE_CUDA_PTX_HPP

namespace mr_ptx {

MR_INLINE uint16_t half_of(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
MR_INLINE float float_of(uint16_t half) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
}

// Two operands in a word, `low` in its low half; rounded to nearest even. What is beyond f16 becomes an infinity.
MR_INLINE uint32_t pair_of(float low, float high) {
  uint32_t pair;
#if MR_BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
  return pair;
}
// 2^x to about 2 units of the last place; exact for 0 and -inf. Denormals are 0.
MR_INLINE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- Products. a has 16 rows, b 8 columns; PTX ISA, "Matrix Fragments for mma.m16n8k16" and ".m16n8k32".

#if MR_BF16
#define MR_MMA_TYPES "bf16.bf16"
#else
#define MR_MMA_TYPES "f16.f16"
#endif

// c[16][8] += a[16][16] * b[16][8] of operands.
MR_INLINE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32." MR_MMA_TYPES
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// c[16][8] += a[16][32] * b[32][8] of signed bytes.
MR_INLINE void multiply(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Shared memory

MR_INLINE uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Begins to copy 16 bytes from global to shared memory, or to write zeros there.
MR_INLINE void copy16(void* shared, const void* global, bool there = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(there ? 16 : 0)
               : "memory");
}
// Closes a set of copies.
MR_INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kLeft of this thread's newest sets are under way.
template <int kLeft>
MR_INLINE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Four matrices of 8 x 8 16-bit numbers; lane i names row i % 8 of matrix i / 8, 16 bytes at an address of a multiple
// of 16. Word k of a lane is row lane / 4, columns 2 * (lane % 4) and the next, of matrix k.
MR_INLINE void load_matrices(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}
// The same, each transposed.
MR_INLINE void load_transposed(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}
// An 8 x 8 matrix of 16-bit numbers that lies in the lanes as above, transposed.
MR_INLINE uint32_t transposed(uint32_t word) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(word));
  return out;
}

// ---- Kernels in a row. Where the host asks for it (and the instructions are there), a kernel starts before the one
// before it has ended.

// Waits until the kernels before have ended, and their memory is written.
MR_INLINE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start: it takes what multiprocessors have left.
MR_INLINE void start_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- Global memory

struct alignas(16) Words4 {
  uint32_t at[4];
};
// What is read once: it does not displace others in the first cache.
MR_INLINE Words4 load_once(const void* global) {
  Words4 w;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.at[0]), "=r"(w.at[1]), "=r"(w.at[2]), "=r"(w.at[3])
               : "l"(global));
  return w;
}

}  // namespace mr_ptx

#endif
