// Bad steps are refused with a message that says what was found and expected,
// and leave the program as it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "harness.hpp"

namespace millrace::test {
namespace {

// Two sequences of 3 and 2 rows at positions 20 and 0, outputs of rows 2 and 4.
struct Step {
  std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  std::vector<mr_sequence> sequences;
  std::vector<int32_t> output_rows = {2, 4};
  std::vector<float> logits;
  mr_step step{};

  void point() {
    step.tokens = tokens.data();
    step.sequences = sequences.data();
    step.output_rows = output_rows.data();
    step.logits = logits.data();
    step.rows = static_cast<int32_t>(tokens.size());
    step.n_sequences = static_cast<int32_t>(sequences.size());
    step.outputs = static_cast<int32_t>(output_rows.size());
  }
};

struct Bad {
  const char* name;
  std::function<void(Step&)> change;
  const char* message;
};

class StepTest : public testing::TestWithParam<std::string> {};

TEST_P(StepTest, BadStepsAreRefused) {
  Builder b = small_llama();
  Model model(GetParam(), b, 40), other(GetParam(), b, 40);
  Sequence a(model), c(model), foreign(other), small(model);
  const mr_backend* backend = model.device.backend;
  mr_error error;
  mr_region* tiny = nullptr;  // of one slab
  check(backend->region_create(model.handle, 1, &tiny, &error), error);
  model.step({{&a, std::vector<int32_t>(20, 7)}}, 0);
  a.reach(40);
  c.reach(16);
  foreign.reach(16);

  const auto make = [&] {
    Step s;
    s.sequences = {{a.region, 0, 3, 20, 0, nullptr}, {c.region, 3, 2, 0, 0, nullptr}};
    s.logits.resize(2 * b.vocab);
    s.point();
    return s;
  };
  const Bad bad[] = {
      {"no rows", [](Step& s) { s.step.rows = 0; }, "0 rows"},
      {"negative rows", [](Step& s) { s.step.rows = -1; }, "-1 rows"},
      {"too many rows", [](Step& s) { s.step.rows = 129; }, "expected 1 to 128"},
      {"no sequence", [](Step& s) { s.step.n_sequences = 0; }, "0 sequences"},
      {"more sequences than rows", [](Step& s) { s.step.n_sequences = 6; }, "6 sequences"},
      {"null tokens", [](Step& s) { s.step.tokens = nullptr; }, "null pointer"},
      {"null sequences", [](Step& s) { s.step.sequences = nullptr; }, "null pointer"},
      {"null outputs", [](Step& s) { s.step.output_rows = nullptr; }, "null pointer"},
      {"null logits", [](Step& s) { s.step.logits = nullptr; }, "null pointer"},
      {"token of no vocabulary", [](Step& s) { s.tokens[3] = 97; },
       "row 3: token 97, expected 0 to 96"},
      {"negative token", [](Step& s) { s.tokens[0] = -1; }, "token -1"},
      {"negative outputs", [](Step& s) { s.step.outputs = -1; }, "-1 outputs"},
      {"more outputs than rows", [](Step& s) { s.step.outputs = 6; }, "6 outputs"},
      {"descending outputs",
       [](Step& s) {
         s.output_rows = {4, 2};
       },
       "ascending"},
      {"an output twice",
       [](Step& s) {
         s.output_rows = {4, 4};
       },
       "ascending"},
      {"an output of no row", [](Step& s) { s.output_rows[1] = 5; }, "output 1 is row 5"},
      {"a gap between sequences", [](Step& s) { s.sequences[1].first_row = 4; }, "from row 3"},
      {"overlapping sequences", [](Step& s) { s.sequences[1].first_row = 2; }, "from row 3"},
      {"an empty sequence", [](Step& s) { s.sequences[0].rows = 0; }, "0 rows"},
      {"rows left over", [](Step& s) { s.sequences[1].rows = 1; }, "end at row 4"},
      {"rows beyond the step", [](Step& s) { s.sequences[1].rows = 3; }, "3 rows"},
      {"rows that overflow", [](Step& s) { s.sequences[0].rows = INT32_MAX; }, "2147483647 rows"},
      {"no region", [](Step& s) { s.sequences[0].region = nullptr; }, "region"},
      {"a region of another program", [&](Step& s) { s.sequences[0].region = foreign.region; },
       "not one of this program"},
      {"a region twice", [&](Step& s) { s.sequences[1] = {a.region, 3, 2, 23, 0, nullptr}; },
       "used twice"},
      {"a negative position", [](Step& s) { s.sequences[0].position = -1; }, "expected 0 to 2047"},
      {"a position beyond the model", [](Step& s) { s.sequences[0].position = 2046; }, "2048"},
      {"a position that overflows", [](Step& s) { s.sequences[0].position = INT32_MAX; },
       "positions 2147483647"},
      {"a position beyond the region",
       [&](Step& s) { s.sequences[0] = {tiny, 0, 3, 14, 0, nullptr}; }, "ends at 15"},
      {"a slab not mapped", [](Step& s) { s.sequences[1].position = 15; }, "place 1"},
      {"an earlier slab not mapped", [&](Step& s) { s.sequences[0] = {tiny, 0, 3, 1, 0, nullptr}; },
       "place 0"},
  };
  for (const Bad& bad_step : bad) {
    SCOPED_TRACE(bad_step.name);
    Step s = make();
    bad_step.change(s);
    EXPECT_EQ(backend->program_run(model.handle, &s.step, &error), MR_INVALID);
    EXPECT_NE(std::string(error.message).find(bad_step.message), std::string::npos)
        << error.message;
  }
  EXPECT_EQ(backend->program_run(model.handle, nullptr, &error), MR_INVALID);
  EXPECT_EQ(backend->program_run(model.handle, nullptr, nullptr), MR_INVALID);
  Step good = make();
  EXPECT_EQ(backend->program_run(model.handle, &good.step, &error), MR_OK) << error.message;
  backend->region_destroy(tiny);
}

// Op by op, with the same result.
TEST_P(StepTest, EveryOpIsTimed) {
  Builder b = small_llama();
  Model model(GetParam(), b, 4);
  Sequence s(model);
  s.reach(16);
  const int32_t token = 1, row = 0;
  const mr_sequence sequence{s.region, 0, 1, 0, 0, nullptr};
  std::vector<float> plain(b.vocab), timed(b.vocab);
  mr_step step{&token, &sequence, &row, plain.data(), nullptr, 1, 1, 1, 0, nullptr, nullptr};
  model.run(step);
  std::vector<mr_op_time> times(b.ops.size(), {UINT64_MAX, -1, 0});
  step.logits = timed.data();
  step.op_times = times.data();
  model.run(step);
  EXPECT_EQ(timed, plain);
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_LT(times[i].nanoseconds, 1000000000u) << "op " << i;
    EXPECT_EQ(times[i].launches, 1) << "op " << i;
  }

