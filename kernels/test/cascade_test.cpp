// Sequences that share slabs: which of them read a prefix together, that it is read once, and that
// each gets the bits that it has alone.
#include "exec/cascade.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "attention_case.hpp"
#include "cpu/attention/attention.hpp"

namespace millrace::test {
namespace {

using cpu::bf16;
using Table = std::vector<int32_t>;

// A table of n slabs: those of a prefix, then slabs of its own from `own` on.
Table table(const Table& prefix, int shared, int n, int own) {
  Table t(prefix.begin(), prefix.begin() + shared);
  t.resize(n);
  std::iota(t.begin() + shared, t.end(), own);
  return t;
}

struct Found {
  std::vector<std::vector<int>> sequences;  // of each group, ascending
  std::vector<int> tokens;
};

// The groups of sequences with these tables, a row each at the last token of its last slab.
class CascadeFind : public testing::Test {
 protected:
  void add(const Table& table, int rows = 1, const millrace::Beams* beams = nullptr) {
    const Table& t = tables_.emplace_back(table);
    const int last = static_cast<int>(t.size()) * MR_SLAB_TOKENS - 1;
    const int position = beams != nullptr ? last : last - rows + 1;
    batch_.sequences.push_back({nullptr, batch_.rows, rows, position, t.data(), beams});
    batch_.rows += rows;
  }

  static constexpr int kLeast = 128;

  Found find(int most_rows = 4) {
    Cascade cascade;
    cascade.find(batch_, most_rows, kLeast);
    Found found;
    for (const auto& g : cascade.groups()) {
      std::vector<int>& group = found.sequences.emplace_back();
      for (int i = g.begin; i < g.end; ++i) group.push_back(cascade.members()[i].sequence);
      std::ranges::sort(group);
      found.tokens.push_back(g.tokens);
    }
    return found;
  }

