// PTX ISA, "Matrix Fragments for mma.m16n8k16" and ".m16n8k32". With g = lane / 4, t = lane % 4:
//
//   16 bits  a[0]: row g,     columns 2t, 2t + 1      a[2]: the same, columns + 8
//            a[1]: row g + 8, columns 2t, 2t + 1      a[3]: the same, columns + 8
//            b[0]: rows 2t, 2t + 1 of column g        b[1]: the same, rows + 8
//   bytes    a[0]: row g,     columns 4t to 4t + 3    a[2]: the same, columns + 16
//            a[1]: row g + 8, columns 4t to 4t + 3    a[3]: the same, columns + 16
//            b[0]: rows 4t to 4t + 3 of column g      b[1]: the same, rows + 16
//   sums     c[0]: row g,     columns 2t, 2t + 1
//            c[1]: row g + 8, columns 2t, 2t + 1
//
// Words of lanes 0 to 31 in a row are thus 8 rows of an 8 x 8 (or 8 x 16) piece of a and c, and 8
// columns of a piece of b.
#include "products.hpp"

#include <immintrin.h>

#include <cmath>
#include <cstring>

namespace mr_emulator {
namespace {

float from_bf16(u16 x) {
  const u32 bits = u32{x} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
float from_f16(u16 x) {
  const u32 sign = (x & 0x8000u) << 16, rest = x & 0x7fffu;
  u32 bits = rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : rest << 13;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  if (rest < 0x7c00) out *= 0x1p112f;
  std::memcpy(&bits, &out, sizeof bits);
  bits |= sign;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Piece (i, k) of a is rows 8i and columns 8k; register i + 2k.
template <class F>
void multiply_portable(Warp& w, F&& number) {
  u16 a[4][8][8], b[2][8][8];
  float c[16][8];
  std::memcpy(a, w.a, sizeof a);
  std::memcpy(b, w.b, sizeof b);
  std::memcpy(c, w.c, sizeof c);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      float sum = c[m][n];
      for (int k = 0; k < 16; ++k) {
        sum =
            std::fma(number(a[m / 8 + 2 * (k / 8)][m % 8][k % 8]), number(b[k / 8][n][k % 8]), sum);
      }
      c[m][n] = sum;
    }
  }
  std::memcpy(w.c, c, sizeof c);
}

const bool kAvx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("f16c");

template <bool kBf16>
__attribute__((target("avx2,fma,f16c"))) inline __m256 widen(const u16* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if (kBf16) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  return _mm256_cvtph_ps(x);
}

// Sums of a row are a register; products of a column of a and a row of b are added to all at once.
template <bool kBf16>
__attribute__((target("avx2,fma,f16c"))) void multiply_avx2(Warp& w) {
  const u16(&a)[4][8][8] = reinterpret_cast<const u16(&)[4][8][8]>(w.a);
  const u16(&b)[2][8][8] = reinterpret_cast<const u16(&)[2][8][8]>(w.b);
  float(&c)[16][8] = reinterpret_cast<float(&)[16][8]>(w.c);
  alignas(32) float rows[16][8];  // of b
  alignas(32) float af[16][16];
  for (int k = 0; k < 2; ++k) {
    __m256 v[8], t[8];
    for (int n = 0; n < 8; ++n) v[n] = widen<kBf16>(b[k][n]);
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      v[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
      v[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
      v[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
      v[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      _mm256_store_ps(rows[8 * k + i], _mm256_permute2f128_ps(v[i], v[i + 4], 0x20));
      _mm256_store_ps(rows[8 * k + i + 4], _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int r = 0; r < 8; ++r) {
      _mm256_store_ps(&af[i % 2 * 8 + r][i / 2 * 8], widen<kBf16>(a[i][r]));
    }
  }
  for (int first = 0; first < 16; first += 8) {
    __m256 sums[8];
    for (int i = 0; i < 8; ++i) sums[i] = _mm256_loadu_ps(c[first + i]);
    for (int k = 0; k < 16; ++k) {
      const __m256 row = _mm256_load_ps(rows[k]);
      for (int i = 0; i < 8; ++i) {
        sums[i] = _mm256_fmadd_ps(_mm256_broadcast_ss(&af[first + i][k]), row, sums[i]);
      }
    }
    for (int i = 0; i < 8; ++i) _mm256_storeu_ps(c[first + i], sums[i]);
  }
}

using Bytes = signed char;

__attribute__((target("avx2"))) inline __m256i words(const Bytes* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

__attribute__((target("avx2"))) void multiply_s8_avx2(Warp& w) {
  const Bytes(&a)[4][8][16] = reinterpret_cast<const Bytes(&)[4][8][16]>(w.a);
  const Bytes(&b)[2][8][16] = reinterpret_cast<const Bytes(&)[2][8][16]>(w.b);
  u32(&c)[16][8] = reinterpret_cast<u32(&)[16][8]>(w.c);
  for (int m = 0; m < 16; ++m) {
    const __m256i a0 = words(a[m / 8][m % 8]), a1 = words(a[m / 8 + 2][m % 8]);
    __m256i sums[8];
    for (int n = 0; n < 8; ++n) {
      sums[n] = _mm256_add_epi32(_mm256_madd_epi16(a0, words(b[0][n])),
                                 _mm256_madd_epi16(a1, words(b[1][n])));
    }
    for (int n = 0; n < 8; n += 4) {
      const __m256i four = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[n], sums[n + 1]),
                                             _mm256_hadd_epi32(sums[n + 2], sums[n + 3]));
      const __m128i sum =
          _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
      auto* const at = reinterpret_cast<__m128i*>(&c[m][n]);
      _mm_storeu_si128(at, _mm_add_epi32(_mm_loadu_si128(at), sum));
    }
  }
}

}  // namespace

void multiply_bf16(Warp& w) {
  if (kAvx2) return multiply_avx2<true>(w);
  multiply_portable(w, from_bf16);
}
void multiply_f16(Warp& w) {
  if (kAvx2) return multiply_avx2<false>(w);
  multiply_portable(w, from_f16);
}
void multiply_s8(Warp& w) {
  if (kAvx2) return multiply_s8_avx2(w);
  signed char a[4][8][16], b[2][8][16];
  u32 c[16][8];
  std::memcpy(a, w.a, sizeof a);
  std::memcpy(b, w.b, sizeof b);
  std::memcpy(c, w.c, sizeof c);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      for (int k = 0; k < 32; ++k) {
        c[m][n] += static_cast<u32>(a[m / 8 + 2 * (k / 16)][m % 8][k % 16] * b[k / 16][n][k % 16]);
      }
    }
  }
  std::memcpy(w.c, c, sizeof c);
}

}  // namespace mr_emulator
