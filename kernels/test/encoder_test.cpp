// A whole encoder: types of tokens, attention both ways over one place in the cache, pooling, classes.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harness.hpp"

namespace millrace::test {
namespace {

constexpr int kClasses = 5;

// Two layers with norms after the sums, as BERT has them. All keys are of layer 0 of the cache.
Builder small_encoder(mr_pooling pooling, int types = 2) {
  constexpr int kHidden = 80, kHeads = 2, kForward = 100;
  Random random(11);
  Builder b;
  b.vocab = 97;
  b.kv_heads = kHeads;
  b.head_dim = kHidden / kHeads;
  b.max_positions = 300;
  b.max_rows = 400;
  b.classes = kClasses;
  const int x = b.slot(MR_SLOT_F32, kHidden), qkv = b.slot(MR_SLOT_F32, 3 * kHidden);
  const int heads = b.slot(MR_SLOT_OPERAND, kHidden), forward = b.slot(MR_SLOT_OPERAND, kForward);
  const int pooled = b.slot(MR_SLOT_F32, kHidden), logits = b.slot(MR_SLOT_F32, kClasses);
  const auto matrix = [&](int rows, int cols) {
    return b.part(b.random(random, rows, cols, MR_BF16, 0.12f),
                  b.random(random, rows, 0, MR_F32, 0.1f));
  };
  const auto norm = [&] {
    mr_op& op = b.norm(x, b.random(random, kHidden, 0, MR_F32, 0.1f, 1.0f), x);
    op.norm.kind = MR_NORM_LAYER;
    op.norm.bias = b.random(random, kHidden, 0, MR_F32, 0.1f);
  };
  mr_op& embed = b.embed(b.random(random, b.vocab, kHidden, MR_BF16, 1.0f), x);
  embed.embed.positions = b.random(random, b.max_positions, kHidden, MR_F32, 0.5f);
  embed.embed.types = b.random(random, types, kHidden, MR_F32, 0.5f);
  norm();
  for (int layer = 0; layer < 2; ++layer) {
    b.linear(x, {matrix(kHidden, kHidden), matrix(kHidden, kHidden), matrix(kHidden, kHidden)},
             qkv);
    b.rope_store(0, qkv, kHeads).attention.both_ways = 1;
    b.attention(0, qkv, kHeads, heads).attention.both_ways = 1;
    b.linear(heads, {matrix(kHidden, kHidden)}, x).linear.accumulate = 1;
    norm();
    b.linear(x, {matrix(kForward, kHidden)}, forward).linear.activation = MR_ACT_GELU_ERF;
    b.linear(forward, {matrix(kHidden, kForward)}, x).linear.accumulate = 1;
    norm();
  }
  b.op(MR_OP_SELECT_ROWS, x, pooled).select.pooling = pooling;
  b.linear(pooled, {matrix(kClasses, kHidden)}, logits);
  return b;
}

struct Text {
  std::vector<int32_t> tokens;
  int second = 0;
};

std::vector<Text> texts() {
  Random random(4);
  return {{random.tokens(1, 97)},
          {random.tokens(130, 97), 60},
          {random.tokens(17, 97), 17},
          {random.tokens(200, 97), 1}};
}

// The classes of each text, in one step: by the last row, or another one, of each.
std::vector<float> classes(Model& model, const std::vector<Text>& texts) {
  std::vector<std::unique_ptr<Sequence>> kept;
  std::vector<mr_sequence> sequences;
  std::vector<int32_t> tokens, outputs;
  for (const Text& t : texts) {
    kept.push_back(std::make_unique<Sequence>(model));
    const auto n = static_cast<int32_t>(t.tokens.size());
    kept.back()->reach(n);
    sequences.push_back(
        {kept.back()->region, static_cast<int32_t>(tokens.size()), n, 0, t.second, nullptr});
    tokens.insert(tokens.end(), t.tokens.begin(), t.tokens.end());
    outputs.push_back(static_cast<int32_t>(tokens.size()) - 1 - n / 2);
  }
  std::vector<float> logits(texts.size() * kClasses);
  mr_step step{};
  step.tokens = tokens.data();
  step.sequences = sequences.data();
  step.output_rows = outputs.data();
  step.logits = logits.data();
  step.rows = static_cast<int32_t>(tokens.size());
  step.n_sequences = step.outputs = static_cast<int32_t>(texts.size());
  model.run(step);
  model.next_slab = 0;
  return logits;
}

class EncoderOn : public testing::TestWithParam<std::string> {};

TEST_P(EncoderOn, IsCloseToRefAndTheSameInAnyStep) {
  for (const mr_pooling pooling : {MR_POOL_ROW, MR_POOL_FIRST, MR_POOL_MEAN}) {
    for (const int types : {1, 2}) {
      Builder b = small_encoder(pooling, types);
      Model model(GetParam(), b, 30), ref("ref", b, 30);
      const std::vector<Text> all = texts();
      const std::vector<float> together = classes(model, all);
      EXPECT_LT(normalized_error(together, classes(ref, all)), 2e-4) << pooling;
      std::vector<float> alone;
      for (const Text& t : all) {
        const std::vector<float> one = classes(model, {t});
        alone.insert(alone.end(), one.begin(), one.end());
      }
      EXPECT_EQ(together, alone) << pooling;
    }
  }
}

TEST_P(EncoderOn, TypesAndPoolingCount) {
  std::vector<Text> one = {texts()[1]}, other = one;
  other[0].second = 61;
  std::vector<std::vector<float>> found;
  for (const mr_pooling pooling : {MR_POOL_ROW, MR_POOL_FIRST, MR_POOL_MEAN}) {
    Builder b = small_encoder(pooling), untyped = small_encoder(pooling, 1);
    Model model(GetParam(), b, 30), plain(GetParam(), untyped, 30);
    EXPECT_NE(classes(model, one), classes(model, other));
    EXPECT_EQ(classes(plain, one), classes(plain, other)) << "a table of one row";
    for (const auto& before : found) EXPECT_NE(classes(model, one), before);
    found.push_back(classes(model, one));
  }
}

TEST_P(EncoderOn, RefusesPartsOfATextAndBadTypes) {
  Builder b = small_encoder(MR_POOL_FIRST);
  Model model(GetParam(), b, 30);
  Sequence s(model);
  const std::vector<int32_t> tokens = {1, 2, 3};
  const auto failure = [&](int second) {
    try {
      model.step({{&s, tokens, second}}, 1);
    } catch (const Failure& f) {
      return std::string(f.what());
    }
    return std::string();
  };
  EXPECT_EQ(failure(4), "sequence 0: second is 4, expected 0 to 3");
  EXPECT_EQ(failure(-1), "sequence 0: second is -1, expected 0 to 3");
  EXPECT_EQ(failure(3), "");
  EXPECT_EQ(failure(0),
            "sequence 0: rows from position 3, expected all rows of a text in one step");
}

INSTANTIATE_TEST_SUITE_P(Cpu, EncoderOn, testing::ValuesIn(tested_isas()),
                         [](const auto& info) { return isa_label(info.param); });

}  // namespace
}  // namespace millrace::test
