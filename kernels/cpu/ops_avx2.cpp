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
  static constexpr int kParts = 2;
  using Packed = Vector;

  static Pair make_pair(float even, float odd) { return {even, odd}; }
  template <int kPart>
  static Vector splat(const Pair& p) {
    return set1(kPart == 0 ? p.even : p.odd);
  }
  template <int kPart>
  static Packed load_packed(const uint32_t* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(kPart == 0 ? _mm256_slli_epi32(x, 16)
                                          : _mm256_and_si256(x, _mm256_set1_epi32(~0xffff)));
  }
  static Vector dot(Vector a, Vector b, Vector sum) { return fma(a, b, sum); }
  static Vector store_probabilities(Vector p, Pair* out) {
    store(&out->even, p);
    return p;
  }

  // Four pairs of two tokens, four apart, 128 bits each.
  static __m256i gather(const bf16* block, int head_dim) {
    const auto part = [](const bf16* p) { return reinterpret_cast<const __m128i*>(p); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(part(block))),
                                   _mm_loadu_si128(part(block + 4 * head_dim)), 1);
  }

  static void pack_keys(const bf16* block, int head_dim, uint32_t* out) {
    const auto store = [](uint32_t* p, __m256i x) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
    };
    for (int token = 0; token < kSlabTokens; token += kLanes) {
      for (int d = 0; d < head_dim; d += 8) {
        const bf16* from = block + token * head_dim + d;
        const __m256i a = gather(from, head_dim);  // tokens 0 and 4
        const __m256i b = gather(from + head_dim, head_dim);
        const __m256i c = gather(from + 2 * head_dim, head_dim);
        const __m256i e = gather(from + 3 * head_dim, head_dim);
        // 4 x 4 pairs in each 128 bits change places: then these hold 4 tokens.
        const __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
        const __m256i ce0 = _mm256_unpacklo_epi32(c, e), ce1 = _mm256_unpackhi_epi32(c, e);
        uint32_t* to = out + d / 2 * kSlabTokens + token;
        store(to, _mm256_unpacklo_epi64(ab0, ce0));
        store(to + kSlabTokens, _mm256_unpackhi_epi64(ab0, ce0));
        store(to + 2 * kSlabTokens, _mm256_unpacklo_epi64(ab1, ce1));
        store(to + 3 * kSlabTokens, _mm256_unpackhi_epi64(ab1, ce1));
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
