// Linear kernels of int8, int4 and blocks in C++ alone.
#include <bit>

#include "cpu/linear/blocks.hpp"

namespace millrace::cpu {
namespace {

struct Portable {
  static constexpr int kLanes = 4, kRows8 = 4, kRows4 = 4, kBlockRows = 4, kOffset = 0;
  typedef uint8_t Bytes __attribute__((vector_size(4 * kLanes)));
  using Ints = Math<kLanes>::Ints;
  using Floats = Math<kLanes>::Vector;

  static Bytes load(const uint8_t* p) {
    Bytes b;
    std::memcpy(&b, p, sizeof b);
    return b;
  }
  static Bytes low(Bytes b) { return b & 15; }
  static Bytes high(Bytes b) { return b >> 4; }
  static Ints dot8(Ints sum, Bytes w, int32_t x) {
    int8_t codes[4];
    std::memcpy(codes, &x, sizeof codes);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 4; ++i) sum[lane] += static_cast<int8_t>(w[4 * lane + i]) * codes[i];
    }
    return sum;
  }
  static Ints dot4(Ints sum, Bytes w, int32_t x) { return dot8(sum, w, x); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
  static Ints widen(const bf16* in) {
    Ints bits;
    for (int lane = 0; lane < kLanes; ++lane) bits[lane] = static_cast<int32_t>(in[lane] << 16);
    return bits;
  }
  static void store_codes(Ints codes, int8_t* to) {
    for (int lane = 0; lane < kLanes; ++lane) to[lane] = static_cast<int8_t>(codes[lane]);
  }
  static int32_t total(Ints x) { return x[0] + x[1] + x[2] + x[3]; }
  static Bytes lookup(const int8_t* levels, Bytes codes) {
    for (int i = 0; i < 4 * kLanes; ++i) codes[i] = static_cast<uint8_t>(levels[codes[i]]);
    return codes;
  }
  template <class Integer>
  static Floats floats(const Integer* p) {
    return Floats{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
                  static_cast<float>(p[3])};
  }
  static Floats halves(const uint8_t* p) {
    uint16_t x[kLanes];
    std::memcpy(x, p, sizeof x);
    return Floats{f16_to_float(x[0]), f16_to_float(x[1]), f16_to_float(x[2]), f16_to_float(x[3])};
  }
};

}  // namespace

const LinearKernels& linear_int8_portable() {
  static constexpr LinearKernels kernels = make_int8_kernels<Portable>("portable int8");
  return kernels;
}

const LinearKernels& linear_int4_portable() {
  static constexpr LinearKernels kernels = make_int4_kernels<Portable>("portable int4");
  return kernels;
}

const LinearKernels& linear_blocks_portable() {
  static constexpr LinearKernels kernels = make_block_kernels<Portable>("portable blocks");
  return kernels;
}

}  // namespace millrace::cpu
