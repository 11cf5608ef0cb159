// Ranks: the order of sums, the places of logits and slabs, and what is refused.
#include "exec/ranks.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <string>
#include <vector>

#include "cpu/machine/rank_places.hpp"
#include "exec/error.hpp"
#include "harness.hpp"

namespace millrace::test {
namespace {

const mr_backend* backend_of(const std::string& name) {
  return name == "ref" ? millrace_backend_ref() : millrace_backend_cpu();
}

// A device of several ranks with a program for each, by builders that do not move: programs point into them.
struct Ranks {
  Ranks(const std::string& name, std::deque<Builder>& builders, int threads = 0)
      : backend(backend_of(name)) {
    mr_error error{};
    mr_device_config config{};
    config.ranks = static_cast<int32_t>(builders.size());
    config.threads = threads > 0 ? threads : config.ranks;
    check(backend->device_open(&config, &device, &error), error);
    std::vector<mr_program_desc> descs;
    for (Builder& b : builders) descs.push_back(b.desc());
    const int32_t status = backend->program_load(device, descs.data(), &program, &error);
    if (status != MR_OK) {
      backend->device_close(device);
      throw Failure(error);
    }
    check(backend->kv_reserve(program, 1, &error), error);
    check(backend->region_create(program, 1, &region, &error), error);
    const int32_t slab = 0;
    check(backend->region_map(region, 0, &slab, 1, &error), error);
  }
  ~Ranks() {
    backend->region_destroy(region);
    backend->program_unload(program);
    backend->device_close(device);
  }
  Ranks(const Ranks&) = delete;

  // The logits of tokens, of all classes.
  std::vector<float> run(const std::vector<int32_t>& tokens, int classes) {
    const auto n = static_cast<int32_t>(tokens.size());
    std::vector<float> logits(tokens.size() * classes);
    std::vector<int32_t> outputs;
    for (int32_t i = 0; i < n; ++i) outputs.push_back(i);
    mr_sequence sequence{};
    sequence.region = region;
    sequence.rows = n;
    mr_step step{};
    step.tokens = tokens.data();
    step.sequences = &sequence;
    step.output_rows = outputs.data();
    step.logits = logits.data();
    step.rows = step.outputs = n;
    step.n_sequences = 1;
    mr_error error{};
    check(backend->program_run(program, &step, &error), error);
    return logits;
  }

