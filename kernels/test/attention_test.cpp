// Rotary embedding, KV store and attention of the cpu backend against ref.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "attention_case.hpp"

namespace millrace::test {
namespace {

using Case = AttentionCase;

std::vector<float> result(const std::string& isa, const Case& c) {
  Builder b = attention_program(c);
  Model model(isa, b, (c.context + c.rows) / MR_SLAB_TOKENS + 1);
  Sequence s(model);
  Random random(3);
  for (int left = c.context; left > 0;) {
    const int n = std::min(left, b.max_rows);
    model.step({{&s, random.tokens(n, b.vocab)}}, 0);
    left -= n;
  }
  return model.step({{&s, random.tokens(c.rows, b.vocab)}});
}

// Whether codes are multiplied as bytes; others expand them to bf16.
bool multiplies_bytes(const std::string& isa) {
  return isa.starts_with("avx") || isa.starts_with("amx");
}

// The largest normalized error to expect.
double tolerance(const Case& c, const std::string& isa) {
  // Products of bytes round queries and probabilities to 8 bits.
  if (isa.find('+') != std::string::npos) return multiplies_bytes(isa) ? 5e-4 : 2e-5;
  // Table values are bf16: without a rotation nothing is rounded but products.
  const bool exact = c.rotary_dim == 0 && !c.norms && !rounds_products(isa);
  return exact ? 1e-11 : 2e-5;
}

void expect_close(const Case& wanted) {
  const Case c = tested(tested_isas().front(), wanted);
  SCOPED_TRACE(c.text());
  for (const std::string& kv : tested_kv()) {
    const std::vector<float> expected = result("ref" + kv, c);
    for (const std::string& isa : tested_isas()) {
      SCOPED_TRACE(isa + kv);
      EXPECT_LT(normalized_error(result(isa + kv, c), expected), tolerance(c, isa + kv));
    }
  }
}

TEST(Attention, EveryHeadSizeIsCloseToRef) {
  for (const int head_dim : {8, 16, 24, 40, 64, 72, 80, 96, 104, 128, 192, 256}) {
    Case c;
    c.head_dim = head_dim;
    c.context = 21;
    c.rows = 7;
    expect_close(c);
  }
}

TEST(Attention, EveryContextLengthIsCloseToRef) {
  for (const int length : {1, 2, 15, 16, 17, 63, 64, 65, 100, 1000, 1023, 1024, 1025, 1200}) {
    Case c;
    c.heads = 2;
    c.kv_heads = 1;
    c.context = length - 1;
    expect_close(c);
  }
}

TEST(Attention, EveryNumberOfRowsIsCloseToRef) {
  for (const int rows : {1, 2, 3, 7, 16, 33, 111}) {
    for (const int context : {0, 5, 50}) {
      Case c;
      c.rows = rows;
      c.context = context;
      expect_close(c);
    }
  }
}

TEST(Attention, EveryGroupingOfHeadsIsCloseToRef) {
  const int groups[][2] = {{1, 1}, {5, 5}, {6, 1}, {14, 2}, {32, 4}, {71, 1}};
  for (const auto& g : groups) {
    Case c;
    c.heads = g[0];
    c.kv_heads = g[1];
    c.head_dim = 32;
    c.context = 30;
    c.rows = 19;
    expect_close(c);
  }
}

TEST(Attention, WindowsAreCloseToRef) {
  for (const int window : {1, 2, 15, 16, 17, 64, 100, 1500}) {
    for (const int context : {0, 90, 1100}) {
      Case c;
      c.heads = 2;
      c.head_dim = 16;
      c.window = window;
      c.context = context;
      c.rows = 33;
      expect_close(c);
    }
  }
}

TEST(Attention, ChunksAreCloseToRef) {
  for (const int window : {1, 15, 16, 17, 64, 1100}) {
    for (const int context : {0, 90, 1100}) {
      Case c;
      c.heads = 2;
      c.head_dim = 16;
      c.window = window;
      c.chunked = true;
      c.context = context;
      c.rows = 33;
      expect_close(c);
    }
  }
}

TEST(Attention, BothWaysIsCloseToRef) {
  for (const int window : {0, 1, 2, 15, 65, 1500}) {
    for (const int rows : {1, 2, 16, 33, 64, 65, 130, 1100}) {
      Case c;
      c.both_ways = true;
      c.window = window;
      c.heads = window == 15 ? 6 : 2;
      c.head_dim = 40;
      c.rotary_dim = window == 65 ? 40 : 0;
      c.rows = rows;
      if (!tested(tested_isas().front(), c).both_ways) return;
      expect_close(c);
    }
  }
}

TEST(Attention, CapsAndNullScoresAreCloseToRef) {
  for (const int context : {0, 40, 1100}) {
    for (const int what : {1, 2, 3}) {
      Case c;
      c.heads = 6;
      c.head_dim = 40;
      c.window = what == 3 ? 30 : 0;
      if (what != 1) c.null_scores = true;
      if (what != 2) c.softcap = 2;
      c.context = context;
      c.rows = 33;
      expect_close(c);
    }
  }
}

// Factors change after 8 positions, and stay what they are at the end.
TEST(Attention, FactorsOfQueriesAreCloseToRef) {
  Case c;
  c.rotary_dim = 64;
  c.q_scale_tokens = 8;
  c.context = 5;
  c.rows = 33;
  expect_close(c);
}

TEST(Attention, AlibiIsCloseToRef) {
  for (const int heads : {1, 3, 8}) {
    for (const int context : {0, 90, 1050}) {
      Case c;
      c.heads = c.kv_heads = heads;
      c.head_dim = 16;
      c.alibi = true;
      c.context = context;
      c.rows = 17;
      expect_close(c);
    }
  }
}

TEST(Attention, RotaryEmbeddingsAreCloseToRef) {
  for (const bool interleaved : {false, true}) {
    for (const bool norms : {false, true}) {
      for (const int rotary_dim : {2, 16, 30, 64, 80}) {
        Case c;
        c.head_dim = 80;
        c.rotary_dim = rotary_dim;
        c.interleaved = interleaved;
        c.norms = norms;
        c.norm_last = norms && rotary_dim > 30;
        c.rotary_scale = 1.1f;
        c.context = 40;
        c.rows = 3;
        expect_close(c);
      }
    }
  }
}

TEST(Attention, NormedHeadsWithoutRotationAreCloseToRef) {
  Case c;
  c.norms = true;
  c.context = 9;
  c.rows = 9;
  expect_close(c);
}

// A cache of codes must not be one of floats, nor int4 one of int8.
TEST(Attention, CodesAreAsCoarseAsTheirTypeSays) {
  Case c;
  c.context = 50;
  const std::vector<float> exact = result("ref", c);
  for (const std::string& isa : with_kv(tested_isas())) {
    const double error = normalized_error(result(isa, c), exact);
    const bool int8 = isa.ends_with("+int8"), int4 = isa.ends_with("+int4");
    if (!int8 && !int4) continue;
    EXPECT_GT(error, int8 ? 1e-5 : 2e-3) << isa;
    EXPECT_LT(error, int8 ? 1e-3 : 5e-2) << isa;
  }
}

// Every code of keys, values, queries and probabilities the largest: products of bytes are
// exact, and their sums as large as they get.
TEST(Attention, TheLargestCodesAreExact) {
  Case c;
  c.heads = 8;
  c.kv_heads = 1;
  for (const int head_dim : {64, 72}) {
    c.head_dim = head_dim;
    const std::vector<int32_t> tokens(130, 3);
    Builder b = attention_program(c);
    b.max_rows = b.max_outputs = static_cast<int32_t>(tokens.size());
    const int64_t width = b.tensors[0].dims[1];
    std::vector<float> table(b.vocab * width);
    for (size_t i = 0; i < table.size(); ++i) table[i] = i % 4 < 2 ? 1.0f : -1.0f;
    b.tensors[0].dtype = MR_F32;
    b.tensors[0].data = table.data();
    for (const std::string& kv : tested_kv()) {
      std::vector<float> expected;
      std::vector<std::string> isas = tested_isas();
      isas.insert(isas.begin(), "ref");
      for (const std::string& isa : isas) {
        Model model(isa + kv, b, 9);
        Sequence s(model);
        const std::vector<float> out = model.step({{&s, tokens}});
        if (expected.empty()) expected = out;
        const double most = kv.empty() || multiplies_bytes(isa) ? 1e-11 : 2e-5;
        EXPECT_LT(normalized_error(out, expected), most) << isa << kv << ", head " << head_dim;
      }
    }
  }
}

class AttentionOn : public testing::TestWithParam<std::string> {};

// Attention as floats, before any rounding could hide a difference.
TEST_P(AttentionOn, ChunksDoNotMatter) {
  constexpr int kTokens = 200;
  for (const int window : {0, 30, 50, 100}) {
    for (const int heads : {2, 6}) {
      Case c;
      c.heads = heads;
      c.head_dim = 40;
      c.rotary_dim = 40;
      c.window = window;
      c.alibi = window == 100;
      c.chunked = window == 30;
      c.null_scores = window == 50;
      c.softcap = window == 50 ? 2 : 0;
      c.q_scale_tokens = window == 50 ? 16 : 0;
      c = tested(GetParam(), c);
      Builder b = attention_program(c);
      b.max_rows = b.max_outputs = kTokens;
      Random random(5);
      const std::vector<int32_t> tokens = random.tokens(kTokens, b.vocab);
      Model model(GetParam(), b, 4 * (kTokens / MR_SLAB_TOKENS + 1));
      std::vector<float> expected;
      for (const int chunk : {1, 7, 33, kTokens}) {
        Sequence s(model);
        std::vector<float> all;
        for (int i = 0; i < kTokens; i += chunk) {
          const int end = std::min(kTokens, i + chunk);
          const std::vector<float> out =
              model.step({{&s, {tokens.begin() + i, tokens.begin() + end}}});
          all.insert(all.end(), out.begin(), out.end());
        }
        if (chunk == 1) expected = all;
        EXPECT_EQ(all, expected) << c.text() << ", chunks of " << chunk;
      }
    }
  }
}

// The last row sees what it sees without both ways, the others what a last row would that has their
// query; and what other texts a step has changes nothing.
TEST_P(AttentionOn, BothWaysDoesNotDependOnTheStep) {
  for (const int window : {0, 40}) {
    Case c;
    c.head_dim = 40;
    c.window = window;
    c.rows = 400;
    Builder causal = attention_program(c);
    causal.max_rows = causal.max_outputs = c.rows;
    c.both_ways = true;
    if (!tested(GetParam(), c).both_ways) return;
    Builder b = attention_program(c);
    Model model(GetParam(), b, 100), before(GetParam(), causal, 100);
    Random random(5);
    const int lengths[] = {130, 1, 17, 200};
    std::vector<std::vector<int32_t>> texts;
    std::vector<float> alone;
    for (const int length : lengths) {
      texts.push_back(random.tokens(length, b.vocab));
      Sequence s(model), plain(before);
      const std::vector<float> out = model.step({{&s, texts.back()}});
      const std::vector<float> last = before.step({{&plain, texts.back()}}, 1);
      EXPECT_TRUE(std::equal(last.begin(), last.end(), out.end() - b.vocab)) << c.text();
      alone.insert(alone.end(), out.begin(), out.end());
    }
    Sequence s0(model), s1(model), s2(model), s3(model);
    EXPECT_EQ(model.step({{&s0, texts[0]}, {&s1, texts[1]}, {&s2, texts[2]}, {&s3, texts[3]}}),
              alone)
        << c.text();
    // Keys have no positions here: a text in the opposite order has the same rows in that order, but
    // for the order of the sums.
    Sequence turned(model);
    std::vector<int32_t> back(texts[0].rbegin(), texts[0].rend());
    std::vector<float> out = model.step({{&turned, back}}), rows;
    for (int r = lengths[0] - 1; r >= 0; --r) {
      rows.insert(rows.end(), out.begin() + int64_t{r} * b.vocab,
                  out.begin() + int64_t{r + 1} * b.vocab);
    }
    alone.resize(rows.size());
    EXPECT_LT(normalized_error(rows, alone), 1e-3) << c.text();
  }
}

// The memory after the last token in its slab may hold anything.
TEST_P(AttentionOn, LeftoversOfAnotherSequenceCountNothing) {
  Case c;
  c.heads = c.kv_heads = 1;
  c.head_dim = 16;
  Builder b = attention_program(c);
  const int64_t width = b.tensors[0].dims[1];
  std::vector<float> table(b.vocab * width, 0.25f);
  std::fill_n(table.begin(), width, NAN);  // token 0: a QKV that is no number
  b.tensors[0].dtype = MR_F32;
  b.tensors[0].data = table.data();
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};

  Model clean(GetParam(), b, 1);
  Sequence alone(clean);
  const std::vector<float> expected = clean.step({{&alone, tokens}});

  Model dirty(GetParam(), b, 1);
  {
    Sequence before(dirty);
    dirty.step({{&before, std::vector<int32_t>(MR_SLAB_TOKENS, 0)}}, 0);
  }
  dirty.next_slab = 0;
  Sequence after(dirty);
  EXPECT_EQ(dirty.step({{&after, tokens}}), expected);
}

INSTANTIATE_TEST_SUITE_P(Cpu, AttentionOn, testing::ValuesIn(with_kv(tested_isas())),
                         [](const auto& info) { return isa_label(info.param); });

}  // namespace
}  // namespace millrace::test
