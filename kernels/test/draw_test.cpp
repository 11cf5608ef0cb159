// Tokens that a device draws from the logits that it keeps, beside the rules written down plainly.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "harness.hpp"

namespace millrace::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// weigh of compute/sample/weights.go.
uint64_t weigh(float distance) {
  const float x = distance * 1.44269504088896340735992468100f;
  if (!(x < 45 - 0x1p-18f)) return 0;
  const auto k = static_cast<int>(x);
  const float f = x - static_cast<float>(k);
  float p = f * 0x1.e2025cp-14f;
  p = f * (-0x1.529848p-10f + p);
  p = f * (0x1.3a79c4p-7f + p);
  p = f * (-0x1.c6a652p-5f + p);
  p = f * (0x1.ebfba8p-3f + p);
  p = f * (-0x1.62e43p-1f + p);
  return static_cast<uint64_t>(static_cast<int32_t>((1 + p) * 0x1p30f)) << 14 >> k;
}

uint64_t part(uint64_t sum, uint64_t share) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(sum) * share >> 64);
}

int drawn(std::vector<float> logits, const mr_draw& d, const uint32_t* mask) {
  const auto n = static_cast<int>(logits.size());
  for (int i = 0; i < n; ++i) {
    if (mask != nullptr && (mask[i / 32] >> i % 32 & 1) == 0) logits[i] = -kInfinity;
  }
  for (const float x : logits) {
    if (std::isnan(x) || x == kInfinity) return -1;
  }
  const auto best = static_cast<int>(std::ranges::max_element(logits) - logits.begin());
  if (logits[best] == -kInfinity) return -1;
  if (d.per_nat == 0) return best;
  std::vector<float> key(n);
  std::vector<uint64_t> weight(n);
  for (int i = 0; i < n; ++i) {
    key[i] = (logits[best] - logits[i]) * d.per_nat;
    weight[i] = weigh(key[i]);
  }
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  if (d.top_k > 0 && d.top_k < n) {
    std::ranges::stable_sort(order, std::greater(), [&](int i) { return logits[i]; });
    const float least = logits[order[d.top_k - 1]];
    for (int i = 0; i < n; ++i) weight[i] = logits[i] < least ? 0 : weight[i];
  }
  if (d.top_p > 0) {
    std::ranges::sort(order);
    std::ranges::stable_sort(order, std::less(), [&](int i) { return key[i]; });
    const uint64_t total = std::accumulate(weight.begin(), weight.end(), uint64_t{0});
    const uint64_t want = part(total, d.top_p);
    uint64_t sum = 0;
    bool reached = false;
    for (const int i : order) {
      if (reached) {
        weight[i] = 0;
      } else {
        sum += weight[i];
        reached = sum >= want;
      }
    }
  }
  for (uint64_t& w : weight) w = w < d.least ? 0 : w;
  const uint64_t target =
      part(std::accumulate(weight.begin(), weight.end(), uint64_t{0}), d.random);
  uint64_t sum = 0;
  for (int i = 0; i < n; ++i) {
    if ((sum += weight[i]) > target) return i;
  }
  return -1;
}

// A model whose row of token t has the logits of column t of the last weights. Two more columns add small parts to them, so
// that logits differ in all bits of a float32.
struct Drawn {
  static constexpr int kWidth = 16, kRows = 4;

  Drawn(const std::string& isa, int vocab, const std::function<float(int, int)>& logit) {
    b.vocab = vocab;
    std::vector<float> table(size_t(vocab) * kWidth), last(size_t(vocab) * kWidth);
    for (int t = 0; t < std::min(kRows, vocab); ++t) {
      table[size_t(t) * kWidth + t] = 1;
      table[size_t(t) * kWidth + 8] = 0x1p-8f;
      table[size_t(t) * kWidth + 9] = 0x1p-16f;
    }
    std::mt19937 random(5);
    for (int i = 0; i < vocab; ++i) {
      for (int t = 0; t < kRows; ++t) last[size_t(i) * kWidth + t] = logit(t, i);
      const bool finite = std::isfinite(logit(0, i));
      for (int fine = 8; fine < 10; ++fine) {
        last[size_t(i) * kWidth + fine] = finite ? static_cast<float>(random() % 128) / 64 : 0;
      }
    }
    const int x = b.slot(MR_SLOT_OPERAND, kWidth), y = b.slot(MR_SLOT_OPERAND, kWidth);
    const int logits = b.slot(MR_SLOT_F32, vocab);
    b.embed(b.tensor(table, vocab, kWidth, MR_BF16), x);
    b.select_rows(x, y);
    b.linear(y, {b.part(b.tensor(last, vocab, kWidth, MR_BF16))}, logits);
    model = std::make_unique<Model>(isa, b, 4);
  }

