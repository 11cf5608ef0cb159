// What the tests of caches share that lose keys and values, or some of their bits.
#ifndef MILLRACE_TEST_LOSSY_CASE_HPP
#define MILLRACE_TEST_LOSSY_CASE_HPP

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "attention_case.hpp"

namespace millrace::test {

// The instruction sets, each with a suffix for the KV cache, whose backend takes the program. What
// is left out is printed.
inline std::vector<std::string> isas_for(const Builder& builder, const std::string& suffix = "") {
  std::vector<std::string> all;
  for (const std::string& isa : tested_isas()) {
    Builder b = builder;
    try {
      const Model model(isa + suffix, b, 0);
      all.push_back(isa + suffix);
    } catch (const Failure& e) {
      if (e.status != MR_UNSUPPORTED) throw;
      std::fprintf(stderr, "NOT TESTED: %s\n", e.what());
    }
  }
  return all;
}

// The logits of all tokens, computed `chunk` tokens a step.
inline std::vector<float> run(Model& model, Sequence& s, const std::vector<int32_t>& tokens,
                              int chunk) {
  std::vector<float> all;
  for (size_t i = 0; i < tokens.size(); i += chunk) {
    const size_t end = std::min(tokens.size(), i + chunk);
    const auto out = model.step({{&s, {tokens.begin() + i, tokens.begin() + end}}});
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

inline std::vector<float> run(Model& model, const std::vector<int32_t>& tokens, int chunk) {
  Sequence s(model);
  return run(model, s, tokens, chunk);
}

// A row has the same bits in any chunks, and beside others with one thread. n: tokens, a multiple
// of 20.
inline void expect_same_bits(const std::string& isa, Builder b, int n, int slabs,
                             const std::vector<int>& chunks) {
  b.max_rows = b.max_outputs = n;
  Random random(4);
  const std::vector<int32_t> tokens = random.tokens(n, b.vocab);
  Model model(isa, b, slabs);
  const std::vector<float> expected = run(model, tokens, 1);
  for (const int chunk : chunks) {
    model.next_slab = 0;
    EXPECT_EQ(run(model, tokens, chunk), expected) << "chunks of " << chunk;
  }
  Model alone(isa, b, slabs, 1);
  Sequence s(alone), other(alone);
  std::vector<float> all;
  for (int i = 0; i < n; i += 20) {
    const auto out = alone.step(
        {{&other, random.tokens(11, b.vocab)}, {&s, {tokens.begin() + i, tokens.begin() + i + 20}}},
        20);
    all.insert(all.end(), out.begin(), out.end());
  }
  EXPECT_EQ(all, expected);
}

inline void expect_no_beams(Model& model) {
  Sequence prompt(model), response(model);
  Random random(7);
  model.step({{&prompt, random.tokens(20, model.vocab)}});
  response.reach(1);
  const int32_t token = 1;
  const mr_beams beams{&response.region, nullptr, 20, 0};
  const mr_sequence sequence{prompt.region, 0, 1, 20, 0, &beams};
  mr_step step{};
  step.rows = 1;
  step.tokens = &token;
  step.sequences = &sequence;
  step.n_sequences = 1;
  try {
    model.run(step);
    ADD_FAILURE() << "beams were accepted";
  } catch (const Failure& e) {
    EXPECT_EQ(e.status, MR_UNSUPPORTED) << e.what();
  }
}

// Rotates pairs (i, i + d/2) of a head to a position.
inline std::vector<double> at_position(const float* head, int d, int position) {
  std::vector<double> y(d);
  for (int i = 0; i < d / 2; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / d);
    y[i] = head[i] * std::cos(angle) - head[i + d / 2] * std::sin(angle);
    y[i + d / 2] = head[i + d / 2] * std::cos(angle) + head[i] * std::sin(angle);
  }
  return y;
}

}  // namespace millrace::test

#endif
