// Linear ops with FP8 or NF4 weights, over rows as they are: codes become numbers in registers,
// and these the matrix engine's operands, which hold them exactly.
//
// exec/quantize.hpp says what the codes stand for.
#include "blocks.hpp"
#include "matrix.hpp"

namespace mr_dequantize {

// Codes of a byte: e4m3fn.
class Fp8 {
 public:
  static constexpr int kWordCodes = 4;
  static constexpr bool kInGroups = false;
  // widen() gives numbers over kUnit. For the matrix engine that is 1: of its f16 operands some
  // would be subnormal.
  static constexpr float kUnit = MR_XMX ? 1.0f : 256.0f;

  // A half has the same places, but for a wider exponent: so read, a code is 2^8 too small, and
  // subnormals are right too.
  MR_INLINE void widen(uint32_t word, float (&x)[kWordCodes]) const {
    const uint32_t even = halves(word << 8), odd = halves(word);
    x[0] = number(even);
    x[1] = number(odd);
    x[2] = number(even >> 16);
    x[3] = number(odd >> 16);
  }

 private:
  // Converts the codes in the high bytes of both halves.
  MR_INLINE static uint32_t halves(uint32_t word) {
    return (word & 0x80008000u) | (word >> 1 & 0x3f803f80u);
  }
  MR_INLINE static float number(uint32_t half) {
    return f16_to_float(static_cast<uint16_t>(half)) * (256.0f / kUnit);
  }
};

// Codes of half a byte: one of 16 levels, which are kept by the lanes.
class Nf4 {
 public:
  static constexpr int kWordCodes = 8;
  static constexpr bool kInGroups = true;
  static constexpr float kUnit = 1.0f;

  static_assert(MR_LANES == 8 || MR_LANES == 16 || MR_LANES == 32);

  // levels: bf16. A lane keeps one of them, or two where there are 8 lanes.
  MR_INLINE Nf4(const uint16_t* levels) {
    const int lane = this_item().get_sub_group().get_local_linear_id();
    mine_ = static_cast<uint32_t>(levels[MR_LANES == 8 ? 8 + lane : lane % 16]) << 16;
    if (MR_LANES == 8) mine_ |= levels[lane];
  }

  MR_INLINE void widen(uint32_t word, float (&x)[kWordCodes]) const {
#pragma unroll
    for (int i = 0; i < kWordCodes; ++i) x[i] = level(word >> (i < 4 ? 8 * i : 8 * i - 28) & 15);
  }

 private:
  MR_INLINE float level(uint32_t code) const {
    const auto sub_group = this_item().get_sub_group();
    uint32_t bits = sycl::select_from_group(sub_group, mine_, code % MR_LANES);
    if (MR_LANES == 8) bits = code < 8 ? bits << 16 : bits & 0xffff0000u;
    return sycl::bit_cast<float>(bits);
  }

  uint32_t mine_;
};

#if MR_XMX

MR_INLINE uint32_t pair(float first, float second) {
#if MR_BF16
  return sycl::bit_cast<uint32_t>(first) >> 16 | (sycl::bit_cast<uint32_t>(second) & 0xffff0000u);
#else
  const auto bits = [](float x) {
    return uint32_t{sycl::bit_cast<uint16_t>(static_cast<sycl::half>(x))};
  };
  return bits(first) | bits(second) << 16;
#endif
}

#endif

template <class Codes>
struct Format {
  using Sum = float;
  static constexpr int kWordCodes = Codes::kWordCodes;
  static constexpr bool kInGroups = Codes::kInGroups;
#if MR_XMX
  static constexpr int kVectors = mr::kColumnBlocks;
#else
  static constexpr int kVectors = mr_blocks::kBlock / MR_LANES;
#endif

  const operand* in;  // [rows][depth]
  Codes codes;

