// Takes the place of kernels/cuda/device/ptx.hpp where the emulated NVRTC compiles: the same
// functions, computed on the CPU. The two are changed together.
#ifndef MILLRACE_CUDA_PTX_HPP
#define MILLRACE_CUDA_PTX_HPP

namespace mr_ptx {

__forceinline__ unsigned short half_of(float x) {
  if (x != x) return 0x7fff;  // cvt has one NaN
#ifdef __F16C__
  typedef float V4 __attribute__((vector_size(16)));
  return static_cast<unsigned short>(__builtin_ia32_vcvtps2ph(V4{x, 0, 0, 0}, 0)[0]);
#else
  const unsigned bits = __builtin_bit_cast(unsigned, x), sign = bits >> 16 & 0x8000;
  const float magnitude = __builtin_fabsf(x);
  if (magnitude >= 65520.0f) return static_cast<unsigned short>(sign | 0x7c00);
  if (magnitude < 6.103515625e-05f) {  // subnormal: multiples of 2^-24
    return static_cast<unsigned short>(sign | static_cast<unsigned>(rintf(magnitude * 16777216)));
  }
  const unsigned low = bits & 0x7fffffff;
  return static_cast<unsigned short>(sign | (low + 0xfff + (low >> 13 & 1) - 0x38000000) >> 13);
#endif
}
__forceinline__ float float_of(unsigned short half) {
  const unsigned sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
  if (rest >= 0x7c00) return __builtin_bit_cast(float, sign | 0x7f800000 | (rest & 0x3ff) << 13);
  const float magnitude = __builtin_bit_cast(float, rest << 13) * 0x1p112f;
  return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, magnitude) | sign);
}

__forceinline__ unsigned pair_of(float low, float high) {
#if MR_BF16
  const auto bf16_of = [](float x) -> unsigned {
    if (x != x) return 0x7fff;
    const unsigned bits = __builtin_bit_cast(unsigned, x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  };
  return bf16_of(low) | bf16_of(high) << 16;
#else
  return half_of(low) | static_cast<unsigned>(half_of(high)) << 16;
#endif
}
__forceinline__ float exp2(float x) {
  const float y = exp2f(__builtin_fabsf(x) < 0x1p-126f ? 0 : x);
  return y < 0x1p-126f ? 0 : y;
}

// ---- Products

template <class T>
__forceinline__ void emulated_multiply(mr_emulator::Op op, T (&c)[4], const unsigned (&a)[4],
                                       unsigned b0, unsigned b1) {
  mr_emulator::Fiber* const fiber = mr_emulator::self();
  mr_emulator::Warp* const warp = fiber->warp;
  const unsigned lane = fiber->lane;
  for (int i = 0; i < 4; ++i) warp->a[i][lane] = a[i];
  warp->b[0][lane] = b0;
  warp->b[1][lane] = b1;
  __builtin_memcpy(warp->c[0][lane], &c[0], 8);
  __builtin_memcpy(warp->c[1][lane], &c[2], 8);
  mr_emulator::join(op, 0xffffffffu);
  __builtin_memcpy(&c[0], warp->c[0][lane], 8);
  __builtin_memcpy(&c[2], warp->c[1][lane], 8);
}
__forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if MR_BF16
  emulated_multiply(mr_emulator::kMultiplyBf16, c, a, b0, b1);
#else
  emulated_multiply(mr_emulator::kMultiplyF16, c, a, b0, b1);
#endif
}
__forceinline__ void multiply(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulated_multiply(mr_emulator::kMultiplyS8, c, a, b0, b1);
}

// ---- Shared memory

__forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// The copy is done by wait_copies, from what is there then.
__forceinline__ void copy16(void* shared, const void* global, bool there = true) {
  mr_emulator::Fiber* const fiber = mr_emulator::self();
  fiber->run->copy16(fiber, shared, global, there);
}
__forceinline__ void commit_copies() {
  mr_emulator::Fiber* const fiber = mr_emulator::self();
  fiber->run->commit(fiber);
}
template <int kLeft>
__forceinline__ void wait_copies() {
  static_assert(kLeft >= 0);
  mr_emulator::Fiber* const fiber = mr_emulator::self();
  fiber->run->wait(fiber, kLeft);
}

