// Ops with a state: close to ref, and the same bits in any steps.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "harness.hpp"

namespace millrace::test {
namespace {

struct Layer {
  int rule = MR_RECUR_DELTA;
  int heads = 4, key_heads = 2, keys = 24, values = 40, kernel = 4;
  bool first = false;       // gates before the norm
  bool plain = false;       // a sigmoid gate without a norm
  bool short_conv = false;  // a convolution between gates in place of a recurrence
  float rate_scale = 1;
  bool other_rates = false;  // in a slot of their own
};

constexpr int kConv = 1, kRecur = 2, kGate = 3;

// A token's rows are random, as they are from a checkpoint's projections; the logits are the result.
Builder program(const Layer& l) {
  Builder b;
  Random random(41);
  const int keys = l.key_heads * l.keys, values = l.heads * l.values;
  const int channels = l.short_conv ? values : 2 * keys + values;
  const bool scan = l.rule == MR_RECUR_SCAN;
  const int decays = l.heads * (scan ? l.values : l.rule == MR_RECUR_CHANNELS ? l.keys : 1);
  const int width = (l.short_conv ? 3 * values : channels) + values + decays + l.heads + 2 * l.keys;
  b.vocab = values;
  const int x = b.slot(MR_SLOT_F32, width), mixed = b.slot(MR_SLOT_F32, channels);
  const int state = b.slot(MR_SLOT_F32, values), out = b.slot(MR_SLOT_F32, values);
  b.embed(b.random(random, b.vocab, width, MR_BF16, 1.0f), x);
  mr_op& conv = b.op(MR_OP_CONV, x, mixed);
  conv.conv = {b.random(random, channels, l.kernel, MR_F32, 0.5f),
               b.random(random, channels, 0, MR_BF16, 0.1f),
               channels,
               l.kernel,
               0,
               l.short_conv ? values : -1,
               l.short_conv ? 2 * values : -1,
               l.short_conv ? MR_ACT_NONE : MR_ACT_SILU};
  const int z = l.short_conv ? 3 * values : channels;
  if (!l.short_conv) {
    int rates = x, rate = z + values + decays;
    if (l.other_rates) {
      rates = b.slot(MR_SLOT_F32, l.heads + 1), rate = 1;
      b.embed(b.random(random, b.vocab, l.heads + 1, MR_BF16, 1.0f), rates);
    }
    mr_op& recur = b.op(MR_OP_RECUR, mixed, state);
    recur.recur = {l.rule,
                   l.heads,
                   l.key_heads,
                   l.keys,
                   l.values,
                   0,
                   keys,
                   2 * keys,
                   x,
                   z + values,
                   rates,
                   rate,
                   b.random(random, scan ? decays : l.heads, scan ? l.keys : 0, MR_F32, 0.5f),
                   b.random(random, decays, 0, MR_F32, 0.5f),
                   b.random(random, scan ? decays : l.heads, 0, MR_F32, 0.5f),
                   0,
                   INFINITY,
                   l.rate_scale};
    if (scan) recur.recur.q = z + values + decays, recur.recur.k = z + values + decays + l.keys;
  }
  mr_op& gate = b.op(MR_OP_GATE, l.short_conv ? mixed : state, out);
  gate.gate = {x,
               z,
               l.plain ? MR_GATE_SIGMOID : MR_GATE_SILU,
               l.plain ? 0 : l.values,
               l.plain ? -1 : b.random(random, l.first ? values : l.values, 0, MR_F32, 0.2f, 1.0f),
               l.first,
               1e-6f,
               0,
               0};
  b.select_rows(out, b.slot(MR_SLOT_F32, values));
  return b;
}

std::vector<Layer> layers() {
  return {
      {},
      {MR_RECUR_SSM, 4, 1, 16, 24, 4, true},
      {MR_RECUR_SSM, 3, 3, 7, 5, 2, true},
      {MR_RECUR_DELTA, 2, 2, 128, 128, 4, false, true},
      {MR_RECUR_DELTA, 3, 1, 64, 64, 3},
      {MR_RECUR_DELTA, 4, 2, 24, 40, 3, false, true, true},
      {MR_RECUR_DELTA, 1, 1, 8, 72, 6, true, false, true},
      {MR_RECUR_DELTA, 4, 2, 24, 40, 4, false, false, false, 2.0f},
      {MR_RECUR_CHANNELS, 4, 2, 24, 40, 4},
      {MR_RECUR_CHANNELS, 2, 2, 128, 128, 4, false, false, false, 1.0f, true},
      {MR_RECUR_CHANNELS, 3, 1, 7, 5, 2, false, true, false, 0.5f, true},
      {MR_RECUR_SCAN, 2, 1, 16, 48, 4, false, true},
      {MR_RECUR_SCAN, 3, 1, 5, 7, 2, true},
      {MR_RECUR_RETENTION, 4, 4, 24, 40, 4, false},
      {MR_RECUR_RETENTION, 3, 1, 7, 5, 2, false, true},
  };
}

std::vector<float> run(Model& model, const std::vector<int32_t>& tokens, size_t chunk) {
  Sequence s(model);
  std::vector<float> logits;
  for (size_t i = 0; i < tokens.size(); i += chunk) {
    const size_t end = std::min(tokens.size(), i + chunk);
    const auto part = model.step({{&s, {tokens.begin() + i, tokens.begin() + end}}});
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

TEST(States, AreCloseToRef) {
  for (const std::string& isa : tested_isas()) {
    for (const Layer& layer : layers()) {
      Builder b = program(layer), same = program(layer);
      const std::vector<int32_t> tokens = Random(5).tokens(120, b.vocab);
      Model model(isa, b, 400), ref("ref", same, 400);
      EXPECT_LT(normalized_error(run(model, tokens, 120), run(ref, tokens, 120)), 1e-9)
          << isa << " " << layer.keys << " x " << layer.values;
    }
  }
}

TEST(States, DoNotDependOnTheSteps) {
  for (const std::string& isa : tested_isas()) {
    for (const Layer& layer : layers()) {
      Builder b = program(layer);
      const std::vector<int32_t> tokens = Random(6).tokens(70, b.vocab);
      Model model(isa, b, 400);
      const std::vector<float> one_by_one = run(model, tokens, 1);
      for (const size_t chunk : {2, 16, 17, 70}) {
        EXPECT_EQ(run(model, tokens, chunk), one_by_one) << isa << " chunks of " << chunk;
      }
    }
  }
}

TEST(States, DoNotDependOnOtherSequences) {
  for (const std::string& isa : tested_isas()) {
    Builder b = program({});
    Model model(isa, b, 400);
    const std::vector<int32_t> tokens = Random(7).tokens(40, b.vocab),
                               others = Random(8).tokens(90, b.vocab);
    const std::vector<float> alone = run(model, tokens, 40);
    Sequence s(model), other(model);
    std::vector<float> together;
    for (int i = 0; i < 40; i += 8) {
      const auto logits = model.step({{&other, {others.begin() + i, others.begin() + i + 5}},
                                      {&s, {tokens.begin() + i, tokens.begin() + i + 8}}});
      together.insert(together.end(), logits.begin() + 5 * b.vocab, logits.end());
    }
    EXPECT_EQ(alone, together) << isa;
  }
}

// What a sequence keeps is in the head slabs: copied, it continues elsewhere.
TEST(States, ContinueFromCopiedSlabs) {
  for (const std::string& isa : tested_isas()) {
    Builder b = program({});
    Model model(isa, b, 400);
    const std::vector<int32_t> tokens = Random(9).tokens(48, b.vocab);
    const std::vector<float> whole = run(model, tokens, 48);
    Sequence first(model), second(model);
    model.step({{&first, {tokens.begin(), tokens.begin() + 32}}});
    second.reach(48);
    ASSERT_GT(second.head, 0);
    mr_error error{};
    for (size_t i = 0; i < first.slabs.size(); ++i) {
      check(model.device.backend->slab_copy(model.handle, first.slabs[i], second.slabs[i],
                                            MR_SLAB_TOKENS, &error),
            error);
    }
    model.step({{&first, {tokens.begin() + 32, tokens.end()}}});
    second.position = 32;
    const std::vector<float> rest = model.step({{&second, {tokens.begin() + 32, tokens.end()}}});
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + 32 * b.vocab)) << isa;
  }
}

TEST(States, BadOnesAreRefused) {
  struct Bad {
    void (*change)(Builder&);
    const char* message;
  };
  const Bad bad[] = {
      {[](Builder& b) { b.ops[kConv].conv.kernel = 1; },
       "op 1 (CONV): kernel is 1, expected 2 to 16"},
      {[](Builder& b) { b.ops[kConv].conv.channels = 255; },
       "bias (tensor 2) is [256], expected [255]"},
      {[](Builder& b) { b.ops[kConv].conv.offset = 400; }, "offset is 400"},
      {[](Builder& b) { b.ops[kConv].conv.gate = 300; }, "gate is 300: 256 columns from there"},
      {[](Builder& b) { b.ops[kConv].conv.activation = MR_ACT_RELU; }, "activation is 4"},
      {[](Builder& b) { b.ops[kConv].conv.weight = 0; }, "weight (tensor 0) is [160, 472]"},
      {[](Builder& b) { b.ops[kRecur].recur.rule = 5; }, "op 2 (RECUR): rule is 5"},
      {[](Builder& b) { b.ops[kRecur].recur.key_heads = 3; }, "4 heads over 3 key heads"},
      {[](Builder& b) { b.ops[kRecur].recur.v = 97; }, "v is 97: 160 columns from there"},
      {[](Builder& b) { b.ops[kRecur].recur.gates = 2; }, "gates slot 2 is read before any op"},
      {[](Builder& b) { b.ops[kRecur].recur.rates = 2; }, "rates slot 2 is read before any op"},
      {[](Builder& b) { b.ops[kRecur].recur.rate_scale = NAN; }, "rate_scale is"},
      {[](Builder& b) { b.ops[kRecur].recur.rule = MR_RECUR_CHANNELS; }, "decay is"},
      {[](Builder& b) { b.ops[kRecur].recur.rule = MR_RECUR_SCAN; }, "a scan of 2 key heads"},
      {[](Builder& b) { b.ops[kRecur].recur.a_log = 0; }, "rank 2, expected 1"},
      {[](Builder& b) { b.ops[kRecur].recur.keys = 0; }, "keys is 0"},
      {[](Builder& b) { b.ops[kGate].gate.group = 33; }, "in is 160 wide, expected groups of 33"},
      {[](Builder& b) { b.ops[kGate].gate.offset = 320; }, "offset is 320: 160 columns"},
      {[](Builder& b) { b.ops[kGate].gate.eps = -1; }, "eps is -1"},
      {[](Builder& b) { b.ops[kGate].gate.activation = 4; }, "gate activation is 4"},
      {[](Builder& b) { b.kv_groups = 2; }, "several groups"},
  };
  for (const Bad& x : bad) {
    for (const char* backend : {"ref", ""}) {
      Builder b = program({});
      x.change(b);
      try {
        Model model(backend, b, 0);
        ADD_FAILURE() << "accepted: " << x.message;
      } catch (const Failure& failure) {
        EXPECT_NE(std::string(failure.what()).find(x.message), std::string::npos)
            << failure.what() << ", expected " << x.message;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::test