  std::deque<Table> tables_;
  Batch batch_;
};

const Table kPrefix = table({}, 0, 80, 1000), kOther = table({}, 0, 80, 2000);

using Groups = std::vector<std::vector<int>>;

TEST_F(CascadeFind, SequencesWithTheSameFirstSlabsAreAGroup) {
  add(table(kPrefix, 40, 42, 1));
  add(table(kOther, 40, 41, 100));
  add(table(kPrefix, 40, 50, 200));
  add(table(kOther, 30, 44, 300));
  add(table({}, 0, 44, 400));
  const Found found = find();
  EXPECT_EQ(found.sequences, (Groups{{1, 3}, {0, 2}}));
  EXPECT_EQ(found.tokens, (std::vector<int>{28 * 16, 40 * 16}));  // whole blocks of 64
}

TEST_F(CascadeFind, TheSameSlabsAtOtherPlacesAreNotShared) {
  add(kPrefix);
  Table shifted = kPrefix;
  std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
  add(shifted);
  Table late = table({}, 0, 1, 1);
  late.insert(late.end(), kPrefix.begin() + 1, kPrefix.end());
  add(late);
  EXPECT_TRUE(find().sequences.empty());
}

TEST_F(CascadeFind, SlabsThatAStepWritesAreNotShared) {
  add(table(kPrefix, 12, 12, 1), 1);
  add(table(kPrefix, 12, 12, 1), 1);  // the last slab is being written: 11 whole ones are left
  EXPECT_EQ(find().tokens, std::vector<int>{2 * 64});
}

TEST_F(CascadeFind, FewTokensAreNotWorthAGroup) {
  const int least = kLeast / MR_SLAB_TOKENS;
  add(table(kPrefix, least - 1, 60, 1));
  add(table(kPrefix, least - 1, 60, 100));
  EXPECT_TRUE(find().sequences.empty());
  add(table(kOther, least, 60, 200));
  add(table(kOther, least, 60, 300));
  EXPECT_EQ(find().sequences, (Groups{{2, 3}}));
}

TEST_F(CascadeFind, BeamsAndLongRunsOfRowsAreInNoGroup) {
  const millrace::Beams beams{};
  add(table(kPrefix, 40, 42, 1), 4);
  add(table(kPrefix, 40, 42, 100), 5);
  add(table(kPrefix, 40, 42, 200), 2, &beams);
  EXPECT_TRUE(find().sequences.empty());
  add(table(kPrefix, 40, 42, 300), 1);
  EXPECT_EQ(find().sequences, (Groups{{0, 3}}));
}

TEST_F(CascadeFind, SequencesThatGaveTheirFirstSlabsBackAreInNoGroup) {
  const Table none(20, -1);
  add(table(none, 20, 42, 1));
  add(table(none, 20, 42, 100));
  add(table(kPrefix, 40, 42, 200));
  EXPECT_TRUE(find().sequences.empty());
}

TEST_F(CascadeFind, AGroupSharesWhatAllOfItHave) {
  add(table(kPrefix, 40, 60, 1));
  add(table(kPrefix, 50, 60, 100));
  add(table(kPrefix, 50, 60, 200));
  const Found found = find();
  EXPECT_EQ(found.sequences, (Groups{{0, 1, 2}}));
  EXPECT_EQ(found.tokens, std::vector<int>{40 * 16});
}

// All five sequences share 8 slabs, two of them 60.
TEST_F(CascadeFind, TheGroupsSaveTheMostTokens) {
  for (int i = 0; i < 3; ++i) add(table(kPrefix, 8, 70, 100 * i));
  const Table longer = table(kPrefix, 8, 70, 500);
  add(table(longer, 60, 70, 3000));
  add(table(longer, 60, 70, 4000));
  const Found found = find();
  EXPECT_EQ(found.sequences, (Groups{{3, 4}, {0, 1, 2}}));
  EXPECT_EQ(found.tokens, (std::vector<int>{60 * 16, 8 * 16}));
}

// ---- Memory

// Attention of three sequences of a group, in memory where only the first one has numbers in the
// shared slabs, as if the same slabs were not the same memory.
TEST(CascadeReads, APrefixIsReadInOnePlace) {
  constexpr int kShared = 72, kSlabs = 80;  // 1,152 tokens of 1,280
  AttentionCase c;
  Builder builder = attention_program(c);
  Program program;
  read_program(builder.desc(), program);
  const Op& op = *std::ranges::find(program.ops, MR_OP_ATTENTION, &Op::kind);
  const int slab_tokens = MR_SLAB_TOKENS;
  const KvLayout kv(program.kv_layers, 1, MR_KV_BF16,
                    [](int width) { return sizeof(bf16) * MR_SLAB_TOKENS * width; });
  const cpu::OpKernels& kernels = cpu::op_kernels(cpu::Isa::portable);
  cpu::ThreadPool pool(2);
  const cpu::Context context{program, kv, kernels, kernels.bf16_kv, pool};
  cpu::Attention attention(context);

  constexpr bf16 kNumber = 0x3f00, kNan = 0x7fc0;
  const int64_t slab = static_cast<int64_t>(kv.slab_bytes / sizeof(bf16));
  std::deque<std::vector<bf16>> memory;
  std::deque<Table> tables;
  Batch batch;
  for (int i = 0; i < 3; ++i) {
    std::vector<bf16>& m = memory.emplace_back(kSlabs * slab, kNumber);
    if (i > 0) std::fill_n(m.begin(), kShared * slab, kNan);
    const Table& t = tables.emplace_back(table(kPrefix, kShared, kSlabs, 100 * i));
    batch.sequences.push_back(
        {reinterpret_cast<std::byte*>(m.data()), i, 1, kSlabs * slab_tokens - 1 - i, t.data()});
  }
  batch.rows = 3;
  const int width = (c.heads + 2 * c.kv_heads) * c.head_dim;
  std::vector<float> q(3 * width, 0.25f), out(3 * c.heads * c.head_dim);
  attention.begin(batch);
  attention.run(context, op, batch, {q.data(), width, MR_SLOT_F32, 4}, {},
                {out.data(), c.heads * c.head_dim, MR_SLOT_F32, 4});
  EXPECT_EQ(out, std::vector<float>(out.size(), 0.5f));
}

// ---- Bits

struct Draw {
  int shared = 0;  // tokens of the trunk, whole slabs of which are mapped
  int own = 1;     // tokens that follow, before the compared rows
  int rows = 1;    // compared
};

class CascadeOn : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int kTrunk = 2200;