  // Runs a step of all rows, and reads its logits.
  std::vector<std::vector<float>> step() {
    Sequence s(*model);
    const int rows = std::min(kRows, b.vocab);
    s.reach(rows);
    std::vector<int32_t> tokens(rows), best(rows);
    std::iota(tokens.begin(), tokens.end(), 0);
    const mr_sequence sequence{s.region, 0, rows, 0, 0, nullptr};
    model->run({tokens.data(), &sequence, tokens.data(), nullptr, nullptr, rows, 1, rows, 0,
                nullptr, best.data()});
    std::vector<std::vector<float>> logits(rows, std::vector<float>(b.vocab));
    mr_error error;
    for (int r = 0; r < rows; ++r) {
      check(model->device.backend->program_logits(model->handle, r, logits[r].data(), &error),
            error);
    }
    return logits;
  }

  int32_t draw(const std::vector<mr_draw>& draws, const std::vector<uint32_t>& masks, int n_masks,
               std::vector<int32_t>& tokens, mr_error& error) const {
    tokens.assign(draws.size(), -7);
    return model->device.backend->program_draw(model->handle, draws.data(),
                                               static_cast<int32_t>(draws.size()), masks.data(),
                                               n_masks, tokens.data(), &error);
  }

  Builder b;
  std::unique_ptr<Model> model;
};

class DrawTest : public testing::TestWithParam<std::string> {};

// The fraction of 2^64.
uint64_t fraction(double x) { return static_cast<uint64_t>(x * 0x1p64); }

mr_draw any_draw(std::mt19937_64& random, int rows, int vocab, int masks) {
  const auto chance = [&](int n) { return random() % n == 0; };
  const auto uniform = [&] { return static_cast<double>(random() >> 12) * 0x1p-52; };
  mr_draw d{};
  d.row = static_cast<int32_t>(random() % rows);
  d.per_nat = chance(8) ? 0 : static_cast<float>(1 / (0.05 + 1.9 * uniform()));
  d.top_k = chance(2) ? 0 : 1 + static_cast<int32_t>(random() % (chance(2) ? 60 : vocab + 2));
  d.top_p = chance(2) ? 0 : fraction(chance(5) ? 0x1p-70 : uniform());
  d.least = chance(2) ? 0 : static_cast<uint64_t>(0.2 * uniform() * 0x1p44);
  d.mask = static_cast<int32_t>(random() % (masks + 2)) - 2;
  if (d.mask < 0) d.mask = -1;
  d.random = chance(10) ? 0 : chance(10) ? ~uint64_t{0} : random();
  return d;
}

TEST_P(DrawTest, TokensAreThoseOfTheRules) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  for (const int vocab : {1, 2, 33, 255, 257, 1100, 9001}) {
    Drawn m(GetParam(), vocab, [&](int row, int) {
      return std::round(8 * static_cast<float>(1 + row) * normal(random)) / 8;
    });
    if (!keeps_logits(*m.model)) GTEST_SKIP() << "the logits are the caller's";
    const std::vector<std::vector<float>> logits = m.step();
    const int rows = static_cast<int>(logits.size()), words = (vocab + 31) / 32, n_masks = 2;
    std::vector<uint32_t> masks(size_t(n_masks) * words);
    for (uint32_t& word : masks) word = static_cast<uint32_t>(random() & random());
    masks[0] |= 1;  // something is possible
    int unsaid = 0;
    for (int n = 0; n < 60; ++n) {
      std::vector<mr_draw> draws(1 + random() % rows);
      for (mr_draw& d : draws) d = any_draw(random, rows, vocab, n_masks);
      std::vector<int32_t> tokens;
      mr_error error;
      check(m.draw(draws, masks, n_masks, tokens, error), error);
      for (size_t i = 0; i < draws.size(); ++i) {
        const mr_draw& d = draws[i];
        const uint32_t* mask = d.mask < 0 ? nullptr : masks.data() + size_t(d.mask) * words;
        const int want = drawn(logits[d.row], d, mask);
        if (tokens[i] < 0 && want >= 0) ++unsaid;
        ASSERT_TRUE(tokens[i] == want || tokens[i] == -1)
            << "vocabulary " << vocab << ", step " << n << ", draw " << i << ": " << tokens[i]
            << ", expected " << want << "; row " << d.row << ", top_k " << d.top_k << ", per_nat "
            << d.per_nat << ", mask " << d.mask << ", top_p " << d.top_p << ", least " << d.least
            << ", random " << d.random;
      }
    }
    EXPECT_LE(unsaid, 1) << "draws left to the caller, of a vocabulary of " << vocab;
  }
}