  step.outputs = 0;
  model.run(step);
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(times[i].launches,
              b.ops[i].kind == MR_OP_SELECT_ROWS || i + 2 >= times.size() ? 0 : 1)
        << "op " << i;
  }
}

// A prefill chunk whose logits nobody wants.
TEST_P(StepTest, AStepWithoutOutputsStoresItsTokens) {
  Builder b = small_llama();
  Model model(GetParam(), b, 8);
  Sequence whole(model), chunked(model);
  const std::vector<float> expected = model.step({{&whole, {1, 2, 3, 4}}}, 1);
  model.step({{&chunked, {1, 2, 3}}}, 0);
  EXPECT_EQ(model.step({{&chunked, {4}}}, 1), expected);
}

TEST_P(StepTest, OutputRowsAreTheChosenOnes) {
  Builder b = small_llama();
  Model model(GetParam(), b, 8);
  Sequence all(model), some(model);
  const std::vector<int32_t> tokens = {9, 8, 7, 6, 5, 4};
  const std::vector<float> expected = model.step({{&all, tokens}});
  some.reach(6);
  const std::vector<int32_t> rows = {0, 3, 5};
  const mr_sequence sequence{some.region, 0, 6, 0, 0, nullptr};
  std::vector<float> logits(3 * b.vocab);
  model.run({tokens.data(), &sequence, rows.data(), logits.data(), nullptr, 6, 1, 3, 0, nullptr,
             nullptr});
  for (size_t i = 0; i < rows.size(); ++i) {
    const float* got = logits.data() + i * b.vocab;
    const float* want = expected.data() + int64_t{rows[i]} * b.vocab;
    EXPECT_TRUE(std::equal(got, got + b.vocab, want)) << "output " << i;
  }
}

