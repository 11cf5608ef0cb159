// Mixtures of experts: who is chosen, and that rows have the same results whoever else meets their experts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "exec/route.hpp"
#include "harness.hpp"

namespace millrace::test {
namespace {

struct Chosen {
  int expert;
  double weight;
};

void expect_chosen(mr_route rule, const std::vector<float>& logits, const std::vector<float>& bias,
                   const std::vector<Chosen>& expected, const std::vector<float>& factors = {}) {
  rule.experts = static_cast<int>(logits.size());
  rule.top_k = static_cast<int>(expected.size());
  const mr_tensor tensor{bias.data(), MR_F32, 1, {rule.experts, 1}, 0, nullptr};
  const mr_tensor times{factors.data(), MR_F32, 1, {rule.experts, 1}, 0, nullptr};
  const Router router(rule, bias.empty() ? nullptr : &tensor, factors.empty() ? nullptr : &times);
  std::vector<float> room(router.room()), chosen(2 * expected.size());
  router.row(logits.data(), chosen.data(), room.data());
  for (size_t j = 0; j < expected.size(); ++j) {
    EXPECT_EQ(expected[j].expert, chosen[2 * j]) << j;
    EXPECT_NEAR(expected[j].weight, chosen[2 * j + 1], 1e-6) << j;
  }
}

mr_route scored(int scores, bool normalize, float scale = 1) {
  mr_route rule{};
  rule.scores = scores;
  rule.normalize = normalize;
  rule.scale = scale;
  rule.factors = -1;
  return rule;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Router, ChoosesBySoftmax) {
  const double sum = std::exp(1.0) + std::exp(3.0) + std::exp(-2.0) + std::exp(2.0);
  const std::vector<float> logits = {1, 3, -2, 2};
  expect_chosen(scored(MR_ROUTE_SOFTMAX, false), logits, {},
                {{1, std::exp(3.0) / sum}, {3, std::exp(2.0) / sum}});
  const double two = std::exp(3.0) + std::exp(2.0);
  for (const mr_route& rule :
       {scored(MR_ROUTE_SOFTMAX, true), scored(MR_ROUTE_SOFTMAX_CHOSEN, false)}) {
    expect_chosen(rule, logits, {}, {{1, std::exp(3.0) / two}, {3, std::exp(2.0) / two}});
  }
}

// A bias decides who is chosen, and no weight.
TEST(Router, ChoosesByScoresAndBias) {
  const std::vector<float> logits = {1, 3, -2, 2}, bias = {0, -1, 0.9f, 0};
  const double sum = sigmoid(-2) + sigmoid(2);
  expect_chosen(scored(MR_ROUTE_SIGMOID, true, 2.5f), logits, bias,
                {{2, 2.5 * sigmoid(-2) / sum}, {3, 2.5 * sigmoid(2) / sum}});
}

// A factor of an expert counts after the weights are normalized.
TEST(Router, MultipliesWeightsByFactors) {
  const double two = std::exp(3.0) + std::exp(2.0);
  expect_chosen(scored(MR_ROUTE_SOFTMAX, true, 2), {1, 3, -2, 2}, {},
                {{1, 2 * 0.5 * std::exp(3.0) / two}, {3, 2 * 1.5 * std::exp(2.0) / two}},
                {9, 0.5f, 9, 1.5f});
}

// The second group has the best expert, the first and the third the best pairs.
TEST(Router, ChoosesWithinGroups) {
  mr_route rule = scored(MR_ROUTE_SIGMOID, false);
  rule.groups = 3;
  rule.top_groups = 2;
  expect_chosen(rule, {2, 2, 5, -9, 1, 3}, {}, {{5, sigmoid(3)}, {0, sigmoid(2)}, {1, sigmoid(2)}});
}

// The second group has the best expert, and then the third.
TEST(Router, ChoosesWithinGroupsByTheirBest) {
  mr_route rule = scored(MR_ROUTE_SIGMOID, false);
  rule.groups = 3;
  rule.top_groups = 1;
  rule.group_scores = 1;
  expect_chosen(rule, {2, 2, 5, -9, 1, 3}, {}, {{2, sigmoid(5)}, {3, sigmoid(-9)}});
}

// Each choice is weighed among those near it: with a jitter of 0.25, 3 and 2 are near 3, and of
// what is left 2 alone is near 2.
TEST(Router, ChoosesBySparseMixer) {
  mr_route route = scored(MR_ROUTE_SPARSE_MIXER, false);
  route.jitter = 0.25f;
  expect_chosen(route, {0.5f, 3, -2, 2}, {},
                {{1, std::exp(3.0) / (std::exp(3.0) + std::exp(2.0))}, {3, 1}});
  route.jitter = 0.125f;
  expect_chosen(route, {0.5f, 3, -2, 2}, {}, {{1, 1}, {3, 1}});
}

TEST(Router, OfEqualOnesTakesTheFirst) {
  expect_chosen(scored(MR_ROUTE_SOFTMAX, true), {4, 7, 7, 7}, {}, {{1, 0.5}, {2, 0.5}});
}

// Nothing that is computed leads outside of the experts.
TEST(Router, ChoosesExpertsWhateverTheLogitsAre) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits :
       std::vector<std::vector<float>>{{nan, nan, nan}, {inf, -inf, inf}, {1, nan, 3e38f}}) {
    for (const int scores : {MR_ROUTE_SOFTMAX, MR_ROUTE_SIGMOID, MR_ROUTE_SOFTMAX_CHOSEN}) {
      mr_route rule = scored(scores, true);
      rule.experts = 3;
      rule.top_k = 2;
      const Router router(rule, nullptr, nullptr);
      std::vector<float> room(router.room()), chosen(4);
      router.row(logits.data(), chosen.data(), room.data());
      for (const int j : {0, 2}) EXPECT_TRUE(chosen[j] >= 0 && chosen[j] <= 2);
    }
  }
}

