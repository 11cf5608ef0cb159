// FP8 and NF4 linear kernels of AVX-512 BF16: codes become bf16 by looking them up, those of
// FP8 by bytes (VBMI).
#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/linear/kernels.hpp"
#include "exec/quantize.hpp"
#include "millrace_kernels.h"

// After the shared headers: every processor must be able to run their inline functions.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma")
#include "cpu/linear/bf16_avx512_bf16.hpp"
#include "cpu/linear/dequantize.hpp"

namespace millrace::cpu {
namespace {

// 24 sums, 2 weights, 4 vectors of values and what becomes weights in 32 registers.
constexpr int kRows = 12;

struct Fp8Pairs : Fp8<Avx512Bf16> {
  static constexpr int kMaxRows = kRows;

  // The halves of all bf16 of a unit by looking codes up, then of one vector as words.
  static Weights load(const uint8_t* unit, int vector) {
    const __m512i codes = _mm512_load_si512(unit);
    constexpr int kBits = 0xf8;  // magnitude | (codes & sign)
    const __m512i high = _mm512_ternarylogic_epi32(look_up(kValues.high, codes), codes,
                                                   _mm512_set1_epi8(-0x80), kBits);
    const __m512i low = look_up(kValues.low, codes);
    return (__m512bh)(vector == 0 ? _mm512_unpacklo_epi8(low, high)
                                  : _mm512_unpackhi_epi8(low, high));
  }

 private:
  struct Values {
    alignas(64) uint8_t low[128], high[128];
  };
  static constexpr Values kValues = [] {
    Values values{};
    for (int code = 0; code < 128; ++code) {
      const bf16 value = from_float(fp8_value(static_cast<uint8_t>(code)));
      values.low[code] = static_cast<uint8_t>(value);
      values.high[code] = static_cast<uint8_t>(value >> 8);
    }
    return values;
  }();

  // By seven bits of each byte.
  static __m512i look_up(const uint8_t (&table)[128], __m512i codes) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
  }
};

struct Nf4Pairs : Avx512Bf16 {
  static constexpr int kMaxRows = kRows, kLinePairs = 2, kLineBytes = 4 * kLanes;
  using Weight = uint8_t;

  static Weights load(const uint8_t* line, int pair, int vector) {
    const __m512i codes = _mm512_srli_epi16(_mm512_load_si512(line), 8 * pair + 4 * vector);
    return (__m512bh)_mm512_permutexvar_epi16(codes, _mm512_load_si512(kLevels.of));
  }

 private:
  // Twice: five bits of a word are looked at.
  struct Levels {
    alignas(64) bf16 of[32];
  };
  static constexpr Levels kLevels = [] {
    Levels levels{};
    for (int i = 0; i < 32; ++i) levels.of[i] = from_float(kNf4Levels[i % 16]);
    return levels;
  }();
};

}  // namespace

const LinearKernels& linear_fp8_avx512_bf16() {
  static constexpr LinearKernels kernels = [] {
    LinearKernels k = make_pair_kernels<Fp8Pairs>("avx512-bf16 fp8");
    k.fp8_columns = 4;
    k.pack_operand = pack_raw_pairs;
    k.raw_row = true;
    return k;
  }();
  return kernels;
}

const LinearKernels& linear_nf4_avx512_bf16() {
  static constexpr LinearKernels kernels = [] {
    LinearKernels k =
        make_grouped_kernels<Nf4Pairs, Avx512Bf16, bf16, pack_raw_pairs>("avx512-bf16 nf4");
    k.raw_row = true;
    return k;
  }();
  return kernels;
}

const LinearKernels& linear_fp8_blocks_avx512_bf16() {
  static constexpr LinearKernels kernels = [] {
    LinearKernels k = make_grouped_kernels<Fp8Groups<Fp8Pairs>, Avx512Bf16, float, pack_raw_pairs>(
        "avx512-bf16 fp8 blocks");
    k.fp8_columns = 4;
    k.raw_row = true;
    return k;
  }();
  return kernels;
}

const LinearKernels& linear_nf4_blocks_avx512_bf16() {
  static constexpr LinearKernels kernels = [] {
    LinearKernels k =
        make_grouped_kernels<Nf4Pairs, Avx512Bf16, float, pack_raw_pairs>("avx512-bf16 nf4 blocks");
    k.raw_row = true;
    return k;
  }();
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