// A row of the last op's weights.
float weight(const Builder& b, int row, int column) {
  const mr_tensor& t = b.tensors[b.ops.back().linear.parts[0].weight];
  const auto* bits = static_cast<const uint16_t*>(t.data);
  return std::bit_cast<float>(uint32_t{bits[row * t.dims[1] + column]} << 16);
}

// Two sequences of which logits are wanted, and one of which hidden states are: all of its rows.
struct Mixed {
  std::vector<float> logits, hidden;  // [2 x vocab], [4 x width]
};

Mixed run_mixed(const std::string& isa, Builder& b) {
  Model model(isa, b, 8);
  Sequence one(model), two(model), three(model);
  for (Sequence* s : {&one, &two, &three}) s->reach(16);
  const std::vector<int32_t> tokens = {9, 8, 7, 6, 5, 4, 3, 2, 1}, rows = {1, 4, 5, 6, 7, 8};
  const mr_sequence sequences[] = {{one.region, 0, 2, 0, 0, nullptr},
                                   {two.region, 2, 3, 0, 0, nullptr},
                                   {three.region, 5, 4, 0, 0, nullptr}};
  Mixed m{std::vector<float>(2 * b.vocab), std::vector<float>(4 * b.slots[b.ops.back().in].width)};
  mr_step step{tokens.data(),   sequences, rows.data(), m.logits.data(), nullptr, 9, 3, 6, 4,
               m.hidden.data(), nullptr};
  model.run(step);
  return m;
}

TEST_P(StepTest, HiddenStatesAreWhatTheLogitsAreMadeOf) {
  Builder b = small_llama();
  const int width = b.slots[b.ops.back().in].width;
  b.max_outputs = 2;
  b.max_hidden = 4;
  const Mixed mixed = run_mixed(GetParam(), b);

  Builder plain = small_llama();
  Model model(GetParam(), plain, 8);
  Sequence one(model), two(model), three(model);
  std::vector<float> expected = model.step({{&one, {9, 8}}}, 1);
  const std::vector<float> second = model.step({{&two, {7, 6, 5}}}, 1);
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(mixed.logits, expected) << "logits of others depend on hidden states in the step";

  const std::vector<float> logits = model.step({{&three, {4, 3, 2, 1}}});
  std::vector<float> products(logits.size());
  for (int r = 0; r < 4; ++r) {
    for (int v = 0; v < b.vocab; ++v) {
      double sum = 0;
      for (int i = 0; i < width; ++i) sum += double{mixed.hidden[r * width + i]} * weight(b, v, i);
      products[r * b.vocab + v] = static_cast<float>(sum);
    }
  }
  EXPECT_LT(normalized_error(products, logits), 1e-8);
}

// Quantized weights of the last op take the rows of the norm before it as codes.
TEST_P(StepTest, HiddenStatesDoNotDependOnHowTheLastWeightsAreKept) {
  Builder b = small_llama(), coded = small_llama();
  b.max_hidden = coded.max_hidden = 4;
  coded.ops.back().linear.weights = MR_WEIGHTS_INT8;
  EXPECT_EQ(run_mixed(GetParam(), coded).hidden, run_mixed(GetParam(), b).hidden);
}