struct Mixture {
  int experts = 5, top_k = 2, hidden = 64, mid = 48;
  bool gated = true;
  Kept kept;
  bool weighs_in = false;
};

// The embedding of a token, and its sum with what its experts make of it.
Builder program(const Mixture& m) {
  Builder b;
  Random random(23);
  b.vocab = m.hidden;
  const int table = b.random(random, b.vocab, m.hidden, MR_BF16, 1.0f);
  const int x = b.slot(MR_SLOT_OPERAND, m.hidden), sum = b.slot(MR_SLOT_F32, m.hidden);
  const int logits = b.slot(MR_SLOT_F32, m.experts), chosen = b.slot(MR_SLOT_F32, 2 * m.top_k);
  const int mid = b.slot(MR_SLOT_OPERAND, m.top_k * m.mid);
  b.embed(table, x);
  b.embed(table, sum);
  const auto weight = [&](int rows, int width) {
    return b.part(
        b.random(random, rows, width, MR_BF16, 1.0f / std::sqrt(static_cast<float>(width))));
  };
  b.linear(x, {weight(m.experts, m.hidden)}, logits);
  mr_op& route = b.op(MR_OP_ROUTE, logits, chosen);
  route.route.experts = m.experts;
  route.route.top_k = m.top_k;
  route.route.normalize = 1;
  route.route.scale = 1.5f;
  const auto experts = [&](int in, int out, mr_routed routed, int parts, int rows, int width) {
    std::vector<mr_part> all;
    for (int i = 0; i < m.experts * parts; ++i) all.push_back(weight(rows, width));
    mr_op& op = b.linear(in, {}, out);
    op.linear.routed = routed;
    op.linear.experts = m.experts;
    op.linear.top_k = m.top_k;
    op.linear.route = chosen;
    op.linear.expert_parts = b.parts(std::move(all));
    op.linear.weights = m.kept.weights;
    op.linear.group = m.kept.group;
    op.linear.weighs_in = m.weighs_in;
    return &op;
  };
  mr_op* up = experts(x, mid, MR_ROUTED_EACH, m.gated ? 2 : 1, m.mid, m.hidden);
  up->linear.gated = m.gated;
  up->linear.activation = MR_ACT_SILU;
  experts(mid, sum, MR_ROUTED_SUM, 1, m.hidden, m.mid)->linear.accumulate = 1;
  b.select_rows(sum, b.slot(MR_SLOT_F32, b.vocab));
  return b;
}

// Heads of a row, each of which meets a matrix of its own and keeps its tail.
struct EachHead {
  int heads = 5, width = 64, rows = 40, tail = 0;
  Kept kept;
};