// More equal logits than are sorted at the border.
TEST_P(DrawTest, ManyEqualLogitsAreLeftToTheCaller) {
  constexpr int kVocab = 1500;
  Drawn m(GetParam(), kVocab, [](int, int) { return 1.0f; });
  if (!keeps_logits(*m.model)) GTEST_SKIP() << "the logits are the caller's";
  const std::vector<std::vector<float>> logits = m.step();
  std::vector<int32_t> tokens;
  mr_error error;
  const uint64_t half = uint64_t{1} << 63;
  check(m.draw(
            {{0, 0, 1, -1, half, 0, half}, {1, 10, 0.001f, -1, 0, 0, half}, {2, 0, 1, -1, 0, 0, 0}},
            {}, 0, tokens, error),
        error);
  const int want = drawn(logits[0], {0, 0, 1, -1, half, 0, half}, nullptr);
  EXPECT_TRUE(tokens[0] == want || tokens[0] == -1) << tokens[0] << ", expected " << want;
  EXPECT_EQ(tokens[1], -1);
  EXPECT_EQ(tokens[2], 0);
}

TEST_P(DrawTest, RowsWithoutATokenAndBadDraws) {
  Drawn m(GetParam(), 300, [](int row, int i) {
    return row == 0 && i == 299 ? std::nanf("") : row == 1 && i == 3 ? kInfinity : -1.0f;
  });
  const std::vector<uint32_t> masks(10);
  std::vector<int32_t> tokens;
  mr_error error;
  if (!keeps_logits(*m.model)) {
    EXPECT_EQ(m.draw({{0, 0, 1, -1, 0, 0, 0}}, masks, 1, tokens, error), MR_INVALID);
    return;
  }
  EXPECT_EQ(m.draw({{0, 0, 1, -1, 0, 0, 0}}, masks, 1, tokens, error), MR_INVALID)
      << "before a step";
  m.step();
  check(m.draw({{0, 0, 1, -1, 0, 0, 5}, {1, 7, 1, -1, 0, 0, 5}, {2, 0, 1, 0, 0, 0, 5}}, masks, 1,
               tokens, error),
        error);
  EXPECT_EQ(tokens, (std::vector<int32_t>{-1, -1, -1}));
  const struct {
    const char* name;
    mr_draw draw;
    const char* message;
  } bad[] = {
      {"a row too many", {4, 0, 1, -1, 0, 0, 0}, "row 4 of the logits, the last step has kept 4"},
      {"a row before the first", {-1, 0, 1, -1, 0, 0, 0}, "row -1"},
      {"a mask too many", {0, 0, 1, 1, 0, 0, 0}, "mask 1 of 1"},
      {"no temperature", {0, 0, std::nanf(""), -1, 0, 0, 0}, "per_nat nan"},
      {"an infinite one", {0, 0, kInfinity, -1, 0, 0, 0}, "per_nat inf"},
      {"top_k below 0", {0, -1, 1, -1, 0, 0, 0}, "top_k -1"},
  };
  for (const auto& c : bad) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(m.draw({c.draw}, masks, 1, tokens, error), MR_INVALID);
    EXPECT_NE(std::string(error.message).find(c.message), std::string::npos) << error.message;
  }
  const std::vector<mr_draw> many(5000, {0, 0, 1, -1, 0, 0, 0});
  EXPECT_EQ(m.draw(many, masks, 1, tokens, error), MR_INVALID);
  check(m.draw({}, masks, 1, tokens, error), error);
}

