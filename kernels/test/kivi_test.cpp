// KIVI: keys as two bits per channel over 32 tokens, values per token, the last tokens exact
// (arXiv:2402.02750).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "exec/quantize.hpp"
#include "lossy_case.hpp"

namespace millrace::test {
namespace {

std::vector<std::string> kivi_isas() { return isas_for(attention_program({}), "+kivi"); }

AttentionCase kivi_case() {
  AttentionCase c;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 40;
  c.rotary_dim = 40;
  return c;
}

TEST(Kivi, ZeroIsTheLeastAndTheScaleAThirdOfTheDistance) {
  const float x[] = {-1.0f, 9, 2.0f, 9, 0.0f, 9, 0.4f, 9, 0.6f, 9, -0.4f};
  uint8_t codes[6];
  const Kivi q = quantize_kivi(x, 6, 2, codes);
  EXPECT_EQ(q.zero, -1.0f);
  EXPECT_EQ(q.scale, 1.0f);
  EXPECT_EQ(std::vector<int>(codes, codes + 6), (std::vector<int>{0, 3, 1, 1, 2, 1}));
  const float same[] = {0.3f, 0.3f, 0.3f};
  const Kivi flat = quantize_kivi(same, 3, 1, codes);
  EXPECT_NEAR(flat.zero, 0.3f, 2e-3f);
  EXPECT_NEAR(flat.zero + flat.scale * static_cast<float>(codes[0]), 0.3f, 1e-4f)
      << "what the zero is rounded by is in the code";
  const float bad[] = {0.3f, NAN, 0.3f};
  EXPECT_TRUE(std::isnan(quantize_kivi(bad, 3, 1, codes).scale));
  EXPECT_EQ(kivi_exact(62), 0);
  EXPECT_EQ(kivi_exact(63), 32);
  EXPECT_EQ(kivi_exact(94), 32);
  EXPECT_EQ(kivi_exact(95), 64);
}

// The values of a row are those of the definition: here of ref, from the table alone.
TEST(Kivi, RefSeesCodesBeforeTheLastTokensAndTheLastTokensAsTheyAre) {
  AttentionCase c;
  c.heads = c.kv_heads = 1;
  c.head_dim = 8;
  Builder b = attention_program(c);
  const int64_t width = b.tensors[0].dims[1];
  Random random(9);
  std::vector<float> table(b.vocab * width);
  for (float& x : table) x = random.normal();
  // The query and the keys are 0: the result is the mean of the values.
  for (int t = 0; t < b.vocab; ++t) std::fill_n(&table[t * width], 2 * c.head_dim, 0.0f);
  b.tensors[0].dtype = MR_F32;
  b.tensors[0].data = table.data();
  const std::vector<int32_t> tokens = random.tokens(100, b.vocab);
  Model model("ref+kivi", b, 40);
  const std::vector<float> out = run(model, tokens, 100);
  for (int p = 0; p < 100; ++p) {
    std::vector<double> mean(c.head_dim);
    for (int j = 0; j <= p; ++j) {
      float value[8];
      uint8_t codes[8];
      for (int i = 0; i < 8; ++i) value[i] = cpu::rounded(table[tokens[j] * width + 16 + i]);
      const Kivi q = quantize_kivi(value, 8, 1, codes);
      const bool coded = j < (p + 1 - 32 > 0 ? (p + 1 - 32) / 32 * 32 : 0);
      for (int i = 0; i < 8; ++i) {
        mean[i] += (coded ? q.zero + q.scale * static_cast<float>(codes[i]) : value[i]) / (p + 1);
      }
    }
    for (int i = 0; i < 8; ++i) EXPECT_NEAR(out[p * b.vocab + i], mean[i], 1e-5) << "token " << p;
  }
}

TEST(Kivi, EveryInstructionSetIsCloseToRef) {
  for (const int head_dim : {8, 40, 64, 128}) {
    AttentionCase c = kivi_case();
    c.head_dim = c.rotary_dim = head_dim;
    Builder b = attention_program(c);
    Random random(3);
    const std::vector<int32_t> tokens = random.tokens(1100, b.vocab);
    Model ref("ref+kivi", b, 100);
    const std::vector<float> expected = run(ref, tokens, 128);
    for (const std::string& isa : kivi_isas()) {
      Model model(isa, b, 100);
      EXPECT_LT(normalized_error(run(model, tokens, 128), expected), 2e-3)
          << isa << ", heads of " << head_dim;
    }
  }
}

// As coarse as two bits are, and not coarser: it is neither bf16 nor something else.
TEST(Kivi, CodesAreAsCoarseAsTwoBitsAre) {
  Builder b = attention_program(kivi_case());
  Random random(3);
  const std::vector<int32_t> tokens = random.tokens(300, b.vocab);
  Model ref("ref", b, 100), coded("ref+kivi", b, 100);
  const auto exact = run(ref, tokens, 128), codes = run(coded, tokens, 128);
  const size_t first = 63 * size_t(b.vocab);
  EXPECT_LT(normalized_error({codes.begin(), codes.begin() + first},
                             {exact.begin(), exact.begin() + first}),
            1e-4);
  const double error = normalized_error({codes.begin() + 200 * b.vocab, codes.end()},
                                        {exact.begin() + 200 * b.vocab, exact.end()});
  EXPECT_GT(error, 1e-3);
  EXPECT_LT(error, 0.5);
}

class KiviOn : public testing::TestWithParam<std::string> {};

TEST_P(KiviOn, ARowHasTheSameBitsHoweverItIsComputed) {
  Builder b = small_llama();
  b.see_all();
  expect_same_bits(GetParam(), b, 300, 400, {7, 32, 33, 64, 100, 300});
}

TEST_P(KiviOn, TheFirstTokensHaveTheBitsOfBf16) {
  Builder b = attention_program(kivi_case());
  Random random(6);
  const std::vector<int32_t> tokens = random.tokens(64, b.vocab);
  const std::string isa = GetParam(), name = isa.substr(0, isa.find('+'));
  // AMX has tiles for bf16 alone, whose sums have an order of their own.
  Model kivi(isa, b, 40), bf16(name == "amx" ? "avx512" : name, b, 40);
  const auto coded = run(kivi, tokens, 64), exact = run(bf16, tokens, 64);
  const size_t first = 63 * size_t(b.vocab);
  EXPECT_TRUE(std::equal(exact.begin(), exact.begin() + first, coded.begin()));
  EXPECT_FALSE(std::equal(exact.begin() + first, exact.end(), coded.begin() + first))
      << "token 63 sees 32 tokens as codes";
}

TEST_P(KiviOn, WindowsAndBeamsAreRefused) {
  Builder b = small_llama();
  try {
    const Model model(GetParam(), b, 0);
    ADD_FAILURE() << "a window was accepted";
  } catch (const Failure& e) {
    EXPECT_EQ(e.status, MR_UNSUPPORTED) << e.what();
  }
  b.see_all();
  Model model(GetParam(), b, 60);
  expect_no_beams(model);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KiviOn);
INSTANTIATE_TEST_SUITE_P(Cpu, KiviOn, testing::ValuesIn(kivi_isas()),
                         [](const auto& info) { return isa_label(info.param); });

}  // namespace
}  // namespace millrace::test