Builder program(const EachHead& h) {
  Builder b;
  Random random(29);
  const int in_width = h.heads * (h.width + h.tail), out_width = h.heads * (h.rows + h.tail);
  b.vocab = out_width;
  const int in = b.slot(h.tail > 0 ? MR_SLOT_F32 : MR_SLOT_OPERAND, in_width);
  const int out = b.slot(MR_SLOT_F32, out_width);
  b.embed(b.random(random, b.vocab, in_width, MR_BF16, 1.0f), in);
  std::vector<mr_part> parts;
  for (int i = 0; i < h.heads; ++i) {
    parts.push_back(b.part(
        b.random(random, h.rows, h.width, MR_BF16, 1.0f / std::sqrt(static_cast<float>(h.width)))));
  }
  mr_op& op = b.linear(in, {}, out);
  op.linear.routed = MR_ROUTED_HEADS;
  op.linear.experts = h.heads;
  op.linear.tail = h.tail;
  op.linear.expert_parts = b.parts(std::move(parts));
  op.linear.weights = h.kept.weights;
  op.linear.group = h.kept.group;
  b.select_rows(out, b.slot(MR_SLOT_F32, out_width));
  return b;
}

std::vector<float> run(const std::string& isa, Builder b, const std::vector<int32_t>& tokens,
                       int threads = 2) {
  Model model(isa, b, 20, threads);
  Sequence s(model);
  return model.step({{&s, tokens}});
}

TEST(Experts, AreCloseToRef) {
  for (const std::string& isa : tested_isas()) {
    for (const Kept& kept : tested_weights()) {
      for (const bool gated : {false, true}) {
        for (const int rows : {1, 3, 40, 128}) {
          Mixture m;
          m.weighs_in = rows == 3 || rows == 40;
          m.kept = kept;
          m.gated = gated;
          const std::vector<int32_t> tokens = Random(3).tokens(rows, m.hidden);
          const double error =
              normalized_error(run(isa, program(m), tokens), run("ref", program(m), tokens));
          // Rows times their weights are rounded before they become codes.
          const bool codes = m.weighs_in && kept.weights != MR_WEIGHTS_16BIT;
          EXPECT_LT(error, codes ? 2e-4 : 5e-5)
              << isa << " " << kept.name() << (gated ? " gated, " : ", ") << rows << " rows";
        }
      }
    }
  }
}

TEST(Experts, HaveTheSameBitsInAnyCompany) {
  for (const std::string& isa : tested_isas()) {
    for (const Kept& kept : tested_weights()) {
      Mixture m{9, 3, 64, 64, true, kept, kept.weights == MR_WEIGHTS_16BIT};
      const std::vector<int32_t> tokens = Random(7).tokens(100, m.hidden);
      const std::vector<float> together = run(isa, program(m), tokens);
      for (int i = 0; i < 100; i += 9) {
        const std::vector<float> alone = run(isa, program(m), {tokens[i]}, 1);
        EXPECT_EQ(0, std::memcmp(alone.data(), &together[i * m.hidden], m.hidden * sizeof(float)))
            << isa << " " << kept.name() << " row " << i;
      }
    }
  }
}

// With the codes that ref has too, and the elements of a tail bit for bit.
TEST(EachHead, IsCloseToRefInAnyCompany) {
  for (const std::string& isa : tested_isas()) {
    for (const Kept& kept : tested_weights()) {
      for (const int tail : {0, 24}) {
        EachHead h;
        h.kept = kept;
        h.tail = tail;
        const int width = program(h).vocab;
        const std::vector<int32_t> tokens = Random(3).tokens(70, width);
        const std::vector<float> together = run(isa, program(h), tokens);
        const std::vector<float> expected = run("ref", program(h), tokens);
        EXPECT_LT(normalized_error(together, expected), 5e-5) << isa << " " << kept.name();
        for (size_t i = 0; i < expected.size(); ++i) {
          if (static_cast<int>(i) % (h.rows + tail) < h.rows) continue;
          ASSERT_EQ(together[i], expected[i]) << isa << " element " << i;
        }
        for (int i = 0; i < 70; i += 23) {
          const std::vector<float> alone = run(isa, program(h), {tokens[i]}, 1);
          EXPECT_EQ(0, std::memcmp(alone.data(), &together[i * width], width * sizeof(float)))
              << isa << " " << kept.name() << " row " << i;
        }
      }
    }
  }
}

