// Pairs of bf16 as AVX-512 BF16 rounds them, over Avx512Ops; included after the compiler was switched to it.
#ifndef MILLRACE_CPU_ATTENTION_PAIRS_AVX512_BF16_HPP
#define MILLRACE_CPU_ATTENTION_PAIRS_AVX512_BF16_HPP

#include <immintrin.h>

#include <cstdint>

#include "cpu/machine/simd_avx512.hpp"
#include "cpu/ops/row_tile.hpp"

namespace millrace::cpu {
namespace {

struct Avx512Pairs : Avx512Ops {
  using Pair = uint32_t;

  static Pair make_pair(float even, float odd) {
    return Rows<Avx512Ops>::round_bf16(even) | uint32_t{Rows<Avx512Ops>::round_bf16(odd)} << 16;
  }
  static Vector store_pairs(Vector p, Pair* out) {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(p);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), rounded);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
