// The blocks of GGUF are those of ggml-common.h and the formulae those of dequantize_row_* in ggml-quants.c,
// github.com/ggml-org/llama.cpp. The others are those of compute/weights/quantization_blocks.go. All numbers are little-endian.
#include "exec/blocks.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <vector>

#include "exec/bf16.hpp"
#include "exec/program.hpp"
#include "exec/quantize.hpp"
#include "exec/tensor.hpp"

namespace millrace {
namespace {

// The IQ types choose the magnitudes of neighboring elements together, from a grid of points: ggml's tables iq2xxs_grid,
// iq2xs_grid, iq2s_grid, iq3xxs_grid, iq3s_grid and iq1s_grid, one byte a coordinate. scripts/fixtures/make_block_types.py
// writes the file from the tables of gguf-py.
constexpr uint8_t kGrids[] = {
#include "exec/grids.inc"
};
constexpr int kGridIq2Xxs = 0;
constexpr int kGridIq2Xs = kGridIq2Xxs + 256 * 8;
constexpr int kGridIq2S = kGridIq2Xs + 512 * 8;
constexpr int kGridIq3Xxs = kGridIq2S + 1024 * 8;
constexpr int kGridIq3S = kGridIq3Xxs + 256 * 4;
constexpr int kGridIq1S = kGridIq3S + 512 * 4;
static_assert(sizeof kGrids == kGridIq1S + 2048 * 8);

uint16_t half_word(const uint8_t* p) {
  uint16_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

uint32_t word(const uint8_t* p) {
  uint32_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

float f16_at(const uint8_t* p) { return cpu::f16_to_float(half_word(p)); }

float f32_at(const uint8_t* p) { return std::bit_cast<float>(word(p)); }

// A block with one scale, and perhaps a minimum.
void whole(Block& b, float scale, float minimum = 0) {
  b.scale = scale, b.minimum = minimum;
  std::fill(std::begin(b.scales), std::end(b.scales), int8_t{1});
  std::fill(std::begin(b.minimums), std::end(b.minimums), uint8_t{1});
}

// Half bytes: the low ones are the first elements, the high ones the others.
void halves(const uint8_t* from, int bytes, uint8_t* codes) {
  for (int i = 0; i < bytes; ++i) {
    codes[i] = from[i] & 15;
    codes[bytes + i] = from[i] >> 4;
  }
}

// The fifth bits of 32 elements.
void fifths(const uint8_t* from, uint8_t* codes) {
  const uint32_t bits = word(from);
  for (int i = 0; i < 32; ++i) codes[i] |= (bits >> i & 1) << 4;
}

// Pairs of bits: of each 32 bytes the lowest pairs come first.
void pairs(const uint8_t* from, uint8_t* codes) {
  for (int i = 0; i < 256; ++i) codes[i] = from[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

// Half bytes of 256: of each 32 bytes the low ones come first.
void runs(const uint8_t* from, uint8_t* codes) {
  for (int run = 0; run < 4; ++run) halves(from + 32 * run, 32, codes + 64 * run);
}

uint8_t nibble(const uint8_t* packed, int i) { return packed[i / 2] >> (i % 2 * 4) & 15; }

// d; x = d (q - 8)
void q4_0(const uint8_t* from, Block& b) {
  whole(b, f16_at(from));
  halves(from + 2, 16, b.codes);
}

// d, m; x = d q + m
void q4_1(const uint8_t* from, Block& b) {
  whole(b, f16_at(from), f16_at(from + 2));
  halves(from + 4, 16, b.codes);
}

// d, the fifth bits, half bytes; x = d (q - 16)
void q5_0(const uint8_t* from, Block& b) {
  whole(b, f16_at(from));
  halves(from + 6, 16, b.codes);
  fifths(from + 2, b.codes);
}

void q5_1(const uint8_t* from, Block& b) {
  whole(b, f16_at(from), f16_at(from + 2));
  halves(from + 8, 16, b.codes);
  fifths(from + 4, b.codes);
}

// d, 32 int8; x = d q
void q8_0(const uint8_t* from, Block& b) {
  whole(b, f16_at(from));
  for (int i = 0; i < 32; ++i) b.codes[i] = from[2 + i] ^ 0x80;
}

// For each 16 elements a scale and a minimum of 4 bits, pairs of bits, d, m; x = (d scale) q - (m minimum)
void q2_k(const uint8_t* from, Block& b) {
  b.scale = f16_at(from + 80), b.minimum = -f16_at(from + 82);
  for (int g = 0; g < 16; ++g) {
    b.scales[g] = static_cast<int8_t>(from[g] & 15);
    b.minimums[g] = from[g] >> 4;
  }
  pairs(from + 16, b.codes);
}

// The third bits, bit k of byte i of element 32 k + i; pairs of bits, 16 scales of 6 bits, d; x = (d (scale - 32)) (q - 4)
void q3_k(const uint8_t* from, Block& b) {
  const uint8_t *low = from + 96, *high = from + 104;
  b.scale = f16_at(from + 108), b.minimum = 0;
  for (int g = 0; g < 16; ++g) {
    b.scales[g] = static_cast<int8_t>(
        ((low[g % 8] >> (g / 8 * 4) & 15) | (high[g % 4] >> (g / 4 * 2) & 3) << 4) - 32);
  }
  pairs(from + 32, b.codes);
  for (int i = 0; i < 256; ++i) b.codes[i] |= (from[i % 32] >> (i / 32) & 1) << 2;
}

// d, m, and 8 scales and 8 minimums of 6 bits: the first four are the low 6 bits of bytes j and j + 4, whose upper 2 bits
// belong to the last four. x = (d scale) q - (m minimum)
void scales_k(const uint8_t* from, Block& b) {
  b.scale = f16_at(from), b.minimum = -f16_at(from + 2);
  const uint8_t* packed = from + 4;
  for (int j = 0; j < 4; ++j) {
    b.scales[j] = static_cast<int8_t>(packed[j] & 63);
    b.minimums[j] = packed[j + 4] & 63;
    b.scales[4 + j] = static_cast<int8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
    b.minimums[4 + j] = static_cast<uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
  }
}

void q4_k(const uint8_t* from, Block& b) {
  scales_k(from, b);
  runs(from + 16, b.codes);
}

// As q4_k, with the fifth bits between scales and half bytes: bit k of byte i of element 32 k + i
void q5_k(const uint8_t* from, Block& b) {
  scales_k(from, b);
  runs(from + 48, b.codes);
  for (int i = 0; i < 256; ++i) b.codes[i] |= (from[16 + i % 32] >> (i / 32) & 1) << 4;
}

// 128 bytes of low half bytes, 64 of upper pairs, 16 int8 scales, d. Each half of 128 elements is four runs of 32.
// x = (d scale) (q - 32)
void q6_k(const uint8_t* from, Block& b) {
  b.scale = f16_at(from + 208), b.minimum = 0;
  std::memcpy(b.scales, from + 192, 16);
  for (int i = 0; i < 256; ++i) {
    const int in_half = i % 128, run = in_half / 32;
    const uint8_t low = from[i / 128 * 64 + in_half % 64] >> (run / 2 * 4) & 15;
    const uint8_t high = from[128 + i / 128 * 32 + i % 32] >> (2 * run) & 3;
    b.codes[i] = low | high << 4;
  }
}

// Levels of magnitudes, then the same with a minus.
constexpr int8_t kLevels2[16] = {8, 25, 43, 0, -8, -25, -43};
constexpr int8_t kLevels3Xxs[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                    -4, -12, -20, -28, -36, -44, -52, -62};
constexpr int8_t kLevels3S[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
// 8 (value + shift), of values -1, 0, 1 and shifts of an eighth up, then down.
constexpr int8_t kLevels1[16] = {-7, 1, 9, 0, -9, -1, 7};
constexpr int8_t kLevels4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kFp4[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                             0, -1, -2, -3, -4, -6, -8, -12};  // E2M1, doubled

// The codes of a point of a grid, negative where signs has a bit.
template <int kMagnitudes>
void point(const int8_t* levels, int at, int n, unsigned signs, uint8_t* codes) {
  for (int i = 0; i < n; ++i) {
    const auto magnitude = static_cast<int8_t>(kGrids[at + i]);
    const auto code = std::find(levels, levels + kMagnitudes, magnitude) - levels;
    codes[i] = static_cast<uint8_t>(code + (signs >> i & 1 ? kMagnitudes : 0));
  }
}

// Seven signs and an eighth, so that an even number is negative.
unsigned even_signs(uint32_t seven) {
  const unsigned s = seven & 127;
  return s | (std::popcount(s) & 1u) << 7;
}

// d, for each 32 elements four bytes that choose points of 8, and 32 bits: four times seven signs, and a scale.
// x = d (1/2 + scale) / 4 magnitude
void iq2_xxs(const uint8_t* from, Block& b) {
  b.scale = f16_at(from) * 0.125f, b.minimum = 0;
  for (int g = 0; g < 8; ++g) {
    const uint8_t* choice = from + 2 + 8 * g;
    const uint32_t rest = word(choice + 4);
    b.scales[2 * g] = b.scales[2 * g + 1] = static_cast<int8_t>(2 * (rest >> 28) + 1);
    for (int l = 0; l < 4; ++l) {
      point<4>(kLevels2, kGridIq2Xxs + 8 * choice[l], 8, even_signs(rest >> (7 * l)),
               b.codes + 32 * g + 8 * l);
    }
  }
}

void scales_2(float d, const uint8_t* scales, Block& b) {
  b.scale = d * 0.125f, b.minimum = 0;
  for (int g = 0; g < 16; ++g) b.scales[g] = static_cast<int8_t>(2 * nibble(scales, g) + 1);
}

// d, for each 8 elements 9 bits that choose a point and seven signs, 16 scales of 4 bits. x as of iq2_xxs
void iq2_xs(const uint8_t* from, Block& b) {
  scales_2(f16_at(from), from + 66, b);
  for (int l = 0; l < 32; ++l) {
    const uint16_t q = half_word(from + 2 + 2 * l);
    point<4>(kLevels2, kGridIq2Xs + 8 * (q & 511), 8, even_signs(q >> 9), b.codes + 8 * l);
  }
}

// d, for each 8 elements the low bits of a choice, then eight signs, then two high bits, then 16 scales of 4 bits. x as of iq2_xxs
void iq2_s(const uint8_t* from, Block& b) {
  scales_2(f16_at(from), from + 74, b);
  for (int l = 0; l < 32; ++l) {
    const int i = from[2 + l] | (from[66 + l / 4] >> (l % 4 * 2) & 3) << 8;
    point<4>(kLevels2, kGridIq2S + 8 * i, 8, from[34 + l], b.codes + 8 * l);
  }
}

// d, for each 4 elements a choice, for each 32 four times seven signs, and a scale. x = d (1/2 + scale) / 2 magnitude
void iq3_xxs(const uint8_t* from, Block& b) {
  b.scale = f16_at(from) * 0.25f, b.minimum = 0;
  for (int g = 0; g < 8; ++g) {
    const uint32_t rest = word(from + 66 + 4 * g);
    b.scales[g] = static_cast<int8_t>(2 * (rest >> 28) + 1);
    for (int n = 0; n < 8; ++n) {
      const unsigned signs = even_signs(rest >> (n / 2 * 7)) >> (n % 2 * 4);
      point<8>(kLevels3Xxs, kGridIq3Xxs + 4 * from[2 + 8 * g + n], 4, signs,
               b.codes + 32 * g + 4 * n);
    }
  }
}

// d, for each 4 elements the low bits of a choice, then the ninth bits, then the signs, then 8 scales of 4 bits.
// x = d (1 + 2 scale) magnitude
void iq3_s(const uint8_t* from, Block& b) {
  b.scale = f16_at(from), b.minimum = 0;
  for (int g = 0; g < 8; ++g) b.scales[g] = static_cast<int8_t>(2 * nibble(from + 106, g) + 1);
  for (int n = 0; n < 64; ++n) {
    const int i = from[2 + n] | (from[66 + n / 8] >> (n % 8) & 1) << 8;
    point<8>(kLevels3S, kGridIq3S + 4 * i, 4, from[74 + n / 2] >> (n % 2 * 4), b.codes + 4 * n);
  }
}

// The codes of a point of -1, 0 and 1.
void shifted(int i, bool down, uint8_t* codes) {
  for (int k = 0; k < 8; ++k) {
    codes[k] = static_cast<uint8_t>(static_cast<int8_t>(kGrids[kGridIq1S + 8 * i + k]) + 1 +
                                    (down ? 4 : 0));
  }
}

// d, for each 8 elements the low bits of a choice, for each 32 their high bits, a scale of 3 bits and the shift's sign.
// x = d (2 scale + 1) (value + shift)
void iq1_s(const uint8_t* from, Block& b) {
  b.scale = f16_at(from) * 0.125f, b.minimum = 0;
  for (int g = 0; g < 8; ++g) {
    const uint16_t high = half_word(from + 34 + 2 * g);
    b.scales[2 * g] = b.scales[2 * g + 1] = static_cast<int8_t>(2 * (high >> 12 & 7) + 1);
    for (int l = 0; l < 4; ++l) {
      shifted(from[2 + 4 * g + l] | (high >> (3 * l) & 7) << 8, (high & 0x8000) != 0,
              b.codes + 32 * g + 8 * l);
    }
  }
}

// For each 8 elements the low bits of a choice, then three high bits and the shift's sign, then 16 scales of 3 bits in four words,
// whose upper 4 bits are d. x as of iq1_s
void iq1_m(const uint8_t* from, Block& b) {
  uint16_t d = 0;
  for (int i = 0; i < 4; ++i) {
    const uint16_t scales = half_word(from + 48 + 2 * i);
    d |= scales >> 12 << (4 * i);
    for (int g = 0; g < 4; ++g)
      b.scales[4 * i + g] = static_cast<int8_t>(2 * (scales >> (3 * g) & 7) + 1);
  }
  b.scale = cpu::f16_to_float(d) * 0.125f, b.minimum = 0;
  for (int n = 0; n < 32; ++n) {
    const uint8_t high = nibble(from + 32, n);
    shifted(from[n] | (high & 7) << 8, (high & 8) != 0, b.codes + 8 * n);
  }
}

// d, half bytes that choose levels; x = d level
void iq4_nl(const uint8_t* from, Block& b) { q4_0(from, b); }

// d, the upper 2 bits and the lower 4 bits of 8 scales, and for each 32 elements half bytes as of iq4_nl.
// x = d (scale - 32) level
void iq4_xs(const uint8_t* from, Block& b) {
  b.scale = f16_at(from), b.minimum = 0;
  for (int g = 0; g < 8; ++g) {
    b.scales[g] =
        static_cast<int8_t>((nibble(from + 4, g) | (half_word(from + 2) >> (2 * g) & 3) << 4) - 32);
    halves(from + 8 + 16 * g, 16, b.codes + 32 * g);
  }
}

// Five values of -1, 0 and 1 in a byte: of 32 bytes, of 16 bytes, and four in each of 4 bytes; d. Value n of a byte is the first
// digit of base 3 of byte 3^n / 256. x = d value
void tq1_0(const uint8_t* from, Block& b) {
  whole(b, f16_at(from + 52));
  uint8_t* to = b.codes;
  const auto digits = [&](const uint8_t* packed, int bytes, int n) {
    for (uint8_t power = 1; n > 0; --n, power *= 3) {
      for (int i = 0; i < bytes; ++i)
        *to++ = static_cast<uint8_t>(uint8_t(packed[i] * power) * 3 >> 8);
    }
  };
  digits(from, 32, 5);
  digits(from + 32, 16, 5);
  digits(from + 48, 4, 4);
}

// Pairs of bits, d; x = d (q - 1)
void tq2_0(const uint8_t* from, Block& b) {
  whole(b, f16_at(from + 64));
  pairs(from, b.codes);
}

// An exponent E8M0, half bytes that are E2M1. x = 2^(exponent - 127) value
void mxfp4(const uint8_t* from, Block& b) {
  // Half of the scale; below the normal numbers for the least two.
  const uint32_t bits = from[0] < 2 ? 0x00200000u << from[0] : uint32_t{from[0] - 1u} << 23;
  whole(b, std::bit_cast<float>(bits));
  halves(from + 1, 16, b.codes);
}

// A scale in F32, codes of E4M3. x = scale value
template <int kElements>
void fp8_floats(const uint8_t* from, Block& b) {
  whole(b, f32_at(from));
  std::memcpy(b.codes, from + 4, kElements);
}

// A scale in F32, half bytes that choose levels, the high one first. x = scale level
void nf4(const uint8_t* from, Block& b) {
  whole(b, f32_at(from));
  for (int i = 0; i < 64; ++i) b.codes[i] = nibble(from + 4, i ^ 1);
}

// A number in F32, the same in all blocks of a row, four scales in E4M3, half bytes of E2M1, the low one first. x = number scale value
void nvfp4(const uint8_t* from, Block& b) {
  b.scale = f32_at(from) * 0.5f, b.minimum = 0;
  std::memcpy(b.scales, from + 4, 4);
  for (int i = 0; i < 64; ++i) b.codes[i] = nibble(from + 8, i);
}

// A scale in F16, a zero, half bytes, the low one first. x = scale (q - zero)
template <int kElements>
void q4_z(const uint8_t* from, Block& b) {
  const float scale = f16_at(from);
  whole(b, scale, -scale);
  std::fill(std::begin(b.minimums), std::end(b.minimums), from[2]);
  for (int i = 0; i < kElements; ++i) b.codes[i] = nibble(from + 3, i);
}

constexpr auto kFp8Values = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[code] = fp8_value(static_cast<uint8_t>(code));
  return values;
}();

using enum BlockScales;

constexpr BlockType kTypes[] = {
    {MR_BLOCKS + 2, "Q4_0", 32, 18, 4, 32, half, false, 8, nullptr, q4_0},
    {MR_BLOCKS + 3, "Q4_1", 32, 20, 4, 32, half, true, 0, nullptr, q4_1},
    {MR_BLOCKS + 6, "Q5_0", 32, 22, 5, 32, half, false, 16, nullptr, q5_0},
    {MR_BLOCKS + 7, "Q5_1", 32, 24, 5, 32, half, true, 0, nullptr, q5_1},
    {MR_BLOCKS + 8, "Q8_0", 32, 34, 8, 32, half, false, 128, nullptr, q8_0},
    {MR_BLOCKS + 10, "Q2_K", 256, 84, 2, 16, integers, true, 0, nullptr, q2_k},
    {MR_BLOCKS + 11, "Q3_K", 256, 110, 3, 16, integers, false, 4, nullptr, q3_k},
    {MR_BLOCKS + 12, "Q4_K", 256, 144, 4, 32, integers, true, 0, nullptr, q4_k},
    {MR_BLOCKS + 13, "Q5_K", 256, 176, 5, 32, integers, true, 0, nullptr, q5_k},
    {MR_BLOCKS + 14, "Q6_K", 256, 210, 6, 16, integers, false, 32, nullptr, q6_k},
    {MR_BLOCKS + 16, "IQ2_XXS", 256, 66, 3, 16, integers, false, 0, kLevels2, iq2_xxs},
    {MR_BLOCKS + 17, "IQ2_XS", 256, 74, 3, 16, integers, false, 0, kLevels2, iq2_xs},
    {MR_BLOCKS + 18, "IQ3_XXS", 256, 98, 4, 32, integers, false, 0, kLevels3Xxs, iq3_xxs},
    {MR_BLOCKS + 19, "IQ1_S", 256, 50, 3, 16, integers, false, 0, kLevels1, iq1_s},
    {MR_BLOCKS + 20, "IQ4_NL", 32, 18, 4, 32, half, false, 0, kLevels4, iq4_nl},
    {MR_BLOCKS + 21, "IQ3_S", 256, 110, 4, 32, integers, false, 0, kLevels3S, iq3_s},
    {MR_BLOCKS + 22, "IQ2_S", 256, 82, 3, 16, integers, false, 0, kLevels2, iq2_s},
    {MR_BLOCKS + 23, "IQ4_XS", 256, 136, 4, 32, integers, false, 0, kLevels4, iq4_xs},
    {MR_BLOCKS + 29, "IQ1_M", 256, 56, 3, 16, integers, false, 0, kLevels1, iq1_m},
    {MR_BLOCKS + 34, "TQ1_0", 256, 54, 2, 32, integers, false, 1, nullptr, tq1_0},
    {MR_BLOCKS + 35, "TQ2_0", 256, 66, 2, 32, integers, false, 1, nullptr, tq2_0},
    {MR_BLOCKS + 39, "MXFP4", 32, 17, 4, 32, bfloat, false, 0, kFp4, mxfp4},
    {MR_BLOCKS + 128, "FP8", 128, 132, 8, 128, floats, false, 0, nullptr, fp8_floats<128>,
     kFp8Blocks, kFp8Values.data()},
    {MR_BLOCKS + 129, "FP8_32", 32, 36, 8, 32, floats, false, 0, nullptr, fp8_floats<32>,
     kFp8Blocks, kFp8Values.data()},
    {MR_BLOCKS + 131, "NVFP4", 64, 40, 4, 16, fp8, false, 0, kFp4, nvfp4},
    {MR_BLOCKS + 132, "Q4_Z", 128, 67, 4, 128, zeros, true, 0, nullptr, q4_z<128>},
    {MR_BLOCKS + 133, "Q4_Z32", 32, 19, 4, 32, zeros, true, 0, nullptr, q4_z<32>},
    {MR_BLOCKS + 130, "NF4", 64, 36, 4, 64, floats, false, 0, nullptr, nf4, kNf4Blocks, kNf4Exact},
};

// By number: experts have many columns to look up.
constexpr auto kByType = [] {
  std::array<const BlockType*, 256> all{};
  for (const BlockType& t : kTypes) all[t.dtype - MR_BLOCKS] = &t;
  return all;
}();

}  // namespace

const BlockType* block_type(int32_t dtype) {
  const int64_t i = int64_t{dtype} - MR_BLOCKS;
  return i >= 0 && i < static_cast<int64_t>(kByType.size()) ? kByType[i] : nullptr;
}

float BlockType::scale(const Block& block, int group) const {
  const int8_t own = block.scales[group];
  return block.scale * (scales == BlockScales::fp8 ? kFp8Values[static_cast<uint8_t>(own)] : own);
}

void block_values(const BlockType& type, const Block& block, float* out) {
  for (int i = 0; i < type.elements; ++i) {
    const int g = i / type.group;
    const uint8_t code = block.codes[i];
    const float value =
        type.floats != nullptr ? type.floats[code] : static_cast<float>(type.value(code));
    const float x = type.scale(block, g) * value;
    out[i] = type.minimums ? x + block.minimum * block.minimums[g] : x;
  }
}

int64_t row_bytes(const mr_tensor& t) {
  const BlockType* type = block_type(t.dtype);
  return type == nullptr ? t.dims[1] * dtype_bytes(t.dtype)
                         : t.dims[1] / type->elements * type->bytes;
}

void read_row(const mr_tensor& t, int64_t row, float* out) {
  const int64_t width = t.dims[1];
  if (t.order != nullptr) {
    mr_tensor in_order = t;
    in_order.order = nullptr;
    std::vector<float> values(width);
    read_row(in_order, row, values.data());
    for (int64_t i = 0; i < width; ++i) out[t.order[i]] = values[i];
    return;
  }
  const BlockType* type = block_type(t.dtype);
  const std::byte* data = row_data(t, row);
  if (type == nullptr) {
    mr_tensor alone = t;
    alone.data = data;
    for (int64_t i = 0; i < width; ++i) out[i] = element(alone, i);
    return;
  }
  const int64_t blocks = width / type->elements;
  const auto* from = reinterpret_cast<const uint8_t*>(data);
  Block block;
  for (int64_t i = 0; i < blocks; ++i) {
    type->read(from + i * type->bytes, block);
    block_values(*type, block, out + i * type->elements);
  }
}

}  // namespace millrace
