// Beam rows over the segment KV cache: the bits of plain sequences with the same
// past, in any company; bad ones are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "harness.hpp"

namespace millrace::test {
namespace {

using Tokens = std::vector<int32_t>;

// The beams of one request: a prefilled prompt, a region per beam, and what the
// rows' pasts are.
struct Beams {
  Beams(Model& model, const Tokens& prompt, int width)
      : prompt_tokens(static_cast<int32_t>(prompt.size())), prompt(model), pasts(width, prompt) {
    for (size_t at = 0; at < prompt.size(); at += 37) {
      const auto end = prompt.begin() + std::min(prompt.size(), at + 37);
      model.step({{&this->prompt, {prompt.begin() + at, end}}}, 0);
    }
    for (int i = 0; i < width; ++i) {
      responses.emplace_back(model);
      regions.push_back(responses.back().region);
    }
  }

  int width() const { return static_cast<int>(regions.size()); }

  // The rows' next tokens, and the sequence that says so.
  mr_sequence next(Random& random, int vocab, int first_row, Tokens& tokens) {
    for (int r = 0; r < width(); ++r) {
      tokens.push_back(random.below(vocab));
      pasts[r].push_back(tokens.back());
      responses[r].reach(steps + 1);
    }
    beams = {regions.data(), index.data(), prompt_tokens, 0};
    return {prompt.region, first_row, width(), prompt_tokens + steps, 0, &beams};
  }

  // Each row continues from a row of the step that has run.
  void fork(Random& random) {
    Tokens forked;
    std::vector<Tokens> past(width());
    // Now and then one row is everybody's parent, as when beams agree.
    const int only = random.below(9) == 0 ? random.below(width()) : -1;
    for (int r = 0; r < width(); ++r) {
      const int parent = only >= 0 ? only : random.below(width());
      const auto from = index.begin() + int64_t{parent} * steps;
      forked.insert(forked.end(), from, from + steps);
      forked.push_back(parent);
      past[r] = pasts[parent];
    }
    index = forked;
    pasts = past;
    ++steps;
  }