  const mr_backend* backend;
  mr_device* device = nullptr;
  mr_program* program = nullptr;
  mr_region* region = nullptr;
};

// A rank whose logits are the sum of all ranks' rows, added to a one: sums in other orders have other bits.
Builder summing(float value, int width = 3) {
  Builder b;
  b.vocab = 2;
  b.classes = width;
  b.max_rows = b.max_outputs = 16;
  const int own = b.slot(MR_SLOT_F32, width), sum = b.slot(MR_SLOT_F32, width),
            out = b.slot(MR_SLOT_F32, width);
  b.embed(b.tensor(std::vector<float>(2 * size_t(width), value), 2, width, MR_F32), own);
  b.embed(b.tensor(std::vector<float>(2 * size_t(width), 1), 2, width, MR_F32), sum);
  b.op(MR_OP_ALL_REDUCE, own, sum).all_reduce.accumulate = 1;
  b.select_rows(sum, out);
  return b;
}

TEST(Ranks, SumsAreInTheOrderOfRanks) {
  for (const std::string name : {"ref", "cpu"}) {
    for (const int width : {3, 64, 71}) {
      std::deque<Builder> builders;
      float sum = 0;
      for (const float x : {1e8f, 1.0f, -1e8f, 3.0f}) {
        builders.push_back(summing(x, width));
        sum += x;
      }
      ASSERT_EQ(sum, 3.0f) << "another order gives 4";
      Ranks ranks(name, builders);
      for (const float x : ranks.run({0, 1, 0}, 4 * width)) EXPECT_EQ(x, 4.0f) << name;
    }
  }
}

TEST(Ranks, LogitsOfEachRankFollowThoseOfTheOneBefore) {
  for (const std::string name : {"ref", "cpu"}) {
    std::deque<Builder> builders;
    for (const int r : {0, 1}) {
      Builder b;
      b.vocab = 2;
      b.classes = 2 + r;
      const int in = b.slot(MR_SLOT_F32, b.classes), out = b.slot(MR_SLOT_F32, b.classes);
      std::vector<float> table;
      for (int i = 0; i < 2 * b.classes; ++i) table.push_back(static_cast<float>(10 * r + i));
      b.embed(b.tensor(table, 2, b.classes, MR_F32), in);
      b.select_rows(in, out);
      builders.push_back(std::move(b));
    }
    Ranks ranks(name, builders);
    EXPECT_EQ(ranks.run({1, 0}, 5), (std::vector<float>{2, 3, 13, 14, 15, 0, 1, 10, 11, 12}));
  }
}

// A linear op over some columns of a matrix.
TEST(Ranks, ColumnsOfAMatrix) {
  for (const std::string name : {"ref", "cpu"}) {
    Builder b;
    b.vocab = 1;
    b.classes = 2;
    const int in = b.slot(MR_SLOT_F32, 2), rows = b.slot(MR_SLOT_F32, 2),
              out = b.slot(MR_SLOT_F32, 2);
    b.embed(b.tensor({1, 2}, 1, 2, MR_F32), in);
    const int weight = b.tensor({1, 2, 3, 4, 5, 6, 7, 8}, 2, 4, MR_BF16);
    b.select_rows(in, rows);
    b.linear(rows, {b.part(weight)}, out);
    mr_tensor& t = b.tensors[weight];
    t.data = static_cast<const uint16_t*>(t.data) + 1;
    t.dims[1] = 2;
    t.row_bytes = 8;
    std::deque<Builder> builders;
    builders.push_back(std::move(b));
    Ranks ranks(name, builders);
    EXPECT_EQ(ranks.run({0}, 2), (std::vector<float>{2 + 6, 6 + 14})) << name;
  }
}

TEST(Ranks, WhatDoesNotFitTogetherIsRefused) {
  const auto refused = [](std::deque<Builder>& builders, const std::string& why) {
    try {
      Ranks ranks("ref", builders);
      ADD_FAILURE() << "expected: " << why;
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status, MR_INVALID);
      EXPECT_NE(std::string(failure.what()).find(why), std::string::npos) << failure.what();
    }
  };
  std::deque<Builder> widths;
  for (const int width : {3, 4}) widths.push_back(summing(1, width));
  refused(widths, "rank 1 has other groups of layers, limits or ALL_REDUCEs");

  std::deque<Builder> written;
  for (int r = 0; r < 2; ++r) {
    Builder b = summing(1);
    b.ops.insert(b.ops.begin() + 3, b.ops[0]);  // while the other rank may read it
    b.ops.insert(b.ops.begin() + 4, b.ops[2]);
    written.push_back(std::move(b));
  }
  refused(written, "comes after op 3, which writes slot 0 that other ranks may read");

  mr_error error{};
  mr_device_config config{};
  config.ranks = 3;
  config.threads = 2;
  mr_device* device = nullptr;
  EXPECT_EQ(millrace_backend_cpu()->device_open(&config, &device, &error), MR_INVALID);
  config.ranks = MR_MAX_RANKS + 1;
  EXPECT_EQ(millrace_backend_cpu()->device_open(&config, &device, &error), MR_INVALID);
}

TEST(Ranks, SharesOfCpusAreOfOneNode) {
  const std::vector<int> nodes = {0, 1, 0, 1, 0, 1};
  EXPECT_EQ(cpu::shares({0, 1, 2, 3, 4, 5}, nodes, 2),
            (std::vector<std::vector<int>>{{0, 2, 4}, {1, 3, 5}}));
  EXPECT_EQ(cpu::shares({1, 4}, nodes, 2), (std::vector<std::vector<int>>{{4}, {1}}));
  EXPECT_EQ(cpu::shares({0}, nodes, 2), std::vector<std::vector<int>>(2));
}

// A rank that fails ends the wait of the others, and the next step runs.
TEST(Ranks, AFailureEndsTheWaitOfOthers) {
  RankThreads threads({{1, {}}, {1, {}}, {1, {}}});
  Exchange exchange(3);
  for (int round = 0; round < 100; ++round) {
    exchange.begin();
    try {
      threads.run(
          [&](int rank) {
            exchange.meet();
            if (rank == round % 3) fail(MR_NO_MEMORY, "no memory");
            exchange.meet();
          },
          &exchange);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), MR_NO_MEMORY);
    }
    exchange.begin();
    std::atomic<int> met{0};
    threads.run(
        [&](int) {
          for (int i = 0; i < 10; ++i) exchange.meet();
          ++met;
        },
        &exchange);
    EXPECT_EQ(met, 3);
  }
}

}  // namespace
}  // namespace millrace::test
