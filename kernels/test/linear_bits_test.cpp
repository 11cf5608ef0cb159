// What changes no bit of a linear op: the other rows, threads, prefetch variants, and instruction sets
// of a class.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu/linear/linear.hpp"
#include "cpu/linear/tune.hpp"
#include "exec/quantize.hpp"
#include "linear_case.hpp"

namespace millrace::cpu {
namespace {

// The promise of the whole project rests on this one.
TEST_P(EveryKind, ARowsBitsDependOnNeitherTheOtherRowsNorTheThreads) {
  struct Shape {
    int64_t k, n;
    Ending ending;
  };
  // 1111 makes several blocks of K, 700 several tasks for each thread.
  for (const Shape& s : {Shape{1111, 67, {}}, Shape{64, 700, {.out_f32 = false}},
                         Shape{129, 65, {MR_ACT_SILU, true, false, false, true}},
                         Shape{600, 40, {MR_ACT_GELU_ERF, false, true, true, true}}}) {
    Case c(s.k, s.n, s.ending);
    c.keep(GetParam());
    ThreadPool one(1);
    const auto linear = GetParam().pack(c.spec, one);
    std::vector<char> alone;
    for (int r = 0; r < kMaxRows; ++r) {
      const std::vector<char> row = c.run(*linear, r, 1, one);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    const size_t row_bytes = alone.size() / kMaxRows;
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      for (const int rows : {1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 100, 257}) {
        for (const int first : {0, kMaxRows - rows}) {
          const std::vector<char> out = c.run(*linear, first, rows, pool);
          ASSERT_EQ(std::memcmp(out.data(), alone.data() + first * row_bytes, out.size()), 0)
              << rows << " rows from " << first << ", " << threads << " threads, K " << s.k;
        }
      }
    }
  }
}

// Weights that come from memory go by other blocks than those that a cache holds.
TEST_P(EveryKind, ARowsBitsAreThoseOfItAloneWithLargeWeights) {
  Case c(2050, 3901, {.out_f32 = false});
  c.spec.weights = GetParam().weights;
  c.spec.group = GetParam().group;
  ThreadPool pool(2);
  const auto linear = GetParam().pack(c.spec, pool);
  for (const int rows : {2, 29, 61, 135}) {
    const std::vector<char> out = c.run(*linear, 0, rows, pool);
    const size_t row_bytes = out.size() / rows;
    for (const int r : {0, rows / 2, rows - 1}) {
      const std::vector<char> alone = c.run(*linear, r, 1, pool);
      ASSERT_EQ(std::memcmp(out.data() + r * row_bytes, alone.data(), row_bytes), 0)
          << "row " << r << " of " << rows;
    }
  }
}

// As the ops do that read one norm.
TEST_P(EveryKind, AnOperandIsOfUseToLargeAndSmallWeights) {
  Case small(2050, 40, {}), large(2050, 3901, {});
  ThreadPool pool(2);
  std::unique_ptr<Linear> ops[2];
  int op = 0;
  for (Case* c : {&small, &large}) {
    c->spec.weights = GetParam().weights;
    c->spec.group = GetParam().group;
    ops[op++] = GetParam().pack(c->spec, pool);
  }
  ASSERT_TRUE(ops[0]->reads_like(*ops[1]));
  for (const int rows : {33, 100}) {
    Pages room(ops[0]->operand_room(rows));
    const auto rows_of = [&](int first, int, int) { return &large.in[first * large.in_width]; };
    const Linear::Operand operand = ops[0]->pack_rows(rows, room.data(), pool, rows_of);
    std::vector<float> out(rows * large.out_width);
    ops[1]->run(operand, out.data(), pool);
    const std::vector<char> expected = large.run(*ops[1], 0, rows, pool);
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), expected.size()), 0) << rows << " rows";
  }
}

TEST_P(EveryKind, EveryPrefetchVariantGivesTheSameBits) {
  Case c(129, 700, {.biased = true});
  c.keep(GetParam());
  ThreadPool pool(2);
  const auto linear = GetParam().pack(c.spec, pool);
  for (int rows = 1; rows <= linear->max_tile_rows(); ++rows) {
    linear->set_prefetch_variant(rows, 0);
    const std::vector<char> expected = c.run(*linear, 0, rows, pool);
    for (int variant = 1; variant < kPrefetchVariants; ++variant) {
      linear->set_prefetch_variant(rows, variant);
      EXPECT_EQ(c.run(*linear, 0, rows, pool), expected) << rows << " rows, variant " << variant;
    }
  }
}

TEST_P(EveryKind, TuningChangesNoBits) {
  Case c(600, 300, {MR_ACT_SILU, true, false, false, true});
  c.keep(GetParam());
  ThreadPool pool(2);
  const auto linear = GetParam().pack(c.spec, pool);
  const std::vector<char> expected = c.run(*linear, 0, kMaxTileRows + 5, pool);
  tune_prefetch({linear.get()}, pool);
  EXPECT_EQ(c.run(*linear, 0, kMaxTileRows + 5, pool), expected);
  for (int rows = 1; rows <= linear->max_tile_rows(); ++rows) {
    const std::vector<char> out = c.run(*linear, 0, rows, pool);
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size()), 0) << rows << " rows";
  }
}

// Weights that FP8 keeps exactly give the bits of 16-bit weights: products and sums are theirs.
TEST(Linear, Fp8SumsAreThoseOf16Bits) {
  Case c(1111, 67, {});
  for (float& w : c.weights.values)
    w = fp8_value(static_cast<uint8_t>(std::lround(w * 100) & 0xf7));
  for (int64_t n = 0; n < c.out_width; ++n) c.weights.values[n * c.in_width] = kFp8Largest;
  ThreadPool pool(2);
  for (const Isa isa : available_isas()) {
    if (isa == Isa::amx) continue;                         // its tiles are not for FP8
    if (isa == Isa::avx512_bf16 && !has_vbmi()) continue;  // FP8 is AVX-512's there
    c.spec.weights = MR_WEIGHTS_16BIT;
    const auto bits16 = Linear::pack(c.spec, isa, pool);
    c.spec.weights = MR_WEIGHTS_FP8;
    const auto fp8 = Linear::pack(c.spec, isa, pool);
    for (const int rows : {1, 5, 40}) {
      EXPECT_EQ(c.run(*fp8, 0, rows, pool), c.run(*bits16, 0, rows, pool)) << isa_name(isa);
    }
  }
}

TEST(Linear, FloatInstructionSetsAgreeBitForBit) {
  const Case c(1111, 67, {.biased = true});
  ThreadPool pool(2);
  const auto portable = Linear::pack(c.spec, Isa::portable, pool);
  for (const Isa isa : available_isas()) {
    if (isa >= Isa::avx512_bf16) continue;  // add pairs in an order of their own
    const auto linear = Linear::pack(c.spec, isa, pool);
    for (const int rows : {1, 5, 40}) {
      EXPECT_EQ(c.run(*linear, 0, rows, pool), c.run(*portable, 0, rows, pool)) << isa_name(isa);
    }
  }
}

}  // namespace
}  // namespace millrace::cpu