  // A trunk that all sequences begin with, and steps of sequences that share parts of it.
  void load(const AttentionCase& c, int threads = 2, int outputs = 0) {
    unload();
    builder_ = std::make_unique<Builder>(attention_program(c));
    builder_->max_positions = 6000;
    builder_->max_rows = 256;
    if (outputs > 0) builder_->max_outputs = outputs;
    label_ = c.text() + ", " + std::to_string(threads) + " threads";
    model_ = std::make_unique<Model>(GetParam(), *builder_, 1200, threads);
    trunk_ = std::make_unique<Sequence>(*model_);
    fill(*trunk_, kTrunk);
  }
  ~CascadeOn() override { unload(); }

  void unload() {
    trunk_.reset();
    model_.reset();
  }

  void fill(Sequence& s, int tokens) {
    for (int left = tokens; left > 0; left -= builder_->max_rows) {
      const int n = std::min(left, builder_->max_rows);
      model_->step({{&s, random_.tokens(n, builder_->vocab)}}, 0);
    }
  }

  // The rows of a step of all sequences are those of steps of one sequence.
  void expect_bits(const std::vector<Draw>& draws, int outputs = -1) {
    SCOPED_TRACE(label_ + text(draws));
    const int slab = model_->next_slab;
    std::deque<Sequence> sequences;
    expect_bits(rows_of(draws, sequences), outputs);
    model_->next_slab = slab;
  }
  void expect_bits(const std::vector<Model::Rows>& rows, int outputs = -1) {
    const std::vector<float> together = model_->step(rows, outputs);
    std::vector<float> alone;
    for (const Model::Rows& r : rows) {
      r.sequence->position -= static_cast<int>(r.tokens.size());
      const int n = outputs < 0 ? -1 : r.sequence == rows.back().sequence ? outputs : 0;
      const std::vector<float> logits = model_->step({r}, n);
      alone.insert(alone.end(), logits.begin(), logits.end());
    }
    EXPECT_TRUE(together == alone);
    EXPECT_TRUE(std::ranges::all_of(alone, [](float x) { return std::isfinite(x); }));
  }

  // The launches of the attention of a step.
  int launches(const std::vector<Draw>& draws) {
    const int slab = model_->next_slab;
    std::deque<Sequence> sequences;
    const std::vector<Model::Rows> rows = rows_of(draws, sequences);
    model_->op_times.resize(builder_->ops.size());
    model_->step(rows, 0);
    const auto op = std::ranges::find(builder_->ops, MR_OP_ATTENTION, &mr_op::kind);
    const int n = model_->op_times[op - builder_->ops.begin()].launches;
    model_->op_times.clear();
    model_->next_slab = slab;
    return n;
  }

  std::vector<Model::Rows> rows_of(const std::vector<Draw>& draws,
                                   std::deque<Sequence>& sequences) {
    std::vector<Model::Rows> rows;
    for (const Draw& d : draws) {
      Sequence& s = sequences.emplace_back(*model_);
      s.share(*trunk_, d.shared / MR_SLAB_TOKENS * MR_SLAB_TOKENS);
      fill(s, d.own);
      rows.push_back({&s, random_.tokens(d.rows, builder_->vocab)});
    }
    return rows;
  }

  static std::string text(const std::vector<Draw>& draws) {
    std::string text;
    for (const Draw& d : draws) {
      text += "; " + std::to_string(d.shared) + " shared, " + std::to_string(d.own) + " own, " +
              std::to_string(d.rows) + " rows";
    }
    return text;
  }