// Sequences that decode, in steps of some of them each: `joins` says from which step on each one is there.
class Decoding {
 public:
  explicit Decoding(Model& model) : model_(model) {
    for (size_t i = 0; i < kJoins.size(); ++i) {
      sequences_.push_back(std::make_unique<Sequence>(model));
      sequences_.back()->reach(64);
      tokens_.push_back({static_cast<int32_t>(3 + i), 11, static_cast<int32_t>(20 * i)});
    }
  }

  static constexpr int kSteps = 9;

  struct Batch {
    std::vector<size_t> who;
    std::vector<int32_t> tokens, output_rows;
    std::vector<mr_sequence> sequences;
    std::vector<mr_draw> draws;
    std::vector<int32_t> best;

    mr_step step() {
      best.resize(who.size());
      return {tokens.data(),
              sequences.data(),
              output_rows.data(),
              nullptr,
              nullptr,
              static_cast<int32_t>(tokens.size()),
              static_cast<int32_t>(sequences.size()),
              static_cast<int32_t>(output_rows.size()),
              0,
              nullptr,
              best.data()};
    }
  };

  // The rows of a step, whose last tokens may be `last`'s outputs.
  Batch batch(int step, const Batch* last) {
    Batch b;
    for (size_t i = 0; i < kJoins.size(); ++i) {
      if (step < kJoins[i] || step >= kLeaves[i]) continue;
      Sequence& s = *sequences_[i];
      const auto row = static_cast<int32_t>(b.tokens.size());
      if (last != nullptr && step > kJoins[i]) {
        const auto from = std::ranges::find(last->who, i) - last->who.begin();
        b.tokens.push_back(-1 - static_cast<int32_t>(from));
      } else {
        b.tokens.insert(b.tokens.end(), tokens_[i].begin() + s.position, tokens_[i].end());
      }
      const int rows = static_cast<int>(b.tokens.size()) - row;
      b.sequences.push_back({s.region, row, rows, s.position, 0, nullptr});
      s.position += rows;
      b.output_rows.push_back(row + rows - 1);
      // Every other step takes the largest logit of some rows, and each third one of all.
      const bool greedy = step % 3 == 0 || (step % 2 == 0 && i == 1);
      b.draws.push_back({static_cast<int32_t>(b.who.size()), 0, greedy ? 0.0f : 0.9f, -1,
                         i == 2 ? fraction(0.9) : 0, 0,
                         (uint64_t{0x9E3779B97F4A7C15} * (step * 7 + i + 1))});
      b.who.push_back(i);
    }
    return b;
  }

  void accept(const Batch& b, const std::vector<int32_t>& drawn) {
    for (size_t i = 0; i < drawn.size(); ++i) tokens_[b.who[i]].push_back(drawn[i]);
  }
  const std::vector<std::vector<int32_t>>& tokens() const { return tokens_; }

  // The logits after the last token of a sequence, which shows all keys and values before it.
  std::vector<float> logits(size_t i) {
    return model_.step({{sequences_[i].get(), {tokens_[i].back()}}}, 1);
  }

 private:
  static constexpr std::array kJoins = {0, 2, 0, 3}, kLeaves = {kSteps, kSteps, 5, kSteps};

  Model& model_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<std::vector<int32_t>> tokens_;
};

