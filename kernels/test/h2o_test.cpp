// H2O: each KV head keeps its last tokens, and those that got the most attention (arXiv:2306.14048).
#include "exec/h2o.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lossy_case.hpp"

namespace millrace::test {
namespace {

Builder keeping(Builder b, int heavy, int recent) {
  for (mr_op& op : b.ops) {
    if (!has_heads(op)) continue;
    op.attention.window = 0;
    op.attention.heavy = heavy;
    op.attention.recent = recent;
  }
  return b;
}

std::vector<std::string> h2o_isas() { return isas_for(keeping(attention_program({}), 1, 1)); }

AttentionCase h2o_case(int heavy, int recent) {
  AttentionCase c;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.rotary_dim = 16;
  c.heavy = heavy;
  c.recent = recent;
  return c;
}

// What the paper says, for one KV head: a list of tokens with their sums. After each 64th one all
// go but the last ones and those of the largest sums.
struct Paper {
  struct Token {
    std::vector<double> key;
    const float* value;
    double sum;
  };
  AttentionCase c;
  std::vector<Token> tokens;
  int position = 0;

  // Results of the KV head's queries for the next token, whose row of the table is given.
  std::vector<double> next(const float* row, int kv_head) {
    const int d = c.head_dim, group = c.heads / c.kv_heads;
    tokens.push_back({at_position(row + (c.heads + kv_head) * d, d, position),
                      row + (c.heads + c.kv_heads + kv_head) * d, 0});
    std::vector<double> out;
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const auto q = at_position(row + h * d, d, position);
      std::vector<double> weights;
      double total = 0;
      for (const Token& t : tokens) {
        double score = 0;
        for (int i = 0; i < d; ++i) score += q[i] * t.key[i];
        weights.push_back(std::exp(score / std::sqrt(d)));
        total += weights.back();
      }
      std::vector<double> sum(d);
      for (size_t j = 0; j < tokens.size(); ++j) {
        tokens[j].sum += weights[j] / total;
        for (int i = 0; i < d; ++i) sum[i] += weights[j] / total * tokens[j].value[i];
      }
      out.insert(out.end(), sum.begin(), sum.end());
    }
    if (++position % 64 == 0) evict();
    return out;
  }

  void evict() {
    while (static_cast<int>(tokens.size()) > c.heavy + c.recent) {
      const auto lightest =
          std::min_element(tokens.begin(), tokens.end() - c.recent,
                           [](const Token& a, const Token& b) { return a.sum < b.sum; });
      tokens.erase(lightest);
    }
  }
};

TEST(H2o, RefIsThePapersCacheThatEvictsAfterEach64thToken) {
  for (const auto& [heavy, recent] : {std::pair{1, 1}, {40, 10}, {20, 90}, {100, 60}}) {
    const AttentionCase c = h2o_case(heavy, recent);
    Builder b = attention_program(c);
    b.max_rows = b.max_outputs = 300;
    const int64_t width = b.tensors[0].dims[1];
    Random random(9);
    std::vector<float> table(b.vocab * width);
    for (float& x : table) x = 1.5f * random.normal();
    b.tensors[0].dtype = MR_F32;
    b.tensors[0].data = table.data();
    Model model("ref", b, 20);
    const std::vector<int32_t> tokens = random.tokens(300, b.vocab);
    const std::vector<float> out = run(model, tokens, 300);
    std::vector<Paper> heads(c.kv_heads, Paper{c, {}});
    for (size_t t = 0; t < tokens.size(); ++t) {
      std::vector<double> expected;
      for (int h = 0; h < c.kv_heads; ++h) {
        const auto part = heads[h].next(table.data() + tokens[t] * width, h);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      for (int i = 0; i < b.vocab; ++i) {
        ASSERT_NEAR(out[t * b.vocab + i], expected[i], 3e-5)
            << heavy << " heavy, " << recent << " recent, token " << t;
      }
    }
  }
}

TEST(H2o, OfEqualSumsTheLaterOnesStayAndTheLastOnesInAnyCase) {
  const KvLayout kv({{1, 8, 8}}, 1, MR_KV_F32,
                    [](int width) { return size_t{16} * width * 4 + kH2oBytes; });
  std::vector<std::byte> memory(kv.slab_bytes);
  millrace::Sequence s{memory.data(), 0, 1, 0, nullptr};
  const H2oHead head(kv, s, 0, 0);
  Program p;
  p.heavy = 3;
  p.recent = 2;
  const auto kept = [&](const std::vector<float>& sums) {
    for (size_t i = 0; i < sums.size(); ++i) head.sum(static_cast<int>(i)) = sums[i];
    return h2o_kept(p, head, static_cast<int>(sums.size()));
  };
  EXPECT_EQ(kept({5, 1, 4, 0, 3, 0, 0}), (std::vector<int>{0, 2, 4, 5, 6}));
  EXPECT_EQ(kept({1, 1, 1, 1, 1, 1, 1}), (std::vector<int>{2, 3, 4, 5, 6}));
  EXPECT_EQ(kept({2, 1, 2, 1, 1, 9, 9}), (std::vector<int>{0, 2, 4, 5, 6}));
  EXPECT_EQ(kept({0, NAN, 7, INFINITY, 8, 0, 0}), (std::vector<int>{1, 3, 4, 5, 6}));
}

// Sums differ a little, so now and then another token goes, one that gets little attention.
TEST(H2o, EveryInstructionSetIsCloseToRef) {
  // With heads of 256 elements, 20 of them are more than a tile has queries.
  for (const auto& [head_dim, group] :
       {std::pair{8, 3}, {40, 3}, {64, 1}, {128, 2}, {256, 3}, {256, 20}}) {
    AttentionCase c = h2o_case(90, 41);
    c.head_dim = c.rotary_dim = head_dim;
    c.heads = 2 * group;
    Builder b = attention_program(c);
    Random random(3);
    const std::vector<int32_t> tokens = random.tokens(500, b.vocab);
    Model ref("ref", b, 50);
    const std::vector<float> expected = run(ref, tokens, 128);
    for (const std::string& isa : h2o_isas()) {
      Model model(isa, b, 50);
      EXPECT_LT(normalized_error(run(model, tokens, 128), expected), 3e-3)
          << isa << ", " << group << " heads of " << head_dim;
    }
  }
}

class H2oOn : public testing::TestWithParam<std::string> {};

TEST_P(H2oOn, ARowHasTheSameBitsHoweverItIsComputed) {
  expect_same_bits(GetParam(), keeping(small_llama(), 50, 33), 400, 100,
                   {7, 50, 63, 64, 65, 130, 400});
}

TEST_P(H2oOn, UntilTheFirstEvictionBitsAreThoseOfAnyCache) {
  Builder b = keeping(small_llama(), 60, 41), all = keeping(small_llama(), 0, 0);
  b.max_rows = b.max_outputs = all.max_rows = all.max_outputs = 130;
  Random random(6);
  const std::vector<int32_t> tokens = random.tokens(130, b.vocab);
  Model evicts(GetParam(), b, 20), keeps(GetParam(), all, 20);
  const auto found = run(evicts, tokens, 130), expected = run(keeps, tokens, 130);
  const size_t first = 128 * size_t(b.vocab);
  EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + first, found.begin()));
  EXPECT_FALSE(std::equal(expected.begin() + first, expected.begin() + first + b.vocab,
                          found.begin() + first))
      << "token 128 sees 101 of those before it";
}