  MR_INLINE float row_scale(int64_t) const { return Codes::kUnit; }

#if MR_XMX
  template <int M, int T>
  MR_INLINE void multiply(const mr::CodedShape& s, const mr_blocks::Part& part,
                          const uint32_t* weights, int step, float (&sums)[T][kVectors][M]) const {
    using namespace mr_matrix;
    constexpr int kHalfWords = mr::kDepth / kWordCodes;
#pragma unroll 1
    for (int half = 0; half < mr::kCodeDepth / mr::kDepth; ++half) {
      Columns b[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint32_t* words = weights + half * kHalfWords * mr_blocks::kBlock +
                                mr_blocks::first_column<kVectors>(part.share, v) + part.lane;
#pragma unroll
        for (int i = 0; i < kHalfWords; ++i) {
          float x[kWordCodes];
          codes.widen(words[i * mr_blocks::kBlock], x);
#pragma unroll
          for (int k = 0; k < kWordCodes; k += 2) {
            b[v].words[(i * kWordCodes + k) / 2] = pair(x[k], x[k + 1]);
          }
        }
      }
      const int first = step * mr::kCodeDepth + half * mr::kDepth;
#pragma unroll
      for (int t = 0; t < T; ++t) {
        const int64_t row = part.first_row + (t * M < part.rows ? t * M : 0);
        const auto a = load_rows<M>(in + row * s.depth + first, s.depth, part.rows - t * M,
                                    s.depth - first, part.lane);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) mr_matrix::multiply<M>(a, b[v], sums[t][v]);
      }
    }
  }
#else
  // A row's numbers are the same for all lanes, and so read by all of them.
  template <int M, int T>
  MR_INLINE void multiply(const mr::CodedShape& s, const mr_blocks::Part& part,
                          const uint32_t* weights, int step, float (&sums)[T][kVectors][M]) const {
    static_assert(T == 1);
    const int first = step * mr::kCodeDepth;
    const operand* rows[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      rows[m] = in + (part.first_row + (m < part.rows ? m : 0)) * s.depth + first;
    }
    const auto multiply_word = [&](int i, int there) __attribute__((always_inline)) {
      const uint32_t* words = weights + i * mr_blocks::kBlock + part.lane;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float x[kWordCodes];
        codes.widen(words[v * MR_LANES], x);
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int k = 0; k < kWordCodes; ++k) {
            const float number = k < there ? to_float(rows[m][i * kWordCodes + k]) : 0.0f;
            sums[0][v][m] = sycl::fma(number, x[k], sums[0][v][m]);
          }
      }
    };
    const int left = s.depth - first < mr::kCodeDepth ? s.depth - first : mr::kCodeDepth;
    for (int i = 0; i < left / kWordCodes; ++i) multiply_word(i, kWordCodes);
    if (left % kWordCodes > 0) multiply_word(left / kWordCodes, left % kWordCodes);
  }
#endif
};

}  // namespace mr_dequantize

#define MR_RUN(M, T, Codes, ...)                                                       \
  mr_blocks::run<M, T>(mr_dequantize::Format<mr_dequantize::Codes>{in, {__VA_ARGS__}}, \
                       {weights, scales, bias, out, MR_TILES},                         \
                       local.get_multi_ptr<sycl::access::decorated::no>().get(), s)
#define MR_FP8(name, M, T)                                                                    \
  MR_KERNEL name(const operand* in, const uint32_t* weights, const void* scales,              \
                 const float* bias, void* out,                                                \
                 MR_TILES_PARAMETER sycl::local_accessor<float, 1> local, mr::CodedShape s) { \
    MR_RUN(M, T, Fp8);                                                                        \
  }
// levels: bf16 [16].
#define MR_NF4(name, M, T)                                                                    \
  MR_KERNEL name(const operand* in, const uint16_t* levels, const uint32_t* weights,          \
                 const void* scales, const float* bias, void* out,                            \
                 MR_TILES_PARAMETER sycl::local_accessor<float, 1> local, mr::CodedShape s) { \
    MR_RUN(M, T, Nf4, levels);                                                                \
  }
MR_FP8(mr_fp8_1, 1, 1)
MR_FP8(mr_fp8_2, 2, 1)
MR_FP8(mr_fp8_4, 4, 1)
MR_NF4(mr_nf4_1, 1, 1)
MR_NF4(mr_nf4_2, 2, 1)
#if MR_XMX
MR_FP8(mr_fp8_8, 8, 1)
MR_FP8(mr_fp8_tiles, 8, MR_LANES / 4)
MR_NF4(mr_nf4_4, 4, 1)
MR_NF4(mr_nf4_8, 8, 1)
#if MR_LANES == 16  // more would not fit into the registers
MR_NF4(mr_nf4_tiles, 8, 2)
#endif
#else  // a CPU has no registers for four rows' sums of a group beside those of all
MR_NF4(mr_nf4_3, 3, 1)
#endif