// Tokens that stay on the device between two steps are those that come to the caller and go back.
TEST_P(DrawTest, StepsInTheAirDrawTheTokensOfStepsOneByOne) {
  Builder b = small_llama();
  Model model(GetParam(), b, 40);
  if (!keeps_logits(model)) GTEST_SKIP() << "the logits are the caller's";
  const mr_backend* backend = model.device.backend;
  mr_error error;
  Decoding one(model), air(model);
  for (int n = 0; n < Decoding::kSteps; ++n) {
    Decoding::Batch batch = one.batch(n, nullptr);
    model.run(batch.step());
    std::vector<int32_t> tokens(batch.who.size());
    check(
        backend->program_draw(model.handle, batch.draws.data(), static_cast<int32_t>(tokens.size()),
                              nullptr, 0, tokens.data(), &error),
        error);
    one.accept(batch, tokens);
  }
  std::vector<Decoding::Batch> batches;
  batches.reserve(Decoding::kSteps);
  const auto land = [&](Decoding::Batch& batch) {
    std::vector<int32_t> tokens(batch.who.size());
    check(backend->program_drawn(model.handle, tokens.data(), static_cast<int32_t>(tokens.size()),
                                 &error),
          error);
    air.accept(batch, tokens);
  };
  for (int n = 0; n < Decoding::kSteps; ++n) {
    Decoding::Batch& batch = batches.emplace_back(air.batch(n, n > 0 ? &batches[n - 1] : nullptr));
    const mr_step step = batch.step();
    check(backend->program_start(model.handle, &step, n % 3 == 0 ? nullptr : batch.draws.data(),
                                 &error),
          error);
    if (n > 0) land(batches[n - 1]);
  }
  land(batches.back());
  EXPECT_EQ(air.tokens(), one.tokens());
  for (const size_t i : {0, 1, 3}) EXPECT_EQ(air.logits(i), one.logits(i)) << "sequence " << i;
}

TEST_P(DrawTest, BadStepsInTheAirAreRefused) {
  Builder b = small_llama();
  Model model(GetParam(), b, 40);
  const mr_backend* backend = model.device.backend;
  mr_error error;
  Sequence s(model);
  s.reach(16);
  std::vector<int32_t> tokens = {1, 2}, rows = {1};
  std::vector<float> logits(b.vocab);
  mr_sequence sequence{s.region, 0, 2, 0, 0, nullptr};
  mr_step step{tokens.data(), &sequence, rows.data(), nullptr, nullptr, 2, 1, 1, 0,
               nullptr,       nullptr};
  const auto start = [&](const mr_draw* draws = nullptr) {
    return backend->program_start(model.handle, &step, draws, &error);
  };
  int32_t token = -9;
  if (!keeps_logits(model)) {
    EXPECT_EQ(start(), MR_UNSUPPORTED);
    EXPECT_EQ(backend->program_drawn(model.handle, &token, 1, &error), MR_INVALID);
    return;
  }
  const auto refused = [&](int32_t status, const char* message) {
    EXPECT_EQ(status, MR_INVALID);
    EXPECT_NE(std::string(error.message).find(message), std::string::npos) << error.message;
  };
  refused(backend->program_drawn(model.handle, &token, 1, &error),
          "1 tokens of a step that was started, expected 0");
  tokens[0] = -1;
  refused(start(), "token -1, expected 0");  // there is no step before it
  tokens[0] = 1;
  mr_draw draw{1, 0, 1, -1, 0, 0, 0};
  refused(start(&draw), "row 1 of the logits");
  draw = {0, 0, 1, 0, 0, 0, 0};
  refused(start(&draw), "mask 0 of 0");
  step.hidden_outputs = 1;
  refused(start(), "1 of hidden states");
  step.hidden_outputs = 0;
  check(start(), error);
  refused(backend->program_run(model.handle, &step, &error), "started and is not drawn");
  tokens[0] = -2;
  refused(start(), "token -2, expected -1");
  tokens[0] = -1;
  check(start(), error);  // the refused one left everything as it was
  check(backend->program_drawn(model.handle, &token, 1, &error), error);
  EXPECT_GE(token, 0);
  check(backend->program_drawn(model.handle, &token, 1, &error), error);
  tokens[0] = token;
  check(start(), error);
  check(start(), error);
  refused(start(), "2 steps are started");
  refused(backend->program_drawn(model.handle, &token, 0, &error), "0 tokens");
  check(backend->program_drawn(model.handle, &token, 1, &error), error);
  int32_t second = -9;
  check(backend->program_drawn(model.handle, &second, 1, &error), error);
  EXPECT_EQ(second, token) << "the same step";
  step.outputs = 0;
  check(start(), error);
  check(backend->program_drawn(model.handle, nullptr, 0, &error), error);
  step.outputs = 1;
  step.logits = logits.data();
  check(backend->program_run(model.handle, &step, &error), error);
}

INSTANTIATE_TEST_SUITE_P(Backends, DrawTest, testing::Values("ref", tested_isas().front()),
                         [](const auto& info) { return isa_label(info.param); });

}  // namespace
}  // namespace millrace::test