__forceinline__ void emulated_load(mr_emulator::Op op, unsigned (&words)[4], const void* row) {
  mr_emulator::Fiber* const fiber = mr_emulator::self();
  mr_emulator::Warp* const warp = fiber->warp;
  const unsigned lane = fiber->lane;
  if (mr_emulator::address(row) % 16) {
    mr_emulator::misuse("ldmatrix of a row that is not aligned to 16 bytes, address",
                        mr_emulator::address(row));
  }
  shared_address(row);
  warp->row[lane] = row;
  mr_emulator::join(op, 0xffffffffu);
  for (int i = 0; i < 4; ++i) words[i] = warp->a[i][lane];
}
__forceinline__ void load_matrices(unsigned (&words)[4], const void* row) {
  emulated_load(mr_emulator::kLoadMatrices, words, row);
}
__forceinline__ void load_transposed(unsigned (&words)[4], const void* row) {
  emulated_load(mr_emulator::kLoadTransposed, words, row);
}
__forceinline__ unsigned transposed(unsigned word) {
  mr_emulator::Fiber* const fiber = mr_emulator::self();
  fiber->warp->a[0][fiber->lane] = word;
  mr_emulator::join(mr_emulator::kTranspose, 0xffffffffu);
  return static_cast<unsigned>(fiber->warp->result[fiber->lane]);
}

// ---- Products of four warps: each warp's part as products of its own, when they are called for.

#ifdef MR_WGMMA

__forceinline__ void show_products_copies() {}
__forceinline__ void begin_products() {}
__forceinline__ void end_products() {}

template <class T, int kSums>
__forceinline__ void multiply_rows(T (&c)[kSums], const unsigned (&a)[4], const void* rows) {
  const unsigned lane = mr_emulator::self()->lane, first = shared_address(rows);
  if (first % 1024 % 32 || first % 1024 >= 128) {
    mr_emulator::misuse("wgmma of rows that do not begin at a multiple of 1024 bytes, address",
                        first);
  }
  for (int n = 0; n < kSums / 4; ++n) {
    unsigned b[2];
    for (int half = 0; half < 2; ++half) {
      const unsigned at = first + (n * 8 + lane / 4) * 128 + half * 16 + lane % 4 * 4;
      const unsigned swizzled = at ^ (at >> 7 & 7) << 4;
      b[half] = *reinterpret_cast<const unsigned*>(static_cast<const unsigned char*>(rows) +
                                                   static_cast<int>(swizzled - first));
    }
    T part[4] = {c[4 * n], c[4 * n + 1], c[4 * n + 2], c[4 * n + 3]};
    multiply(part, a, b[0], b[1]);
    for (int i = 0; i < 4; ++i) c[4 * n + i] = part[i];
  }
}

#endif

// ---- Kernels in a row. They do not run at the same time here; the driver checks that a kernel that
// may start early waits at all.

__forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  mr_emulator::Fiber* const fiber = mr_emulator::self();
  fiber->run->wait_for_previous(fiber);
#endif
}
__forceinline__ void start_next() {}

// ---- Global memory

struct alignas(16) Words4 {
  unsigned at[4];
};
__forceinline__ Words4 load_once(const void* global) {
  if (mr_emulator::address(global) % 16) {
    mr_emulator::misuse("a load of 16 bytes that is not aligned, address",
                        mr_emulator::address(global));
  }
  if (!mr_emulator::is_global(global)) {
    mr_emulator::misuse("not in global memory, address", mr_emulator::address(global));
  }
  Words4 words;
  __builtin_memcpy(&words, global, sizeof words);
  return words;
}

}  // namespace mr_ptx

#endif