TEST(EachHead, BadOnesAreRefused) {
  struct Bad {
    void (*change)(Builder&, mr_op&);
    const char* message;
  };
  const Bad bad[] = {
      {[](Builder&, mr_op& op) { op.linear.experts = 7; }, "expected a multiple of experts, 7"},
      {[](Builder&, mr_op& op) { op.linear.tail = 88; }, "tail is 88, expected 0 to 87"},
      {[](Builder&, mr_op& op) { op.linear.tail = 23; }, "64 wide, expected the width of in, 65"},
      {[](Builder&, mr_op& op) { op.linear.gated = 1; }, "gated is 1"},
      {[](Builder& b, mr_op& op) { b.slots[op.in].type = MR_SLOT_OPERAND; }, "expected 0 (F32)"},
      {[](Builder& b, mr_op& op) { --b.slots[op.out].width; }, "319 wide, expected 320"},
  };
  for (const Bad& x : bad) {
    EachHead h;
    h.tail = 24;
    Builder b = program(h);
    x.change(b, b.ops[1]);
    try {
      Model model("ref", b, 0);
      ADD_FAILURE() << "accepted: " << x.message;
    } catch (const Failure& failure) {
      EXPECT_EQ(MR_INVALID, failure.status);
      EXPECT_NE(std::string(failure.what()).find(x.message), std::string::npos)
          << failure.what() << ", expected " << x.message;
    }
  }
}

TEST(Experts, BadMixturesAreRefused) {
  constexpr int kRoute = 3, kUp = 4, kDown = 5;
  struct Bad {
    void (*change)(Builder&);
    const char* message;
  };
  const Bad bad[] = {
      {[](Builder& b) { b.ops[kRoute].route.top_k = 6; },
       "op 3 (ROUTE): top_k is 6, expected 1 to 5"},
      {[](Builder& b) { b.ops[kRoute].route.experts = 4; }, "in slot 2 is 5 wide, expected 4"},
      {[](Builder& b) { b.ops[kRoute].route.scores = 4; }, "route_scores is 4"},
      {[](Builder& b) {
         b.ops[kRoute].route.groups = 2;
         b.ops[kRoute].route.top_groups = 1;
       },
       "5 experts in 2 groups"},
      {[](Builder& b) { b.ops[kRoute].route.scale = NAN; }, "route_scale is nan"},
      {[](Builder& b) { b.ops[kUp].linear.route = 2; },
       "op 4 (LINEAR): route slot 2 is none of a ROUTE of 5 experts, of which 2 are chosen"},
      {[](Builder& b) { b.ops[kUp].linear.expert_parts = nullptr; },
       "expert_parts is a null pointer"},
      {[](Builder& b) { b.ops[kUp].linear.routed = 4; }, "routed is 4"},
      {[](Builder& b) {
         b.ops[kRoute].route.groups = 5;
         b.ops[kRoute].route.group_scores = 3;
       },
       "route_group_scores is 3"},
      {[](Builder& b) { b.ops[kUp].linear.n_parts = 1; }, "n_parts is 1, expected 0 to 0"},
      {[](Builder& b) { b.ops[kUp].linear.accumulate = 1; }, "accumulates what each expert gives"},
      {[](Builder& b) { b.slots[b.ops[kUp].out].width = 95; }, "is 95 wide, expected 96"},
      {[](Builder& b) {
         b.ops[kDown].linear.routed = MR_ROUTED_EACH;
         b.ops[kDown].linear.accumulate = 0;
       },
       "wide, expected the width of in"},
      {[](Builder& b) { const_cast<mr_part*>(b.ops[kDown].linear.expert_parts)[3].rows = 63; },
       "part 3 has 63 rows, the first one 64"},
      {[](Builder& b) { const_cast<mr_part*>(b.ops[kDown].linear.expert_parts)[2].weight = 99; },
       "is tensor 99"},
  };
  for (const Bad& x : bad) {
    for (const char* backend : {"ref", ""}) {
      Builder b = program(Mixture{});
      x.change(b);
      try {
        Model model(backend, b, 0);
        ADD_FAILURE() << "accepted: " << x.message;
      } catch (const Failure& failure) {
        EXPECT_EQ(MR_INVALID, failure.status);
        EXPECT_NE(std::string(failure.what()).find(x.message), std::string::npos)
            << failure.what() << ", expected " << x.message;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::test
