#include "amx_emulated.hpp"

#include <bit>
#include <cmath>
#include <stdexcept>

#include "cpu/attention/tile_amx.hpp"
#include "cpu/linear/spans_amx.hpp"
#include "cpu/linear/tile_amx.hpp"

namespace millrace::cpu {
namespace {

// What the instructions do, Intel SDM vol. 2. Calls, for they stand in every tile of every shape: inlined they take minutes to compile.
class EmulatedTiles {
 public:
  static void configure(const TileShape& shape) {
    Registers& r = registers();
    r = {};
    for (int i = 0; i < kAmxTiles; ++i) {
      r.rows[i] = shape.rows[i];
      r.row_bytes[i] = shape.row_bytes[i];
    }
  }
  static void release() { registers() = {}; }

  template <int kTile>
  static void zero() {
    std::memset(tile<kTile>(), 0, sizeof registers().tiles[kTile]);
  }
  template <int kTile>
  [[gnu::noinline]] static void load(const void* from, int64_t stride) {
    zero<kTile>();
    for (int i = 0; i < registers().rows[kTile]; ++i) {
      std::memcpy(tile<kTile>()[i], static_cast<const std::byte*>(from) + i * stride,
                  registers().row_bytes[kTile]);
    }
  }
  template <int kTile>
  [[gnu::noinline]] static void store(void* to, int64_t stride) {
    for (int i = 0; i < registers().rows[kTile]; ++i) {
      std::memcpy(static_cast<std::byte*>(to) + i * stride, tile<kTile>()[i],
                  registers().row_bytes[kTile]);
    }
  }

  // A product of two bf16 is exact, so that one rounding is that of the addition.
  template <int kTo, int kRows, int kWeights>
  [[gnu::noinline]] static void add_bf16() {
    float w[kAmxWords][2][kAmxWords];  // even and odd
    for (int k = 0; k < kAmxWords; ++k) {
      for (int n = 0; n < kAmxWords; ++n) {
        const auto pair = element<bf16[2]>(tile<kWeights>()[k], n);
        for (int i = 0; i < 2; ++i) w[k][i][n] = flush(to_float(pair.at[i]));
      }
    }
    for (int m = 0; m < registers().rows[kTo]; ++m) {
      float sums[2][kAmxWords] = {};
      for (int k = 0; k < kAmxWords; ++k) {
        const auto pair = element<bf16[2]>(tile<kRows>()[m], k);
        for (int i = 0; i < 2; ++i) {
          const float x = flush(to_float(pair.at[i]));
          for (int n = 0; n < kAmxWords; ++n) sums[i][n] = flush(sums[i][n] + x * w[k][i][n]);
        }
      }
      for (int n = 0; n < kAmxWords; ++n) {
        auto sum = element<float[1]>(tile<kTo>()[m], n);
        sum.at[0] = flush(flush(sum.at[0]) + flush(sums[0][n] + sums[1][n]));
        std::memcpy(tile<kTo>()[m] + n * sizeof sum, &sum, sizeof sum);
      }
    }
  }
  template <int kTo, int kRows, int kWeights>
  [[gnu::noinline]] static void add_int8() {
    add_bytes<uint8_t, kTo, kRows, kWeights>();
  }
  template <int kTo, int kRows, int kWeights>
  [[gnu::noinline]] static void add_signed() {
    add_bytes<int8_t, kTo, kRows, kWeights>();
  }

 private:
  struct Registers {
    int rows[kAmxTiles], row_bytes[kAmxTiles];
    std::byte tiles[kAmxTiles][kAmxRows][kAmxRowBytes];
  };
  static Registers& registers() {
    thread_local Registers r{};
    return r;
  }
  // Throws where the instruction would fault.
  template <int kTile>
  static auto& tile() {
    if (registers().rows[kTile] == 0) throw std::logic_error("a tile register without a shape");
    return registers().tiles[kTile];
  }
  // Throws where the instruction would fault: a row of rows has as many words as weights have rows.
  template <class Weight, int kTo, int kRows, int kWeights>
  static void add_bytes() {
    const Registers& of = registers();
    if (of.row_bytes[kRows] != 4 * of.rows[kWeights] || of.rows[kTo] != of.rows[kRows]) {
      throw std::logic_error("tiles of shapes that do not fit");
    }
    for (int m = 0; m < of.rows[kTo]; ++m) {
      for (int n = 0; n < kAmxWords; ++n) {
        auto sum = element<int32_t[1]>(tile<kTo>()[m], n);
        for (int k = 0; k < of.rows[kWeights]; ++k) {
          const auto x = element<int8_t[4]>(tile<kRows>()[m], k);
          const auto w = element<Weight[4]>(tile<kWeights>()[k], n);
          for (int i = 0; i < 4; ++i) sum.at[0] += x.at[i] * w.at[i];
        }
        std::memcpy(tile<kTo>()[m] + n * sizeof sum, &sum, sizeof sum);
      }
    }
  }
  template <class T>
  struct Element {
    T at;
  };
  template <class T>
  static Element<T> element(const std::byte* row, int i) {
    Element<T> e;
    std::memcpy(&e, row + i * sizeof e, sizeof e);
    return e;
  }
  // Subnormal numbers are zeros, as they come and as they go.
  static float flush(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    return std::bit_cast<float>((bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits);
  }
};

// As the other half of the kernels has it from AVX-512.
struct PlainBase {
  static constexpr int kLanes = kAmxWords, kRows8 = 1, kRows4 = 6, kOffset = 128;
  typedef uint8_t Bytes __attribute__((vector_size(4 * kLanes)));
  using Ints = Math<kLanes>::Ints;
  using Floats = Math<kLanes>::Vector;