// Over pieces of attention, in a pool that holds a third of the tokens.
TEST_P(H2oOn, ASequenceNeedsTheSlabsOfKeptTokensAndNoMore) {
  Builder b = keeping(attention_program(h2o_case(1000, 100)), 1000, 100);
  b.max_positions = 4000;
  const int most = (1000 + 100 + 64 + 15) / 16;
  Model model(GetParam(), b, most);
  EXPECT_EQ(model.info().most_slabs, most);
  Random random(8);
  const std::vector<int32_t> tokens = random.tokens(3500, b.vocab);
  Sequence s(model);
  const std::vector<float> found = run(model, s, tokens, 100);
  EXPECT_EQ(static_cast<int>(s.slabs.size()), most);
  model.next_slab = 0;
  EXPECT_EQ(run(model, tokens, 128), found);
  Model ref("ref", b, most);
  EXPECT_LT(normalized_error(found, run(ref, tokens, 128)), 1e-3);
}

void expect_status(int32_t status, const std::string& text, const std::string& isa, Builder b) {
  try {
    const Model model(isa, b, 0);
    ADD_FAILURE() << "expected: " << text;
  } catch (const Failure& e) {
    EXPECT_EQ(e.status, status);
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

TEST_P(H2oOn, APositionRunsOnce) {
  Builder b = keeping(small_llama(), 50, 33);
  Model model(GetParam(), b, 20);
  Random random(7);
  Sequence s(model);
  model.step({{&s, random.tokens(70, b.vocab)}});
  s.position = 69;
  try {
    model.step({{&s, {1}}});
    ADD_FAILURE() << "position 69 ran a second time";
  } catch (const Failure& e) {
    EXPECT_EQ(e.status, MR_INVALID);
    EXPECT_NE(std::string(e.what()).find("is at position 69, expected 0 or 70"), std::string::npos)
        << e.what();
  }
  s.position = 0;
  model.step({{&s, {1, 2}}});
}

TEST_P(H2oOn, BeamsAndCodesAreRefused) {
  Builder b = keeping(small_llama(), 50, 33);
  const std::string isa = GetParam();
  for (const char* kv : {"+int8", "+int4", "+kivi"}) {
    expect_status(MR_UNSUPPORTED, "that keeps 50 heavy tokens, expected", isa + kv, b);
  }
  Model model(isa, b, 60);
  expect_no_beams(model);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(H2oOn);
INSTANTIATE_TEST_SUITE_P(Cpu, H2oOn, testing::ValuesIn(h2o_isas()),
                         [](const auto& info) { return isa_label(info.param); });
INSTANTIATE_TEST_SUITE_P(Ref, H2oOn, testing::Values("ref"),
                         [](const auto& info) { return isa_label(info.param); });

TEST(H2o, BadDescriptionsAreRefused) {
  const auto changed = [](auto&& change) {
    Builder b = keeping(small_llama(), 50, 33);
    for (mr_op& op : b.ops) {
      if (has_heads(op)) change(b, op);
    }
    return b;
  };
  const auto refused = [](const std::string& text, const Builder& b) {
    expect_status(MR_INVALID, text, "ref", b);
  };
  refused("heavy is -1", changed([](Builder&, mr_op& op) { op.attention.heavy = -1; }));
  refused("recent is 0, expected 1", changed([](Builder&, mr_op& op) { op.attention.recent = 0; }));
  refused("with a window of 20", changed([](Builder&, mr_op& op) { op.attention.window = 20; }));
  refused("with ALiBi slopes", changed([](Builder& b, mr_op& op) {
            op.attention.alibi_slopes = b.constant({1, 1, 1, 1, 1, 1});
          }));
  refused("with 2 groups of layers", changed([](Builder& b, mr_op&) { b.kv_groups = 2; }));
  refused("keeps 0 heavy and 0 recent tokens, expected 50 and 33",
          changed([](Builder&, mr_op& op) { op.attention.heavy = op.layer == 1 ? 0 : 50; }));
}

}  // namespace
}  // namespace millrace::test
