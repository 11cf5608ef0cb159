// The logits of a token are the same bits in any batch, in any chunks of its
// prompt and with any number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "harness.hpp"

namespace millrace::test {
namespace {

constexpr int kSlabs = 400;

// Logits of all tokens, fed `chunk` at a time.
std::vector<float> alone(Model& model, const std::vector<int32_t>& tokens, size_t chunk) {
  Sequence s(model);
  std::vector<float> logits;
  for (size_t i = 0; i < tokens.size(); i += chunk) {
    const size_t end = std::min(tokens.size(), i + chunk);
    const auto part = model.step({{&s, {tokens.begin() + i, tokens.begin() + end}}});
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

// Several sequences at once, each step a random number of tokens from each of
// a random choice of them. Returns the logits of each.
std::vector<std::vector<float>> together(Model& model,
                                         const std::vector<std::vector<int32_t>>& prompts,
                                         uint32_t seed) {
  Random random(seed);
  std::deque<Sequence> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) sequences.emplace_back(model);
  std::vector<std::vector<float>> logits(prompts.size());
  for (;;) {
    std::vector<Model::Rows> rows;
    std::vector<size_t> who;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const int left = static_cast<int>(prompts[i].size()) - sequences[i].position;
      if (left == 0 || random.below(3) == 0) continue;
      const int n = std::min(left, random.below(2) == 0 ? 1 : 1 + random.below(24));
      const auto from = prompts[i].begin() + sequences[i].position;
      rows.push_back({&sequences[i], {from, from + n}});
      who.push_back(i);
    }
    const bool done = std::all_of(prompts.begin(), prompts.end(), [&](const auto& p) {
      return sequences[&p - prompts.data()].position == static_cast<int>(p.size());
    });
    if (done) return logits;
    if (rows.empty()) continue;
    const std::vector<float> all = model.step(rows);
    auto from = all.begin();
    for (size_t k = 0; k < who.size(); ++k) {
      const auto end = from + static_cast<int64_t>(rows[k].tokens.size()) * model.vocab;
      logits[who[k]].insert(logits[who[k]].end(), from, end);
      from = end;
    }
  }
}

class Invariance : public testing::TestWithParam<std::string> {};

TEST_P(Invariance, ChunksOfThePromptDoNotMatter) {
  Builder b = small_llama();
  Random random(1);
  const std::vector<int32_t> tokens = random.tokens(120, b.vocab);
  Model model(GetParam(), b, kSlabs);
  const std::vector<float> one_by_one = alone(model, tokens, 1);
  for (const size_t chunk : {2, 3, 7, 16, 33, 111, 120}) {
    EXPECT_EQ(alone(model, tokens, chunk), one_by_one) << "chunks of " << chunk;
  }
}

TEST_P(Invariance, OtherSequencesInTheBatchDoNotMatter) {
  Builder b = small_llama();
  Random random(2);
  std::vector<std::vector<int32_t>> prompts;
  for (const int n : {1, 5, 16, 17, 40, 64, 65, 90}) prompts.push_back(random.tokens(n, b.vocab));
  Model model(GetParam(), b, kSlabs);
  const auto merged = together(model, prompts, 4);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(merged[i], alone(model, prompts[i], 1)) << "prompt " << i;
  }
}

TEST_P(Invariance, OtherSequencesDoNotMatterToQuantizedWeights) {
  for (const Kept& kept : quantized_weights()) {
    Builder b = small_llama();
    b.keep(kept);
    Random random(8);
    std::vector<std::vector<int32_t>> prompts;
    for (const int n : {1, 3, 17, 64, 90}) prompts.push_back(random.tokens(n, b.vocab));
    Model model(GetParam(), b, kSlabs);
    const auto merged = together(model, prompts, 9);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(merged[i], alone(model, prompts[i], 1)) << kept.name() << ", prompt " << i;
    }
  }
}

TEST_P(Invariance, ThreadsDoNotMatter) {
  Builder b = small_llama();
  Random random(3);
  const std::vector<std::vector<int32_t>> prompts = {random.tokens(70, b.vocab),
                                                     random.tokens(31, b.vocab)};
  Model one(GetParam(), b, kSlabs, 1);
  const auto expected = together(one, prompts, 5);
  for (const int threads : {2, 3, 5}) {
    Model model(GetParam(), b, kSlabs, threads);
    EXPECT_EQ(together(model, prompts, 5), expected) << threads << " threads";
  }
}

class LongInvariance : public Invariance {};

// Beyond 1024 tokens the keys of a decode row are divided over the threads.
TEST_P(LongInvariance, LongContextsDoNotMatter) {
  Builder b = small_llama(MR_BF16, 1100);
  b.max_rows = 256;
  b.max_positions = 3000;
  Random random(4);
  const std::vector<int32_t> tokens = random.tokens(2100, b.vocab);
  std::vector<float> expected;
  for (const int threads : {1, 2, 5}) {
    for (const int decoded : {1, 7}) {
      Model model(GetParam(), b, kSlabs, threads);
      Sequence s(model);
      const int prefilled = static_cast<int>(tokens.size()) - decoded;
      for (int i = 0; i < prefilled; i += b.max_rows) {
        const int end = std::min(prefilled, i + b.max_rows);
        model.step({{&s, {tokens.begin() + i, tokens.begin() + end}}}, 0);
      }
      std::vector<float> logits;
      for (int i = prefilled; i < prefilled + decoded; ++i) {
        logits = model.step({{&s, {tokens[i]}}});
      }
      if (expected.empty()) expected = logits;
      EXPECT_EQ(logits, expected) << threads << " threads, " << decoded << " decoded";
    }
  }
}

// The whole program, against the oracle.
TEST_P(Invariance, LogitsAreCloseToRef) {
  for (const mr_dtype dtype : {MR_F32, MR_F16, MR_BF16}) {
    Builder b = small_llama(dtype);
    Random random(6);
    const std::vector<int32_t> tokens = random.tokens(100, b.vocab);
    Model model(GetParam(), b, kSlabs), ref(ref_of(GetParam()), b, kSlabs);
    // Few of a head's codes are ref's neighbors, but those of int4 are far apart.
    const double most = GetParam().ends_with("+int4") ? 3e-3 : 3e-4;
    EXPECT_LT(normalized_error(alone(model, tokens, 50), alone(ref, tokens, 50)), most)
        << "dtype " << dtype;
  }
}

std::vector<std::string> backends() {
  std::vector<std::string> names = tested_isas();
  names.push_back("ref");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Backends, Invariance, testing::ValuesIn(with_kv(backends())),
                         [](const auto& info) { return isa_label(info.param); });

// Ref has one way only, whatever the length.
INSTANTIATE_TEST_SUITE_P(Cpu, LongInvariance, testing::ValuesIn(with_kv(tested_isas())),
                         [](const auto& info) { return isa_label(info.param); });

}  // namespace
}  // namespace millrace::test