  static Bytes load(const uint8_t* p) {
    Bytes b;
    std::memcpy(&b, p, sizeof b);
    return b;
  }
  static Bytes low(const Bytes& b) { return b & 15; }
  static Bytes high(const Bytes& b) { return b >> 4; }
  static Ints dot8(Ints sum, const Bytes& w, int32_t x) {
    int8_t codes[4];
    std::memcpy(codes, &x, sizeof codes);
    for (int i = 0; i < 4 * kLanes; ++i) sum[i / 4] += w[i] * codes[i % 4];
    return sum;
  }
  static Ints dot4(const Ints& sum, const Bytes& w, int32_t x) { return dot8(sum, w, x); }
  static Bytes lookup(const int8_t* levels, Bytes codes) {
    for (int i = 0; i < 4 * kLanes; ++i) codes[i] = static_cast<uint8_t>(levels[codes[i]]);
    return codes;
  }
  template <class Integer>
  static Floats floats(const Integer* p) {
    Floats x;
    for (int lane = 0; lane < kLanes; ++lane) x[lane] = static_cast<float>(p[lane]);
    return x;
  }
  static Floats halves(const uint8_t* p) {
    uint16_t x[kLanes];
    std::memcpy(x, p, sizeof x);
    Floats y;
    for (int lane = 0; lane < kLanes; ++lane) y[lane] = f16_to_float(x[lane]);
    return y;
  }
  [[gnu::noinline]] static Floats multiply_add(const Floats& a, const Floats& b, const Floats& c) {
    Floats sum;
    for (int lane = 0; lane < kLanes; ++lane) sum[lane] = std::fma(a[lane], b[lane], c[lane]);
    return sum;
  }
  static Ints widen(const bf16* in) {
    Ints bits;
    for (int lane = 0; lane < kLanes; ++lane) bits[lane] = static_cast<int32_t>(in[lane] << 16);
    return bits;
  }
  static void store_codes(const Ints& codes, int8_t* to) {
    for (int lane = 0; lane < kLanes; ++lane) to[lane] = static_cast<int8_t>(codes[lane]);
  }
  static int32_t total(const Ints& x) {
    int32_t sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += x[lane];
    return sum;
  }
};

// The Target of its softmax, as AVX-512 has it.
struct PlainPairs {
  static constexpr int kLanes = kAmxWords, kQueries = 1, kSums = 1;
  using Vector = Math<kLanes>::Vector;
  using Ints = Math<kLanes>::Ints;
  using Pair = uint32_t;

  static Vector load(const float* p) { return Math<kLanes>::load(p); }
  static void store(float* p, const Vector& x) { std::memcpy(p, &x, sizeof x); }
  static Vector set1(float x) { return Math<kLanes>::splat(x); }
  static Vector fma(const Vector& a, const Vector& b, const Vector& c) {
    return PlainBase::multiply_add(a, b, c);
  }
  static Vector max(const Vector& a, const Vector& b) { return a > b ? a : b; }
  static bool any_greater(const Vector& a, const Vector& b) {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (a[lane] > b[lane]) return true;
    }
    return false;
  }
  // Halves to halves.
  static float sum(Vector x) {
    for (int n = kLanes / 2; n > 0; n /= 2) {
      for (int lane = 0; lane < n; ++lane) x[lane] += x[lane + n];
    }
    return x[0];
  }
  static float largest(const Vector& x) {
    float most = x[0];
    for (int lane = 1; lane < kLanes; ++lane) most = std::max(most, x[lane]);
    return most;
  }
  static float sqrt(float x) { return std::sqrt(x); }
  static Pair make_pair(float even, float odd) {
    return from_float(even) | uint32_t{from_float(odd)} << 16;
  }
  static Vector store_pairs(const Vector& p, Pair* out) {
    const auto rounded = to_bf16<kLanes>(p);
    std::memcpy(out, &rounded, sizeof rounded);
    return rounded_bf16<kLanes>(p);
  }
};

}  // namespace

const AttentionKernels& emulated_amx_attention() {
  static constexpr AttentionKernels kernels = TileKernels<EmulatedTiles, PlainPairs>::attention();
  return kernels;
}

const LinearKernels& emulated_amx_kernels(int weights) {
  static constexpr LinearKernels pairs =
      make_amx_bf16_kernels<EmulatedTiles, PlainBase>("emulated amx");
  static constexpr LinearKernels int8 =
      make_amx_int8_kernels<EmulatedTiles, PlainBase>("emulated amx int8");
  static constexpr LinearKernels int4 =
      make_amx_int4_kernels<EmulatedTiles, PlainBase>("emulated amx int4");
  static constexpr LinearKernels blocks =
      make_amx_block_kernels<EmulatedTiles, PlainBase>("emulated amx blocks");
  switch (weights) {
    case MR_WEIGHTS_INT8:
      return int8;
    case MR_WEIGHTS_INT4:
      return int4;
    case MR_WEIGHTS_BLOCKS:
      return blocks;
    default:
      return pairs;
  }
}

}  // namespace millrace::cpu
