// Attention over codes for AVX-512 with VNNI.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "cpu/ops/kernels.hpp"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
#include "cpu/attention/bytes.hpp"
#include "cpu/machine/simd_avx512.hpp"

namespace millrace::cpu {
namespace {

// vpdpbusd adds four products of an unsigned byte with a signed one to each of 16 sums.
struct VnniBytes {
  using Floats = Avx512Ops;
  using Vector = Floats::Vector;
  using Ints = Floats::Ints;
  using Bytes = __m512i;
  static constexpr int kQueries = 8, kSums = 16;

  static Bytes load(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static Bytes low(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static Bytes high(Bytes x) { return low(_mm512_srli_epi16(x, 4)); }
  static Bytes splat(uint32_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }

  using Quad = uint32_t;
  using Spread = Bytes;
  struct Keys {
    Bytes bytes;
  };
  struct Values {
    Bytes bytes;
  };
  static Spread spread(Quad q) { return splat(q); }
  static Keys keys(Bytes x) { return {x}; }
  static Values values(Bytes x) { return {x}; }
  static Ints add(Ints sum, Bytes x, Bytes y) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, x, y);
  }
  static Ints add(Ints sum, Keys x, Spread y) { return add(sum, x.bytes, y); }
  static Ints add(Ints sum, Values x, Spread y) { return add(sum, y, x.bytes); }

  static constexpr int kRun = kBlockTokens / 4;
  using Short = Ints;
  static Short begin(Ints sum) { return sum; }
  static Ints end(Short all, Ints) { return all; }

  static Vector load(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static bool finite(Vector x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) == 0; }
  static Ints round(Vector x, bool keep) {
    return (Ints)_mm512_maskz_cvtps_epi32(keep ? kAll : 0, x);
  }
  static void store(Ints codes, int n, Quad* to) {
    _mm512_mask_cvtepi32_storeu_epi8(to, first(n), (__m512i)codes);
  }
  static int32_t total(Ints x) { return _mm512_reduce_add_epi32((__m512i)x); }

 private:
  static constexpr __mmask16 kAll = 0xffff;
  static __mmask16 first(int n) {
    return static_cast<__mmask16>(n >= Floats::kLanes ? kAll : (1 << n) - 1);
  }
};

}  // namespace

const AttentionKernels& attention_vnni(int bits) {
  static constexpr AttentionKernels int8 = make_byte_attention<VnniBytes, 8>();
  static constexpr AttentionKernels int4 = make_byte_attention<VnniBytes, 4>();
  return bits == 8 ? int8 : int4;
}

}  // namespace millrace::cpu

#pragma GCC pop_options
#endif
