// Alternating updates and sparse gates: by hand, close to ref, and refused where they are wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "harness.hpp"

namespace millrace::test {
namespace {

// A step whose inputs are rows of tables, by the token; the logits are one of the streams.
struct Updates {
  Builder b;
  mr_op* op;

  Updates(mr_altup_step step, int streams, int width, int active, int stream) {
    Random random(12);
    b.vocab = width;
    const auto input = [&](int n) {
      const int slot = b.slot(MR_SLOT_F32, n);
      b.embed(b.random(random, width, n, MR_BF16, 1.0f), slot);
      return slot;
    };
    const int first = input(width);
    for (int i = 1; i < streams; ++i) input(width);
    const int coefs = input(step == MR_ALTUP_PREDICT ? streams * streams : streams);
    const int x = input(width), out = b.slot(MR_SLOT_F32, width);
    const size_t index = b.ops.size();
    b.op(MR_OP_ALTUP, first, first).altup = {step, streams, active, coefs, x};
    b.select_rows(first + stream, out);
    op = &b.ops[index];
  }
};

std::vector<float> run(const std::string& isa, Builder& b) {
  Model model(isa, b, 8);
  Sequence s(model);
  return model.step({{&s, Random(3).tokens(19, b.vocab)}});
}

TEST(AltUp, EveryStepIsCloseToRef) {
  for (const mr_altup_step step : {MR_ALTUP_PREDICT, MR_ALTUP_CORRECT, MR_ALTUP_MATCH}) {
    for (const int streams : {2, 4, MR_MAX_STREAMS}) {
      for (const int width : {1, 37, 72, 500}) {
        for (int stream = 0; stream < streams; ++stream) {
          Updates u(step, streams, width, streams - 1, stream);
          const std::vector<float> expected = run("ref", u.b);
          for (const std::string& isa : tested_isas()) {
            EXPECT_LT(normalized_error(run(isa, u.b), expected), 1e-11)
                << isa << " step " << step << ", stream " << stream << " of " << streams << " x "
                << width;
          }
        }
      }
    }
  }
}

// Two streams of two elements and one token.
std::vector<float> by_hand(const std::string& isa, const std::vector<float>& coefs, int step,
                           int active, int stream) {
  Builder b;
  b.vocab = 2;
  const auto input = [&](std::vector<float> row) {
    const auto n = static_cast<int>(row.size());
    const int slot = b.slot(MR_SLOT_F32, n);
    row.resize(2 * size_t(n));
    b.embed(b.tensor(row, 2, n, MR_F32), slot);
    return slot;
  };
  const int s = input({3, 4});
  input({1, -1});
  const int c = input(coefs), x = input({10, 20});
  b.op(MR_OP_ALTUP, s, s).altup = {step, 2, active, c, x};
  b.select_rows(s + stream, b.slot(MR_SLOT_F32, 2));
  Model model(isa, b, 1);
  Sequence sequence(model);
  return model.step({{&sequence, {0}}});
}

TEST(AltUp, IsTheFormula) {
  for (const std::string& isa : {std::string("ref"), tested_isas().front()}) {
    const auto expect = [&](const std::vector<float>& coefs, int step, int active, int stream,
                            std::vector<float> expected) {
      const std::vector<float> found = by_hand(isa, coefs, step, active, stream);
      for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << isa;
    };
    // s_0 += 2 s_0 + 5 s_1, s_1 += -s_0 + 4 s_1
    expect({2, 5, -1, 4}, MR_ALTUP_PREDICT, 0, 0, {14, 7});
    expect({2, 5, -1, 4}, MR_ALTUP_PREDICT, 0, 1, {2, -9});
    // s_0 += 3 (x - s_1), s_1 += 0.5 (x - s_1)
    expect({2, -0.5f}, MR_ALTUP_CORRECT, 1, 0, {30, 67});
    expect({2, -0.5f}, MR_ALTUP_CORRECT, 1, 1, {5.5f, 9.5f});
    const float rms = std::sqrt(12.5f);
    expect({0}, MR_ALTUP_MATCH, 0, 0, {3, 4});
    expect({0}, MR_ALTUP_MATCH, 0, 1, {rms, -rms});
  }
}

// in = 1; the gates 0, 0, 0, 4 have mean 1 and deviation sqrt(3).
TEST(Gate, SparseOnesKeepWhatIsFarAboveTheMean) {
  for (const std::string& isa : {std::string("ref"), tested_isas().front()}) {
    Builder b;
    b.vocab = 4;
    const int x = b.slot(MR_SLOT_F32, 4), gates = b.slot(MR_SLOT_F32, 5),
              out = b.slot(MR_SLOT_F32, 4);
    b.embed(b.tensor(std::vector<float>(16, 1), 4, 4, MR_F32), x);
    std::vector<float> rows(20);
    rows[0] = 99;  // before offset
    rows[4] = 4;
    b.embed(b.tensor(rows, 4, 5, MR_F32), gates);
    b.op(MR_OP_GATE, x, out).gate = {gates, 1, MR_GATE_NONE, 0, -1, 0, 0, 1, 0.5f};
    b.select_rows(out, b.slot(MR_SLOT_F32, 4));
    Model model(isa, b, 1);
    Sequence s(model);
    const std::vector<float> found = model.step({{&s, {0}}});
    for (int i = 0; i < 4; ++i)
      EXPECT_NEAR(found[i], i < 3 ? 0 : 3 - 0.5 * std::sqrt(3.0), 1e-6) << isa << " " << i;
  }
}

TEST(Gate, EveryActivationIsCloseToRef) {
  for (const int activation : {MR_GATE_SILU, MR_GATE_SIGMOID, MR_GATE_NONE, MR_GATE_GELU_TANH}) {
    for (const int sparse : {0, 1}) {
      for (const int width : {5, 64, 111}) {
        Builder b;
        Random random(21);
        b.vocab = width;
        const int x = b.slot(MR_SLOT_F32, width), gates = b.slot(MR_SLOT_F32, 2 * width),
                  out = b.slot(MR_SLOT_F32, width);
        b.embed(b.random(random, width, width, MR_BF16, 1.0f), x);
        b.embed(b.random(random, width, 2 * width, MR_BF16, 1.0f), gates);
        b.op(MR_OP_GATE, x, out).gate = {gates, width / 2, activation, 0, -1, 0, 0, sparse, 0.6f};
        b.select_rows(out, b.slot(MR_SLOT_F32, width));
        const std::vector<float> expected = run("ref", b);
        for (const std::string& isa : tested_isas()) {
          EXPECT_LT(normalized_error(run(isa, b), expected), 1e-11)
              << isa << " activation " << activation << ", width " << width;
        }
      }
    }
  }
}

TEST(AltUp, BadOnesAreRefused) {
  struct Bad {
    void (*change)(mr_op&);
    const char* message;
  };
  const Bad bad[] = {
      {[](mr_op& op) { op.altup.step = 3; }, "(ALTUP): step is 3"},
      {[](mr_op& op) { op.altup.streams = 1; }, "streams is 1, expected 2 to 8"},
      {[](mr_op& op) { op.altup.streams = 3; }, "is 2 wide, expected 24"},
      {[](mr_op& op) { op.altup.active = 2; }, "active is 2, expected 0 to 1"},
      {[](mr_op& op) { op.altup.coefs = op.altup.x; }, "coefs slot 3 is 24 wide, expected 2"},
      {[](mr_op& op) { op.altup.x = op.in + 1; }, "x is stream slot 1"},
      {[](mr_op& op) { op.out = op.altup.x; }, "in is slot 0 and out is slot 3, expected one"},
  };
  for (const Bad& x : bad) {
    Updates u(MR_ALTUP_CORRECT, 2, 24, 0, 0);
    x.change(*u.op);
    try {
      Model model("ref", u.b, 0);
      ADD_FAILURE() << "accepted: " << x.message;
    } catch (const Failure& failure) {
      EXPECT_NE(std::string(failure.what()).find(x.message), std::string::npos)
          << failure.what() << ", expected " << x.message;
    }
  }
}

}  // namespace
}  // namespace millrace::test
