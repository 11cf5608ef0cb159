// Ops in plain C++ over vectors of four floats, which every processor has or
// the compiler makes up.
#include <cmath>

#include "cpu/attention/tile.hpp"
#include "millrace_kernels.h"

namespace millrace::cpu {
namespace {

struct Portable {
  static constexpr int kLanes = 4;
  static constexpr int kQueries = 2, kSums = 8;
  typedef float Vector __attribute__((vector_size(16)));
  typedef int32_t Ints __attribute__((vector_size(16)));

  static Vector load(const float* p) {
    Vector x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, Vector x) { __builtin_memcpy(p, &x, sizeof x); }
  static Vector set1(float x) { return Vector{x, x, x, x}; }
  static Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
  static Vector max(Vector a, Vector b) { return a > b ? a : b; }
  static bool any_greater(Vector a, Vector b) {
    const Ints greater = a > b;
    return (greater[0] | greater[1] | greater[2] | greater[3]) != 0;
  }
  static float sum(Vector x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static float largest(Vector x) {
    const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
    return a > b ? a : b;
  }
  static float sqrt(float x) { return std::sqrt(x); }
};

}  // namespace

const OpKernels& op_kernels_portable() {
  static constexpr OpKernels kernels =
      make_op_kernels<FloatPairs<Portable>>(Isa::portable, kPortable, false);
  return kernels;
}

const AttentionKernels& attention_portable(int bits) {
  using Pairs = FloatPairs<Portable>;
  static constexpr auto int8 = make_attention<Pairs, Attention<Pairs, Expanded<Pairs, 8>>>();
  static constexpr auto int4 = make_attention<Pairs, Attention<Pairs, Expanded<Pairs, 4>>>();
  return bits == 8 ? int8 : int4;
}

const OpKernels& op_kernels(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::amx:
      return op_kernels_amx();
    case Isa::avx512_bf16:
      return op_kernels_avx512_bf16();
    case Isa::avx512:
      return op_kernels_avx512();
    case Isa::avx2:
      return op_kernels_avx2();
    case Isa::portable:
      break;
  }
#endif
  (void)isa;
  return op_kernels_portable();
}

const AttentionKernels& attention_kernels(const OpKernels& kernels, int32_t kv_type) {
  if (kv_type == MR_KV_KIVI) return kernels.kivi_kv;
  if (kv_type != MR_KV_INT8 && kv_type != MR_KV_INT4) return kernels.bf16_kv;
  const int bits = kv_type == MR_KV_INT8 ? 8 : 4;
#if defined(__x86_64__)
  if (kernels.isa >= Isa::avx512 && has_vnni()) return attention_vnni(bits);
  if (kernels.isa >= Isa::avx2) return attention_avx2(bits);
#endif
  return attention_portable(bits);
}

const char* attention_numerics(const OpKernels& kernels, int32_t kv_type) {
  const bool tiles =
      kernels.isa == Isa::amx && &attention_kernels(kernels, kv_type) == &kernels.bf16_kv;
  return tiles ? kAmxAttention : kernels.numerics;
}

}  // namespace millrace::cpu
