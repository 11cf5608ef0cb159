// KV cache memory: mapping, sharing, copying, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include "harness.hpp"

namespace millrace::test {
namespace {

class Kv : public testing::TestWithParam<std::string> {
 protected:
  // The message of a call that must fail with this status.
  static std::string refused(int32_t status, const mr_error& error, int32_t expected) {
    EXPECT_EQ(status, expected) << error.message;
    EXPECT_EQ(error.status, status);
    return error.message;
  }

  static std::string map(Model& m, mr_region* region, int index, std::vector<int32_t> slabs,
                         int32_t expected) {
    mr_error error;
    const int32_t status = m.device.backend->region_map(region, index, slabs.data(),
                                                        static_cast<int32_t>(slabs.size()), &error);
    return refused(status, error, expected);
  }
  static std::string unmap(Model& m, mr_region* region, int index, int n, int32_t expected) {
    mr_error error;
    return refused(m.device.backend->region_unmap(region, index, n, &error), error, expected);
  }
  static std::string copy(Model& m, int from, int to, int tokens, int32_t expected) {
    mr_error error;
    return refused(m.device.backend->slab_copy(m.handle, from, to, tokens, &error), error,
                   expected);
  }
  static std::string read(Model& m, int slab, void* to, int32_t expected) {
    mr_error error;
    return refused(m.device.backend->slab_read(m.handle, slab, to, &error), error, expected);
  }
  static std::string write(Model& m, int slab, const void* from, int32_t expected) {
    mr_error error;
    return refused(m.device.backend->slab_write(m.handle, slab, from, &error), error, expected);
  }
};

TEST_P(Kv, SharedSlabsServeSeveralSequences) {
  Builder b = small_llama();
  Random random(1);
  const std::vector<int32_t> prefix = random.tokens(32, b.vocab), rest = random.tokens(9, b.vocab);
  Model model(GetParam(), b, 20);
  Sequence first(model);
  model.step({{&first, prefix}}, 0);

  Sequence second(model);  // maps the slabs of the first, computes nothing of the prefix
  second.share(first, 32);
  const std::vector<float> logits = model.step({{&second, rest}});
  EXPECT_EQ(logits, model.step({{&first, rest}}));
}

TEST_P(Kv, ACopyOfThePartialSlabForksASequence) {
  Builder b = small_llama();
  Random random(2);
  const std::vector<int32_t> prefix = random.tokens(21, b.vocab), left = random.tokens(5, b.vocab),
                             right = random.tokens(5, b.vocab);
  Model model(GetParam(), b, 20);
  Sequence plain(model);
  model.step({{&plain, prefix}}, 0);
  const std::vector<float> expected = model.step({{&plain, right}});

  Sequence trunk(model);
  const int trunk_slab = model.next_slab;
  model.step({{&trunk, prefix}}, 0);
  Sequence fork(model);
  const int own = model.next_slab++;
  copy(model, trunk_slab + 1, own, 5, MR_OK);
  fork.map(trunk_slab);
  fork.map(own);
  fork.position = 21;
  model.step({{&trunk, left}}, 0);  // into its own slab
  EXPECT_EQ(model.step({{&fork, right}}), expected);
}

TEST_P(Kv, ACopyTakesOnlyTheFirstTokens) {
  Builder b = small_llama();
  Random random(3);
  const std::vector<int32_t> a = random.tokens(16, b.vocab), c = random.tokens(16, b.vocab);
  Model model(GetParam(), b, 20);
  Sequence one(model), two(model), mixed(model);
  model.step({{&one, a}}, 0);                                   // slab 0
  model.step({{&two, c}}, 0);                                   // slab 1
  copy(model, 0, 1, 0, MR_OK);                                  // nothing
  const std::vector<float> before = model.step({{&two, {1}}});  // slab 2
  copy(model, 0, 1, 16, MR_OK);
  two.position = 16;
  const std::vector<float> after = model.step({{&two, {1}}});
  EXPECT_NE(before, after);
  EXPECT_EQ(after, model.step({{&one, {1}}}));
}

TEST_P(Kv, SlabsKeepTheirTokensWhileUnmapped) {
  Builder b = small_llama();
  Random random(4);
  const std::vector<int32_t> tokens = random.tokens(64, b.vocab);
  Model model(GetParam(), b, 20);
  model.next_slab = 10;
  Sequence s(model);
  model.step({{&s, tokens}}, 0);                                // slabs 10 to 13
  const std::vector<float> expected = model.step({{&s, {5}}});  // slab 14
  unmap(model, s.region, 1, 2, MR_OK);                          // out of the middle of one mapping
  s.position = 64;
  EXPECT_THROW(model.step({{&s, {5}}}), Failure);
  map(model, s.region, 1, {11, 12}, MR_OK);
  EXPECT_EQ(model.step({{&s, {5}}}), expected);
}

TEST_P(Kv, SlabsInAnyOrderAreFound) {
  Builder b = small_llama();
  Random random(5);
  const std::vector<int32_t> tokens = random.tokens(80, b.vocab);
  Model model(GetParam(), b, 20);
  Sequence straight(model), mixed(model);
  const std::vector<float> expected = model.step({{&straight, tokens}});
  for (const int32_t slab : {19, 7, 8, 5, 12}) mixed.map(slab);
  EXPECT_EQ(model.step({{&mixed, tokens}}), expected);
}

// Only what a window still shows must be mapped.
TEST_P(Kv, SlabsBehindEveryWindowMayBeUnmapped) {
  Builder b = small_llama(MR_BF16, 20);
  b.ops[4].attention.window = 20;
  ASSERT_EQ(b.ops[4].kind, MR_OP_ATTENTION);
  Random random(6);
  const std::vector<int32_t> tokens = random.tokens(60, b.vocab);
  Model model(GetParam(), b, 20);
  Sequence kept(model), cut(model);
  for (Sequence* s : {&kept, &cut}) model.step({{s, tokens}}, 0);
  unmap(model, cut.region, 0, 2, MR_OK);  // position 60 sees 41 to 60
  EXPECT_EQ(model.step({{&cut, {3}}}), model.step({{&kept, {3}}}));
  unmap(model, cut.region, 2, 1, MR_OK);  // 61 sees 42
  EXPECT_THROW(model.step({{&cut, {3}}}), Failure);
}

// Layers in groups of slabs compute what they compute in one slab.
TEST_P(Kv, GroupsOfLayersChangeNoBit) {
  Builder one = small_llama(MR_BF16, 20), two = small_llama(MR_BF16, 20);
  two.layers = 1;
  two.kv_groups = 2;
  for (mr_op& op : two.ops) {
    if (op.layer != 1 || !has_heads(op)) continue;
    op.layer = 0;
    op.attention.kv_group = 1;
  }
  Random random(7);
  const std::vector<int32_t> tokens = random.tokens(64, one.vocab), rest = random.tokens(9, 97);
  Model whole(GetParam(), one, 20), groups(GetParam(), two, 40);
  Sequence a(whole), b(whole), c(groups), d(groups);
  EXPECT_EQ(groups.step({{&c, tokens}}), whole.step({{&a, tokens}}));
  b.share(a, 64);
  d.share(c, 64);
  EXPECT_EQ(groups.step({{&c, rest}, {&d, rest}}), whole.step({{&a, rest}, {&b, rest}}));
  unmap(groups, c.region, c.places(), 3, MR_OK);  // position 73 sees 54
  EXPECT_EQ(groups.step({{&c, {3}}, {&d, {4}}}), whole.step({{&a, {3}}, {&b, {4}}}));
  map(groups, c.region, c.places(), {c.slabs[1]}, MR_OK);
  unmap(groups, c.region, c.places() + 3, 1, MR_OK);
  EXPECT_THROW(groups.step({{&c, {3}}}), Failure);
  unmap(groups, d.region, 0, 1, MR_OK);
  EXPECT_THROW(groups.step({{&d, {3}}}), Failure) << "layer 0 sees all tokens";
  EXPECT_NE(map(groups, d.region, 2 * d.places(), {0}, MR_INVALID).find("inside its"),
            std::string::npos);
}

TEST_P(Kv, BadMappingsAreRefused) {
  Builder b = small_llama();
  Model model(GetParam(), b, 4);
  Sequence s(model);
  const int last = b.max_positions / MR_SLAB_TOKENS;
  EXPECT_NE(map(model, s.region, 0, {4}, MR_INVALID).find("expected 0 to 3"), std::string::npos);
  map(model, s.region, 0, {-1}, MR_INVALID);
  map(model, s.region, -1, {0}, MR_INVALID);
  map(model, s.region, last, {0}, MR_INVALID);
  map(model, s.region, last - 1, {0, 1}, MR_INVALID);
  map(model, s.region, 0, {}, MR_INVALID);
  unmap(model, s.region, 0, 1, MR_INVALID);
  map(model, s.region, 0, {2, 3}, MR_OK);
  EXPECT_NE(map(model, s.region, 1, {0}, MR_INVALID).find("slab 3"), std::string::npos);
  unmap(model, s.region, 1, 2, MR_INVALID);
  unmap(model, s.region, 0, 0, MR_INVALID);
  unmap(model, s.region, 0, 2, MR_OK);
}

TEST_P(Kv, BadCopiesAreRefused) {
  Builder b = small_llama();
  Model model(GetParam(), b, 4);
  copy(model, 0, 4, 1, MR_INVALID);
  copy(model, -1, 0, 1, MR_INVALID);
  copy(model, 1, 1, 1, MR_INVALID);
  copy(model, 0, 1, 17, MR_INVALID);
  copy(model, 0, 1, -1, MR_INVALID);
}

TEST_P(Kv, SlabsTravelBetweenPrograms) {
  Builder b = small_llama();
  Random random(8);
  const std::vector<int32_t> prefix = random.tokens(37, b.vocab), rest = random.tokens(5, b.vocab);
  Model source(GetParam(), b, 20), target(GetParam(), b, 20);
  Sequence there(source);
  source.step({{&there, prefix}}, 0);  // slabs 0 to 2
  const std::vector<float> expected = source.step({{&there, rest}});

  target.next_slab = 7;
  Sequence here(target);
  here.reach(37);  // slabs 7 to 9
  here.position = 37;
  std::vector<std::byte> bytes(source.info().slab_bytes);
  for (int slab = 0; slab < 3; ++slab) {
    EXPECT_EQ(read(source, slab, bytes.data(), MR_OK), "");
    EXPECT_EQ(write(target, 7 + slab, bytes.data(), MR_OK), "");
  }
  EXPECT_EQ(target.step({{&here, rest}}), expected);
  bytes[0] ^= std::byte{1};
  write(target, 7, bytes.data(), MR_OK);
  std::vector<std::byte> again(bytes.size());
  read(target, 7, again.data(), MR_OK);
  EXPECT_EQ(again, bytes);
}

TEST_P(Kv, BadReadsAndWritesAreRefused) {
  Builder b = small_llama();
  Model model(GetParam(), b, 4);
  std::vector<std::byte> bytes(model.info().slab_bytes);
  for (const int slab : {-1, 4}) {
    EXPECT_NE(read(model, slab, bytes.data(), MR_INVALID).find("expected 0 to 3"),
              std::string::npos);
    write(model, slab, bytes.data(), MR_INVALID);
  }
  read(model, 0, nullptr, MR_INVALID);
  write(model, 0, nullptr, MR_INVALID);
}

// A model whose slabs have keys and values of this number of layers.
Builder with_layers(int layers) {
  Builder b = small_llama();
  const auto first = std::find_if(b.ops.begin(), b.ops.end(),
                                  [](const mr_op& op) { return op.kind == MR_OP_ROPE_STORE; });
  std::vector<mr_op> more(layers - b.layers, *first);
  for (mr_op& op : more) op.layer = b.layers++;
  b.ops.insert(first + 1, more.begin(), more.end());
  return b;
}

TEST_P(Kv, ThePoolIsReservedOnceAndFirst) {
  Builder b = with_layers(8);  // INT32_MAX slabs are beyond every address space
  Model model(GetParam(), b, 0);
  const mr_backend* backend = model.device.backend;
  mr_error error;
  mr_region* region = nullptr;
  refused(backend->region_create(model.handle, 1, &region, &error), error, MR_INVALID);
  refused(backend->kv_reserve(model.handle, 0, &error), error, MR_INVALID);
  refused(backend->kv_reserve(model.handle, -5, &error), error, MR_INVALID);
  EXPECT_EQ(backend->kv_reserve(model.handle, 2, &error), MR_OK);
  refused(backend->kv_reserve(model.handle, 2, &error), error, MR_INVALID);
  refused(backend->region_create(model.handle, 0, &region, &error), error, MR_INVALID);
  refused(backend->region_create(model.handle, INT32_MAX, &region, &error), error, MR_INVALID);
}

TEST_P(Kv, MoreSlabsThanMappingsAreRefusedWithTheWayOut) {
  Builder b = small_llama();
  Model model(GetParam(), b, 0);
  const mr_program_info info = model.info();
  std::ifstream file("/proc/sys/vm/max_map_count");
  int64_t most = 0;
  ASSERT_TRUE(file >> most);
  EXPECT_GT(info.max_slabs, 0);
  EXPECT_LT(info.max_slabs, most);
  mr_error error;
  const std::string message =
      refused(model.device.backend->kv_reserve(model.handle, info.max_slabs + 1, &error), error,
              MR_UNSUPPORTED);
  EXPECT_NE(message.find("sysctl -w vm.max_map_count="), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(most)), std::string::npos) << message;
}

TEST_P(Kv, APoolBeyondTheMemoryIsRefused) {
  Builder b = with_layers(4096);  // 41 MiB a slab and more
  Model model(GetParam(), b, 0);
  const mr_program_info info = model.info();
  mr_device_info device;
  mr_error error;
  ASSERT_EQ(model.device.backend->device_info(model.device.handle, &device, &error), MR_OK);
  const uint64_t slabs = device.memory_total / info.slab_bytes + 1;
  ASSERT_LT(slabs, static_cast<uint64_t>(info.max_slabs));
  const std::string message =
      refused(model.device.backend->kv_reserve(model.handle, static_cast<int32_t>(slabs), &error),
              error, MR_NO_MEMORY);
  EXPECT_NE(message.find("GiB"), std::string::npos) << message;
}

TEST_P(Kv, SlabsAreWholePages) {
  Builder b = small_llama();
  Model model(GetParam(), b, 0);
  const mr_program_info info = model.info();
  // A token's key in a head has 40 elements, one float32 scale or two bf16 scales, of which
  // int4 fills whole groups.
  int head = 40 * 2;
  if (GetParam().starts_with("ref")) {
    head = 40 * 4;
  } else if (info.kv_type == MR_KV_INT8) {
    head = 40 + 4;
  } else if (info.kv_type == MR_KV_INT4) {
    head = 2 * (16 + 2);
  }
  const uint64_t bytes = uint64_t{MR_SLAB_TOKENS} * b.layers * 2 * b.kv_heads * head;
  EXPECT_EQ(info.slab_bytes % 4096, 0u);
  EXPECT_GE(info.slab_bytes, bytes);
  EXPECT_LT(info.slab_bytes, bytes + 65536);
}

// Regions may outlive their program; the memory goes with the last of them.
TEST_P(Kv, ARegionMayOutliveItsProgram) {
  Builder b = small_llama();
  Device device(GetParam());
  mr_error error;
  const mr_program_desc desc = b.desc();
  mr_program* program = nullptr;
  mr_region* region = nullptr;
  const int32_t slab = 0;
  ASSERT_EQ(device.backend->program_load(device.handle, &desc, &program, &error), MR_OK);
  ASSERT_EQ(device.backend->kv_reserve(program, 1, &error), MR_OK);
  ASSERT_EQ(device.backend->region_create(program, 1, &region, &error), MR_OK);
  ASSERT_EQ(device.backend->region_map(region, 0, &slab, 1, &error), MR_OK);
  device.backend->program_unload(program);
  device.backend->region_destroy(region);
}

INSTANTIATE_TEST_SUITE_P(Backends, Kv, testing::ValuesIn(with_kv({"ref", tested_isas().front()})),
                         [](const auto& info) { return isa_label(info.param); });

}  // namespace
}  // namespace millrace::test