TEST_P(StepTest, BadHiddenOutputsAreRefused) {
  Builder b = small_llama();
  b.max_outputs = 1;
  b.max_hidden = 2;
  Model model(GetParam(), b, 4);
  Sequence s(model);
  s.reach(5);
  const Bad bad[] = {
      {"negative", [](Step& t) { t.step.hidden_outputs = -1; }, "-1 outputs of hidden states"},
      {"more than the program has", [](Step& t) { t.step.hidden_outputs = 3; },
       "3 outputs of hidden states, expected 0 to 2"},
      {"more than outputs", [](Step& t) { t.step.outputs = 1; }, "-1 outputs beside 2"},
      {"too many logits", [](Step& t) { t.step.hidden_outputs = 1; }, "2 outputs beside 1"},
      {"no memory", [](Step& t) { t.step.hidden = nullptr; }, "hidden is a null pointer"},
  };
  std::vector<float> hidden(2 * b.slots[b.ops.back().in].width);
  for (const Bad& bad_step : bad) {
    SCOPED_TRACE(bad_step.name);
    Step t;
    t.sequences = {{s.region, 0, 5, 0, 0, nullptr}};
    t.output_rows = {2, 3, 4};
    t.logits.resize(b.vocab);
    t.point();
    t.step.hidden_outputs = 2;
    t.step.hidden = hidden.data();
    bad_step.change(t);
    try {
      model.run(t.step);
      ADD_FAILURE() << "accepted";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status, MR_INVALID);
      EXPECT_NE(std::string(failure.what()).find(bad_step.message), std::string::npos)
          << failure.what();
    }
  }
}

// The rows may be selected as soon as their keys and values are stored.
Builder selects_early() {
  Builder b = small_llama();
  const auto is = [](int kind) { return [kind](const mr_op& op) { return op.kind == kind; }; };
  const auto select = std::find_if(b.ops.begin(), b.ops.end(), is(MR_OP_SELECT_ROWS));
  const int x = select->in, last = select->out;
  b.ops.erase(select);
  const auto attention = std::find_if(b.ops.rbegin(), b.ops.rend(), is(MR_OP_ATTENTION)).base();
  const int heads = attention[-1].out;
  const int last_heads = b.slot(MR_SLOT_OPERAND, b.slots[heads].width);
  for (auto op = attention; op != b.ops.end(); ++op) {
    for (int32_t* slot : {&op->in, &op->out}) {
      if (*slot == x) *slot = last;
      if (*slot == heads) *slot = last_heads;
    }
  }
  const auto at = attention - b.ops.begin();
  b.select_rows(x, last);
  b.select_rows(heads, last_heads);
  std::rotate(b.ops.begin() + at, b.ops.end() - 2, b.ops.end());
  return b;
}

TEST_P(StepTest, RowsSelectedInTheLastLayerHaveTheSameLogits) {
  Builder late = small_llama(), early = selects_early();
  Model model(GetParam(), late, 8), other(GetParam(), early, 8);
  const std::vector<int32_t> tokens = {9, 8, 7, 6, 5, 4}, rows = {0, 3, 5};
  std::vector<std::vector<float>> logits;
  for (Model* m : {&model, &other}) {
    Sequence s(*m);
    s.reach(8);
    std::vector<float>& got = logits.emplace_back(4 * late.vocab);
    // Three of the six rows, none of the next one, then its successor's.
    const mr_sequence six{s.region, 0, 6, 0, 0, nullptr}, none{s.region, 0, 1, 6, 0, nullptr},
        one{s.region, 0, 1, 7, 0, nullptr};
    const int32_t first = 0;
    m->run({tokens.data(), &six, rows.data(), got.data(), nullptr, 6, 1, 3, 0, nullptr, nullptr});
    m->run({tokens.data(), &none, nullptr, nullptr, nullptr, 1, 1, 0, 0, nullptr, nullptr});
    m->run({tokens.data(), &one, &first, got.data() + 3 * late.vocab, nullptr, 1, 1, 1, 0, nullptr,
            nullptr});
  }
  EXPECT_EQ(logits[0], logits[1]);
}

// What a device that keeps logits says of those of a step: best, and the rows themselves.
struct KeptLogits {
  std::vector<int32_t> best;
  std::vector<float> logits;
};