  Random random_{9};
  std::unique_ptr<Builder> builder_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Sequence> trunk_;
  std::string label_;
};

AttentionCase small_case() {
  AttentionCase c;
  c.heads = 6;
  c.head_dim = 24;
  c.rotary_dim = 24;
  return c;
}

// Each head has keys of its own: a GPU's tasks have room for rows of several sequences, and for several rows of each.
AttentionCase many_kv_heads(int heads = 5) {
  AttentionCase c;
  c.heads = c.kv_heads = heads;
  c.head_dim = 16;
  return c;
}

TEST_P(CascadeOn, EveryLengthOfAPrefixHasTheSameBits) {
  for (const int threads : {1, 2, 5}) {
    load(small_case(), threads);
    for (const int shared : {63, 64, 400, 500, 1000, 1024, 1100, 2048, 2100}) {
      expect_bits({{shared, 1}, {shared, 40}, {shared, 7}});
    }
  }
}

TEST_P(CascadeOn, EveryLengthOfAPrefixOfManyKvHeadsHasTheSameBits) {
  load(many_kv_heads());
  for (const int shared : {127, 128, 192, 640, 1100, 2100}) {
    expect_bits({{shared, 1}, {shared, 40, 2}, {shared, 700}});
  }
}

TEST_P(CascadeOn, LongTailsHaveTheSameBits) {
  for (const int threads : {1, 5}) {
    load(small_case(), threads);
    for (const int shared : {960, 1024, 1100}) {
      expect_bits({{shared, 1200}, {shared, 3}, {shared, 2500}});
    }
  }
}

TEST_P(CascadeOn, SeveralGroupsHaveTheSameBits) {
  load(small_case());
  std::vector<Draw> draws;
  for (const int shared : {450, 1100, 2100, 0}) {
    for (int i = 1; i <= 3; ++i) draws.push_back({shared, shared % 7 * i + 30});
  }
  expect_bits({{1100, 30}, {1000, 20}, {1100, 7}, {1100, 40}});
  std::swap(draws[0], draws[7]);
  std::swap(draws[3], draws[10]);
  expect_bits(draws);
}

TEST_P(CascadeOn, RowsOfDraftTokensHaveTheSameBits) {
  load(small_case());
  expect_bits({{1100, 20, 4}, {1100, 63, 1}, {1100, 1, 3}, {1100, 1, 5}, {1100, 16, 2}});
  // With a chunk of a prompt, which reads the prefix by itself.
  expect_bits({{1100, 20, 4}, {1100, 16, 90}, {1100, 1, 3}});
  load(many_kv_heads());
  expect_bits({{1100, 20, 4}, {1100, 63, 1}, {1100, 1, 3}, {1100, 1, 9}, {1100, 16, 2}});
  expect_bits({{1100, 20, 4}, {1100, 16, 90}, {1100, 1, 3}});
}

// Decode steps of as many rows, with a group and without: a device that records launches has both.
TEST_P(CascadeOn, GroupsThatComeAndGoHaveTheSameBits) {
  load(many_kv_heads(64));
  std::deque<Sequence> sequences;
  rows_of({{1100, 20}, {1100, 1}, {1100, 63}, {1100, 5}, {0, 300}, {0, 40}, {0, 900}}, sequences);
  const std::vector<std::vector<int>> steps = {{0, 1, 2, 3}, {3, 4, 5, 6}, {0, 1, 4, 5}};
  for (const int step : {0, 0, 0, 1, 1, 1, 0, 1, 2, 2, 2, 0, 2, 1, 0, 1}) {
    SCOPED_TRACE(step);
    std::vector<Model::Rows> rows;
    for (const int i : steps[step]) {
      rows.push_back({&sequences[i], random_.tokens(1, builder_->vocab)});
    }
    expect_bits(rows);
  }
}

// A device launches attention twice where sequences share a prefix, if that saves it something.
TEST_P(CascadeOn, APrefixIsALaunchOfADevice) {
  if (!on_device()) GTEST_SKIP() << "NOT TESTED here: a device, see scripts/test-sycl.sh";
  const std::vector<Draw> draws(24, {1100, 3});
  const auto with = [&](Draw d) { return std::vector<Draw>(24, d); };
  load(many_kv_heads(64));
  EXPECT_EQ(launches(draws), 2);
  EXPECT_EQ(launches(with({144, 3})), 2);
  EXPECT_EQ(launches(with({127, 3})), 1);
  EXPECT_EQ(launches({{1100, 3}}), 1);
  EXPECT_EQ(launches({{1100, 3, 90}, {1100, 3, 90}}), 1);
  AttentionCase c = many_kv_heads(64);
  c.window = 3000;
  load(c);
  EXPECT_EQ(launches(draws), 1);
  load(many_kv_heads(64), 2, 1);  // without memory for states
  EXPECT_EQ(launches(draws), 1);
}

TEST_P(CascadeOn, EveryGroupingOfHeadsHasTheSameBits) {
  const int groups[][2] = {{1, 1}, {5, 5}, {64, 64}, {8, 1}, {12, 1}, {71, 1}};
  for (const auto& g : groups) {
    AttentionCase c;
    c.heads = g[0];
    c.kv_heads = g[1];
    c.head_dim = 16;
    load(c, 3);
    std::vector<Draw> draws(19, {2100, 1});
    for (size_t i = 0; i < draws.size(); ++i) draws[i].own = 1 + static_cast<int>(i) * 5;
    expect_bits(draws);
  }
}

// By tensor cores a warp has other parts of a head's sums for each of these sizes.
TEST_P(CascadeOn, SizesOfManyKvHeadsHaveTheSameBits) {
  using Sizes = std::vector<int>;
  for (const int head_dim : GetParam() == "mma" ? Sizes{64, 80, 128, 256} : Sizes{64}) {
    AttentionCase c = many_kv_heads(4);
    c.head_dim = head_dim;
    load(c);
    expect_bits({{1100, 20, 2}, {1100, 1}, {1100, 63}, {1100, 250}});
  }
}

// A device computes the values of a head above 256 in parts, each with a state of its own.
TEST_P(CascadeOn, ValuesInPartsHaveTheSameBits) {
  if (GetParam().find("int") != std::string::npos) {
    GTEST_SKIP() << "NOT TESTED here: codes, whose states are these";
  }
  AttentionCase c = many_kv_heads(6);
  c.head_dim = 320;
  load(c);
  const std::vector<Draw> draws(6, {700, 9});
  if (on_device()) {
    EXPECT_EQ(launches(draws), 2);
  }
  expect_bits(draws);
  expect_bits({{700, 20}, {700, 1, 2}, {700, 63}, {700, 150}});
}

TEST_P(CascadeOn, WindowsHaveTheSameBits) {
  // The last rows are at 1,108 to 1,134, so some windows end among their first keys.
  for (const int window : {1, 100, 1110, 1120, 1132, 1500, 5000}) {
    AttentionCase c = small_case();
    c.window = window;
    load(c);
    expect_bits({{1100, 46}, {1100, 20}, {1100, 40, 3}});
    expect_bits({{1100, 500}, {1100, 300}, {1100, 20}});
  }
}

TEST_P(CascadeOn, AlibiHasTheSameBits) {
  AttentionCase c = small_case();
  c.alibi = true;
  load(c);
  expect_bits({{1100, 20}, {1100, 300, 3}, {1100, 46}});
}

// Where the memory for states ends, sequences read the prefix by themselves.
TEST_P(CascadeOn, MissingMemoryForStatesDoesNotMatter) {
  // A GPU backend allocates states for as many rows as the program has outputs: with 1 output for no group, with 10 for one.
  const int loads[][2] = {{1, 1}, {2, 1}, {2, 10}};
  for (const auto& [threads, outputs] : loads) {
    AttentionCase c;
    c.heads = c.kv_heads = 96;
    c.head_dim = 8;
    load(c, threads, outputs);
    std::vector<Draw> draws(24, {1100, 3});
    for (size_t i = 8; i < draws.size(); ++i) draws[i].shared = i < 16 ? 1200 : 2100;
    for (const size_t last : {0, 8, 16}) {
      std::swap(draws[last], draws.back());
      expect_bits(draws, 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, CascadeOn, testing::ValuesIn(with_kv(tested_isas())),
                         [](const auto& info) { return isa_label(info.param); });

}  // namespace
}  // namespace millrace::test