  int32_t prompt_tokens;
  Sequence prompt;
  std::deque<Sequence> responses;
  std::vector<mr_region*> regions;
  Tokens index;  // [width][steps]
  int steps = 0;
  std::vector<Tokens> pasts;
  mr_beams beams{};
};

std::vector<float> run(Model& model, const std::vector<mr_sequence>& sequences,
                       const Tokens& tokens) {
  std::vector<int32_t> rows(tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
  std::vector<float> logits(tokens.size() * model.vocab);
  mr_step step{};
  step.tokens = tokens.data();
  step.sequences = sequences.data();
  step.output_rows = rows.data();
  step.logits = logits.data();
  step.rows = step.outputs = static_cast<int32_t>(tokens.size());
  step.n_sequences = static_cast<int32_t>(sequences.size());
  model.run(step);
  return logits;
}

std::vector<float> rows(const Model& model, const std::vector<float>& logits, int first, int n) {
  const auto begin = logits.begin() + int64_t{first} * model.vocab;
  return {begin, begin + int64_t{n} * model.vocab};
}

// Logits of the last token of a plain sequence.
std::vector<float> plain(Model& model, const Tokens& tokens) {
  const int slab = model.next_slab;
  Sequence s(model);
  std::vector<float> logits;
  for (size_t at = 0; at < tokens.size(); at += 128) {
    const auto end = tokens.begin() + std::min(tokens.size(), at + 128);
    logits = model.step({{&s, {tokens.begin() + at, end}}}, 1);
  }
  model.next_slab = slab;
  return logits;
}

class BeamTest : public testing::TestWithParam<std::string> {
 protected:
  // `at`: the steps whose rows are compared with plain sequences.
  void expect_plain_bits(Builder& b, int prompt, int width, const std::vector<int>& at) {
    SCOPED_TRACE(std::to_string(width) + " beams after " + std::to_string(prompt));
    Model model(GetParam(), b, 800);
    Random random(prompt + width);
    Beams beams(model, random.tokens(prompt, b.vocab), width);
    for (int step = 0; step <= at.back(); ++step) {
      Tokens tokens;
      const mr_sequence sequence = beams.next(random, b.vocab, 0, tokens);
      const std::vector<float> logits = run(model, {sequence}, tokens);
      if (std::find(at.begin(), at.end(), step) != at.end()) {
        for (int r = 0; r < width; ++r) {
          ASSERT_EQ(rows(model, logits, r, 1), plain(model, beams.pasts[r]))
              << "row " << r << " of step " << step;
        }
      }
      beams.fork(random);
    }
  }
};

TEST_P(BeamTest, RowsHaveTheBitsOfPlainSequences) {
  Builder b = small_llama();  // layer 1 has a window of 50
  for (const int prompt : {1, 15, 16, 17, 64, 100}) {
    for (const int width : {1, 4, 7}) expect_plain_bits(b, prompt, width, {0, 15, 16, 83});
  }
}

// Some of them in the responses.
TEST_P(BeamTest, SinksHaveTheBitsOfPlainSequences) {
  for (const int sinks : {4, 16}) {
    Builder b = small_llama_with_sinks(sinks, 37);
    for (const int prompt : {1, 15, 70}) expect_plain_bits(b, prompt, 3, {0, 2, 14, 60});
  }
}

class BeamPiecesTest : public BeamTest {};

TEST_P(BeamPiecesTest, RowsHaveTheBitsOfPlainSequences) {
  Builder b = small_llama();
  for (const int prompt : {1000, 1031}) expect_plain_bits(b, prompt, 3, {0, 24, 65});
}

TEST_P(BeamTest, AlibiAndManyQueriesHaveTheBitsOfPlainSequences) {
  Builder b = small_llama();
  std::vector<float> slopes;
  for (int h = 0; h < 6; ++h) slopes.push_back(0.3f / static_cast<float>(h + 1));
  for (mr_op& op : b.ops) {
    if (op.kind == MR_OP_ATTENTION) op.attention.alibi_slopes = b.constant(slopes);
  }
  expect_plain_bits(b, 90, 33, {0, 20});  // more queries than a tile has
}

TEST_P(BeamTest, RowsDoNotDependOnTheirCompany) {
  Builder b = small_llama();
  Model alone(GetParam(), b, 200), crowded(GetParam(), b, 400);
  Random random(5), same(6), again(6);
  const Tokens prompt = random.tokens(70, b.vocab);
  Beams one(alone, prompt, 4), other(crowded, random.tokens(33, b.vocab), 3),
      two(crowded, prompt, 4);
  Sequence chunk(crowded);
  for (int step = 0; step < 45; ++step) {
    Tokens tokens, all;
    const mr_sequence sequence = one.next(same, b.vocab, 0, tokens);
    const std::vector<float> expected = run(alone, {sequence}, tokens);

    const mr_sequence first = other.next(random, b.vocab, 0, all);
    const int32_t rows_of_chunk = 1 + step % 11;
    chunk.reach(chunk.position + rows_of_chunk);
    const Tokens more = random.tokens(rows_of_chunk, b.vocab);
    all.insert(all.end(), more.begin(), more.end());
    const auto at = static_cast<int32_t>(all.size());
    const mr_sequence last = two.next(again, b.vocab, at, all);
    const std::vector<float> got = run(
        crowded, {first, {chunk.region, 3, rows_of_chunk, chunk.position, 0, nullptr}, last}, all);
    ASSERT_EQ(rows(crowded, got, at, 4), expected) << "step " << step;

    chunk.position += rows_of_chunk;
    other.fork(random);
    one.fork(same);
    two.fork(again);
  }
}

TEST_P(BeamTest, BadBeamsAreRefused) {
  Builder b = small_llama();
  Model model(GetParam(), b, 60), foreign(GetParam(), b, 10);
  Random random(1);
  Beams beams(model, random.tokens(20, b.vocab), 3);
  Tokens tokens;
  for (int step = 0; step < 16; ++step) {
    tokens.clear();
    run(model, {beams.next(random, b.vocab, 0, tokens)}, tokens);
    beams.fork(random);
  }
  Sequence outside(foreign), short_one(model);
  outside.reach(40);
  short_one.reach(16);
  struct Bad {
    std::function<void(mr_sequence&, mr_beams&, Beams&)> change;
    const char* message;
  };
  const Bad bad[] = {
      {[](mr_sequence&, mr_beams& m, Beams&) { m.prompt_tokens = 0; },
       "prompt of 0 tokens, expected 1 to 36"},
      {[](mr_sequence&, mr_beams& m, Beams&) { m.prompt_tokens = 37; }, "prompt of 37 tokens"},
      {[](mr_sequence&, mr_beams& m, Beams&) { m.prompt_tokens = 33; }, "place 2 is not mapped"},
      {[](mr_sequence&, mr_beams& m, Beams&) { m.index = nullptr; }, "index is a null pointer"},
      {[](mr_sequence&, mr_beams& m, Beams&) { m.responses = nullptr; },
       "regions are a null pointer"},
      {[](mr_sequence&, mr_beams&, Beams& x) { x.index[17] = 3; },
       "step 1 of beam 1 is of beam 3, expected 0 to 2"},
      {[](mr_sequence&, mr_beams&, Beams& x) { x.index[0] = -1; }, "is of beam -1"},
      {[](mr_sequence&, mr_beams&, Beams& x) { x.regions[2] = nullptr; }, "the region of beam 2"},
      {[&](mr_sequence&, mr_beams&, Beams& x) { x.regions[2] = outside.region; },
       "the region of beam 2"},
      {[](mr_sequence&, mr_beams&, Beams& x) { x.regions[2] = x.regions[1]; }, "used twice"},
      {[](mr_sequence&, mr_beams&, Beams& x) { x.regions[2] = x.prompt.region; }, "used twice"},
      {[&](mr_sequence&, mr_beams&, Beams& x) { x.regions[0] = short_one.region; },
       "place 1 is not mapped"},
      {[](mr_sequence& s, mr_beams&, Beams&) { s.position = 2048; }, "expected 0 to 2047"},
      {[](mr_sequence& s, mr_beams&, Beams&) { s.rows = 4; }, "sequence 0 has 4 rows"},
  };
  tokens.clear();
  const mr_sequence good = beams.next(random, b.vocab, 0, tokens);
  const Tokens index = beams.index;
  const std::vector<mr_region*> regions = beams.regions;
  const std::vector<float> expected = run(model, {good}, tokens);
  for (const Bad& x : bad) {
    SCOPED_TRACE(x.message);
    mr_sequence s = good;
    mr_beams m = beams.beams;
    s.beams = &m;
    x.change(s, m, beams);
    try {
      run(model, {s}, tokens);
      ADD_FAILURE() << "was accepted";
    } catch (const Failure& e) {
      EXPECT_EQ(e.status, MR_INVALID);
      EXPECT_NE(std::string(e.what()).find(x.message), std::string::npos) << e.what();
    }
    beams.index = index;
    beams.regions = regions;
    EXPECT_EQ(run(model, {good}, tokens), expected);
  }
}

std::vector<std::string> backends() {
  std::vector<std::string> all = tested_isas();
  all.push_back("ref");
  return all;
}

// Only optimized backends take long contexts in pieces.
INSTANTIATE_TEST_SUITE_P(Cpu, BeamPiecesTest, testing::ValuesIn(with_kv(tested_isas())),
                         [](const auto& info) { return isa_label(info.param); });
INSTANTIATE_TEST_SUITE_P(Backends, BeamTest, testing::ValuesIn(with_kv(backends())),
                         [](const auto& info) { return isa_label(info.param); });

}  // namespace
}  // namespace millrace::test
