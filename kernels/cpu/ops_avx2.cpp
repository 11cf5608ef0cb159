// Ops for AVX2 and FMA.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "op_kernels.hpp"

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include <immintrin.h>

#include "attention_tile.hpp"

namespace millrace::cpu {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8;
  static constexpr int kQueries = 4, kKeyVectors = 2, kDimVectors = 2;
  using Vector = __m256;
  typedef int32_t Ints __attribute__((vector_size(32)));

  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
  static Vector set1(float x) { return _mm256_set1_ps(x); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static float sum(Vector x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
  }
  static float largest(Vector x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
  }
  static float sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

  struct Pair {
    float even, odd;
  };
  struct Splat {
    Vector even, odd;
  };
  using Packed = Splat;

  static Pair make_pair(float even, float odd) { return {even, odd}; }
  static Splat splat(Pair p) { return {set1(p.even), set1(p.odd)}; }
  static Packed load_packed(const uint32_t* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(~0xffff)))};
  }
  static Vector dot(Splat a, Packed b, Vector sum) {
    return fma(a.odd, b.odd, fma(a.even, b.even, sum));
  }
  static Vector store_probabilities(Vector p, Pair* out) {
    store(&out->even, p);
    return p;
  }

  // Eight tokens' vectors of eight pairs to eight pairs' vectors of tokens.
  static void transpose(__m256i (&x)[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
      a[2 * i + 1] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 2; ++k) {
        b[4 * i + 2 * k] = _mm256_unpacklo_epi64(a[4 * i + k], a[4 * i + 2 + k]);
        b[4 * i + 2 * k + 1] = _mm256_unpackhi_epi64(a[4 * i + k], a[4 * i + 2 + k]);
      }
    }
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
      x[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
    }
  }

  static void pack_keys(const bf16* block, int head_dim, uint32_t* out) {
    const int pairs = head_dim / 2;
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int k = 0; k < pairs; k += kLanes) {
      const int n = pairs - k < kLanes ? pairs - k : kLanes;
      const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), numbers);
      for (int token = 0; token < kSlabTokens; token += kLanes) {
        __m256i x[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          const bf16* from = block + (token + i) * head_dim + 2 * k;
          x[i] = _mm256_maskload_epi32(reinterpret_cast<const int*>(from), mask);
        }
        transpose(x);
        for (int i = 0; i < n; ++i) {
          uint32_t* to = out + (k + i) * kSlabTokens + token;
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x[i]);
        }
      }
    }
  }

  static void pack_values(const bf16* even, const bf16* odd, int head_dim, uint32_t* out) {
    for (int d = 0; d < head_dim; d += kLanes) {  // head_dim is a multiple of 8
      const __m256i low =
          _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(even + d)));
      __m256i high = _mm256_setzero_si256();
      if (odd != nullptr) {
        high = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + d)));
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + d),
                          _mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
    }
  }
};

}  // namespace

const OpKernels& op_kernels_avx2() {
  static constexpr OpKernels kernels = make_op_kernels<Avx2>(Isa::avx2);
  return kernels;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
