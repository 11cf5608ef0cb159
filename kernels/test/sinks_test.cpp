// Sinks: attention to the first keys and a window, at positions inside these keys
// (StreamingLLM, arXiv:2309.17453).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lossy_case.hpp"

namespace millrace::test {
namespace {

AttentionCase small_case() {
  AttentionCase c;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_dim = 16;
  c.rotary_dim = 16;
  c.sinks = 4;
  c.window = 20;
  return c;
}

std::vector<float> results(const std::string& isa, const AttentionCase& c, int chunk) {
  Builder b = attention_program(c);
  const int tokens = c.context + c.rows;
  Model model(isa, b, tokens / MR_SLAB_TOKENS + 1);
  Sequence s(model);
  Random random(3);
  const std::vector<int32_t> all = random.tokens(tokens, b.vocab);
  std::vector<float> out;
  for (int first = 0; first < tokens;) {
    const int end =
        std::min(tokens, first < c.context ? std::min(c.context, first + chunk) : first + chunk);
    out = model.step({{&s, {all.begin() + first, all.begin() + end}}}, first < c.context ? 0 : -1);
    first = end;
  }
  return out;
}

// What the paper's figure 4 says: the cache is a list of keys that are not rotated. After each
// token what is neither a sink nor among the last `window` is dropped. Then keys and the query are
// rotated by their places in the list. Returns the result of the last token.
std::vector<double> paper(const AttentionCase& c, const std::vector<float>& table,
                          const std::vector<int32_t>& tokens) {
  const int d = c.head_dim, width = (c.heads + 2 * c.kv_heads) * d;
  std::vector<int32_t> cache;
  for (const int32_t token : tokens) {
    cache.push_back(token);
    if (static_cast<int>(cache.size()) > c.sinks + c.window) cache.erase(cache.begin() + c.sinks);
  }
  const int n = static_cast<int>(cache.size());
  std::vector<double> out;
  for (int h = 0; h < c.heads; ++h) {
    const int kv = h / (c.heads / c.kv_heads);
    const auto q = at_position(table.data() + int64_t{cache.back()} * width + h * d, d, n - 1);
    std::vector<double> weights(n);
    double total = 0;
    for (int j = 0; j < n; ++j) {
      const float* key = table.data() + int64_t{cache[j]} * width + (c.heads + kv) * d;
      const auto k = at_position(key, d, j);
      double score = 0;
      for (int i = 0; i < d; ++i) score += q[i] * k[i];
      total += weights[j] = std::exp(score / std::sqrt(d));
    }
    for (int i = 0; i < d; ++i) {
      double sum = 0;
      for (int j = 0; j < n; ++j) {
        const int64_t value = int64_t{cache[j]} * width + (c.heads + c.kv_heads + kv) * d + i;
        sum += weights[j] * table[value];
      }
      out.push_back(sum / total);
    }
  }
  return out;
}

TEST(Sinks, RefIsThePapersCacheThatRotatesKeysByTheirPlace) {
  for (const int sinks : {1, 4, 16}) {
    for (const int window : {1, 5, 20, 64}) {
      AttentionCase c = small_case();
      c.sinks = sinks;
      c.window = window;
      Builder b = attention_program(c);
      const int64_t width = b.tensors[0].dims[1];
      Random random(9);
      std::vector<float> table(b.vocab * width);
      for (float& x : table) x = random.normal();
      b.tensors[0].dtype = MR_F32;
      b.tensors[0].data = table.data();
      Model model("ref", b, 8);
      Sequence s(model);
      const std::vector<int32_t> tokens = random.tokens(120, b.vocab);
      const std::vector<float> out = model.step({{&s, tokens}});
      for (size_t t = 0; t < tokens.size(); ++t) {
        const auto expected = paper(c, table, {tokens.begin(), tokens.begin() + t + 1});
        for (int i = 0; i < b.vocab; ++i) {
          ASSERT_NEAR(out[t * b.vocab + i], expected[i], 2e-5)
              << "sinks " << sinks << ", window " << window << ", token " << t;
        }
      }
    }
  }
}

TEST(Sinks, EveryBackendIsCloseToRef) {
  for (const std::string& kv : tested_kv()) {
    for (const int window : {1, 16, 100, 1500}) {
      for (const int context : {0, 3, 90, 1100}) {
        for (const int rows : {1, 33}) {
          AttentionCase c = small_case();
          c.heads = 6;
          c.kv_heads = 2;
          c.head_dim = 40;
          c.rotary_dim = window == 16 ? 30 : 40;
          c.norms = window == 100;
          c.interleaved = window == 16;
          c.sinks = rows == 1 ? 4 : 16;
          c.window = window;
          c.context = context;
          c.rows = rows;
          const std::vector<float> expected = results("ref" + kv, c, 128);
          for (const std::string& isa : tested_isas()) {
            SCOPED_TRACE(isa + kv + ", " + c.text());
            const double most = kv.empty() ? 2e-5 : 5e-4;
            EXPECT_LT(normalized_error(results(isa + kv, c, 128), expected), most);
          }
        }
      }
    }
  }
}

class SinksOn : public testing::TestWithParam<std::string> {};

// In chunks, one after the other, among others and with a region whose middle is gone.
TEST_P(SinksOn, ARowHasTheSameBitsHoweverItIsComputed) {
  Builder b = small_llama_with_sinks();
  Random random(4);
  const std::vector<int32_t> tokens = random.tokens(120, b.vocab);
  Model model(GetParam(), b, 100);
  std::vector<float> expected;
  for (const int chunk : {1, 7, 50, 120}) {
    Sequence s(model), other(model);
    std::vector<float> all;
    for (int i = 0; i < 120; i += chunk) {
      const int end = std::min(120, i + chunk);
      std::vector<Model::Rows> rows = {{&s, {tokens.begin() + i, tokens.begin() + end}}};
      if (chunk == 7) rows.insert(rows.begin(), {&other, random.tokens(3, b.vocab)});
      const auto out = model.step(rows);
      all.insert(all.end(), out.end() - (end - i) * b.vocab, out.end());
    }
    if (chunk == 1) expected = all;
    EXPECT_EQ(all, expected) << "chunks of " << chunk;
  }

  Sequence s(model);
  std::vector<float> all;
  mr_error error;
  for (int i = 0, gone = 1; i < 120; ++i) {
    // The slabs between the sinks' and the window's.
    for (; (gone + 1) * MR_SLAB_TOKENS <= i - 36; ++gone) {
      check(model.device.backend->region_unmap(s.region, gone, 1, &error), error);
    }
    const auto out = model.step({{&s, {tokens[i]}}});
    all.insert(all.end(), out.begin(), out.end());
  }
  EXPECT_EQ(all, expected);
  check(model.device.backend->region_unmap(s.region, 0, 1, &error), error);
  EXPECT_THROW(model.step({{&s, {1}}}), Failure) << "without the sinks' slab";
}

TEST_P(SinksOn, WithoutMoreTokensThanTheCacheTheBitsOfSinksAreThoseOfAnyWindow) {
  Random random(5);
  Builder b = small_llama_with_sinks(4, 37), wide = small_llama_with_sinks(4, 80);
  const std::vector<int32_t> tokens = random.tokens(41, b.vocab);
  std::vector<std::vector<float>> all;
  for (Builder* builder : {&b, &wide}) {
    Model model(GetParam(), *builder, 8);
    Sequence s(model);
    all.push_back(model.step({{&s, tokens}}));
  }
  EXPECT_EQ(all[0], all[1]);
}

INSTANTIATE_TEST_SUITE_P(All, SinksOn, testing::ValuesIn(with_kv(tested_isas())),
                         [](const auto& info) { return isa_label(info.param); });

void expect_refused(Builder& b, const std::string& text) {
  try {
    const Model model("ref", b, 0);
    ADD_FAILURE() << "expected: " << text;
  } catch (const Failure& e) {
    EXPECT_EQ(e.status, MR_INVALID);
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

TEST(Sinks, BadDescriptionsAreRefused) {
  const auto changed = [](auto&& change) {
    Builder b = attention_program(small_case());
    for (mr_op& op : b.ops) {
      if (has_heads(op)) change(b, op);
    }
    return b;
  };
  Builder many = changed([](Builder&, mr_op& op) { op.attention.sinks = 17; });
  expect_refused(many, "sinks is 17, expected 0 to 16");
  Builder endless = changed([](Builder&, mr_op& op) { op.attention.window = 0; });
  expect_refused(endless, "has 4 sinks without a window");
  Builder still = changed([](Builder&, mr_op& op) { op.attention.rotary_dim = 0; });
  expect_refused(still, "has 4 sinks without a rotary embedding");
  Builder nowhere = changed([](Builder&, mr_op& op) { op.attention.sink_q = 99; });
  expect_refused(nowhere, "sink_q is 99");
  Builder same = changed([](Builder&, mr_op& op) { op.attention.sink_q = op.in; });
  expect_refused(same, "sink_q slot");
  Builder groups = changed([](Builder& b, mr_op&) { b.kv_groups = 2; });
  expect_refused(groups, "has 4 sinks and 2 groups of layers, expected one");
}

}  // namespace
}  // namespace millrace::test