KeptLogits keep_logits(Model& model, const std::vector<int32_t>& tokens) {
  Sequence s(model);
  s.reach(static_cast<int>(tokens.size()));
  const auto n = static_cast<int32_t>(tokens.size());
  std::vector<int32_t> rows(n);
  for (int i = 0; i < n; ++i) rows[i] = i;
  const mr_sequence sequence{s.region, 0, n, 0, 0, nullptr};
  KeptLogits kept{std::vector<int32_t>(n, -7), std::vector<float>(size_t(n) * model.vocab)};
  mr_step step{tokens.data(), &sequence,       rows.data(), nullptr, nullptr, n, 1, n, 0,
               nullptr,       kept.best.data()};
  model.run(step);
  mr_error error;
  for (int i = n - 1; i >= 0; --i) {
    check(model.device.backend->program_logits(
              model.handle, i, kept.logits.data() + size_t(i) * model.vocab, &error),
          error);
  }
  for (const int row : {-1, n}) {
    EXPECT_EQ(model.device.backend->program_logits(model.handle, row, kept.logits.data(), &error),
              MR_INVALID)
        << row;
  }
  return kept;
}

TEST_P(StepTest, ADeviceThatKeepsLogitsSaysTheLargest) {
  Builder b = small_llama();
  Model model(GetParam(), b, 40);
  const std::vector<int32_t> tokens = {9, 8, 7, 6, 5};
  if (!keeps_logits(model)) {
    try {
      keep_logits(model, tokens);
      ADD_FAILURE() << "accepted";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status, MR_UNSUPPORTED);
    }
    return;
  }
  const KeptLogits kept = keep_logits(model, tokens);
  Sequence s(model);
  EXPECT_EQ(kept.logits, model.step({{&s, tokens}}));
  for (size_t r = 0; r < tokens.size(); ++r) {
    const auto row = kept.logits.begin() + static_cast<int64_t>(r) * b.vocab;
    EXPECT_EQ(kept.best[r], std::max_element(row, row + b.vocab) - row) << r;
  }
}

// Token 0 is embedded as 1, 0, 0, ...: its logits are the first column of the last weights.
TEST_P(StepTest, TheLargestLogitIsTheFirstOfEqualOnes) {
  constexpr int kWidth = 16, kVocab = 1100;
  const float inf = std::numeric_limits<float>::infinity();
  const struct {
    const char* name;
    std::function<float(int)> logit;
    int best;
  } cases[] = {
      {"two are the largest", [](int i) { return i == 700 || i == 30 ? 5.0f : 2.0f; }, 30},
      {"all are negative", [](int i) { return i == 1000 ? -0.5f : -1.0f - i % 3; }, 1000},
      {"zeros of both signs", [](int i) { return i == 64   ? -0.0f
                                                 : i == 65 ? 0.0f
                                                           : -1.0f; }, 64},
      {"one is possible", [&](int i) { return i == 1099 ? -3e38f : -inf; }, 1099},
      {"none is possible", [&](int) { return -inf; }, -1},
      {"an infinity", [&](int i) { return i == 3 ? inf : 0.0f; }, -1},
      {"not a number", [&](int i) { return i == 512 ? std::nanf("") : 9.0f; }, -1},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    Builder b;
    b.vocab = kVocab;
    std::vector<float> table(size_t{kVocab} * kWidth), last(size_t{kVocab} * kWidth);
    table[0] = 1;
    for (int i = 0; i < kVocab; ++i) last[size_t(i) * kWidth] = c.logit(i);
    const int x = b.slot(MR_SLOT_OPERAND, kWidth), y = b.slot(MR_SLOT_OPERAND, kWidth);
    const int logits = b.slot(MR_SLOT_F32, kVocab);
    b.embed(b.tensor(table, kVocab, kWidth, MR_BF16), x);
    b.select_rows(x, y);
    b.linear(y, {b.part(b.tensor(last, kVocab, kWidth, MR_BF16))}, logits);
    Model model(GetParam(), b, 4);
    if (!keeps_logits(model)) return;
    EXPECT_EQ(keep_logits(model, {0}).best, std::vector<int32_t>{c.best});
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, StepTest, testing::Values("ref", tested_isas().front()),
                         [](const auto& info) { return isa_label(info.param); });

}  // namespace
}  // namespace millrace::test
