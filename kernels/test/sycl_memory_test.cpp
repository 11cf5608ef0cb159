// Where the SYCL backend puts KV slabs: the arithmetic of pieces, what is undone when a
// device refuses, and, on the backend itself, slabs in many allocations.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "cpu/machine/isa.hpp"
#include "exec/error.hpp"
#include "gpu/kv_memory.hpp"
#include "harness.hpp"

namespace millrace::test {
namespace {

using gpu::AllocatedKvMemory;
using gpu::KvMemory;
using gpu::KvSize;
using gpu::MappedKvMemory;
using gpu::VirtualMemory;

constexpr size_t kPage = 4096;

// A device's addresses, and the calls on them.
struct Mappings {
  size_t granularity = kPage;
  int refused_map = -1;  // the call that fails, from 0
  bool refuses_addresses = false;
  int maps = 0;
  std::byte* const base = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  size_t reserved = 0;
  std::map<std::byte*, size_t> mapped;
  std::vector<std::string> log;
};

class FakeVirtualMemory : public VirtualMemory {
 public:
  explicit FakeVirtualMemory(Mappings& mappings) : b_(mappings) {}

  size_t granularity() const override { return b_.granularity; }
  std::byte* reserve(size_t bytes) override {
    if (b_.refuses_addresses) fail(MR_NO_MEMORY, "no addresses");
    EXPECT_EQ(bytes % b_.granularity, 0u);
    b_.reserved = bytes;
    return b_.base;
  }
  void map(std::byte* data, size_t bytes) override {
    if (b_.maps++ == b_.refused_map) fail(MR_NO_MEMORY, "no memory");
    EXPECT_EQ((data - b_.base) % b_.granularity, 0u);
    EXPECT_EQ(bytes % b_.granularity, 0u);
    EXPECT_LE(data + bytes, b_.base + b_.reserved);
    b_.mapped[data] = bytes;
    b_.log.push_back("map " + std::to_string(data - b_.base));
  }
  void unmap(std::byte* data) noexcept override {
    EXPECT_EQ(b_.mapped.erase(data), 1u);
    b_.log.push_back("unmap " + std::to_string(data - b_.base));
  }
  void release(std::byte* data, size_t bytes) noexcept override {
    EXPECT_TRUE(b_.mapped.empty()) << "addresses are released under memory";
    EXPECT_EQ(data, b_.base);
    EXPECT_EQ(bytes, b_.reserved);
    b_.reserved = 0;
    b_.log.push_back("release");
  }

 private:
  Mappings& b_;
};

std::unique_ptr<VirtualMemory> fake(Mappings& mappings) {
  return std::make_unique<FakeVirtualMemory>(mappings);
}

TEST(MappedKvMemory, MemoryIsBehindEveryByteOfEverySlab) {
  for (const size_t slab : {size_t{1}, size_t{4096}, size_t{10000}, size_t{12288}}) {
    for (const int slabs : {1, 2, 7, 64}) {
      for (const size_t largest : {size_t{1}, size_t{4096}, size_t{20000}, size_t{1} << 32}) {
        Mappings mappings;
        const MappedKvMemory memory({slab, slabs, largest}, fake(mappings));
        size_t end = 0;  // pieces lie one after the other
        for (const auto& [data, bytes] : mappings.mapped) {
          EXPECT_EQ(data, mappings.base + end);
          EXPECT_LE(bytes, std::max(largest, kPage));
          end += bytes;
        }
        EXPECT_EQ(end, mappings.reserved);
        EXPECT_LT(end, slab * slabs + kPage);
        for (int i = 0; i < slabs; ++i) EXPECT_EQ(memory.slab(i), mappings.base + slab * i);
        EXPECT_LE(memory.slab(slabs - 1) + slab, mappings.base + end);
      }
    }
  }
}

TEST(MappedKvMemory, WhatIsMappedLastIsUnmappedFirstAndAddressesGoLast) {
  Mappings mappings;
  { const MappedKvMemory memory({8192, 3, 8192}, fake(mappings)); }
  EXPECT_EQ(mappings.log, (std::vector<std::string>{"map 0", "map 8192", "map 16384", "unmap 16384",
                                                    "unmap 8192", "unmap 0", "release"}));
}

TEST(MappedKvMemory, ADeviceThatRefusesIsLeftAsItWas) {
  Mappings mappings;
  mappings.refused_map = 2;
  EXPECT_THROW(MappedKvMemory({8192, 3, 8192}, fake(mappings)), Error);
  EXPECT_EQ(mappings.log,
            (std::vector<std::string>{"map 0", "map 8192", "unmap 8192", "unmap 0", "release"}));
}

Buffer allocate(size_t bytes) { return Buffer(bytes); }

TEST(KvMemory, WithoutVirtualMemoryOrWhereItRefusesSlabsAreAllocated) {
  Mappings addresses, memory;
  addresses.refuses_addresses = true;
  memory.refused_map = 0;
  int allocations = 0;
  const auto counted = [&](size_t bytes) { return ++allocations, allocate(bytes); };
  const KvSize size{8192, 5, 3 * 8192};
  gpu::open_kv_memory(size, nullptr, counted);
  EXPECT_EQ(allocations, 2);
  gpu::open_kv_memory(size, fake(addresses), counted);
  EXPECT_EQ(allocations, 4);
  gpu::open_kv_memory(size, fake(memory), counted);
  EXPECT_EQ(allocations, 6);
  Mappings willing;
  const auto mapped = gpu::open_kv_memory(size, fake(willing), counted);
  EXPECT_EQ(allocations, 6);
  EXPECT_EQ(mapped->slab(4), willing.base + 4 * 8192);
}

TEST(AllocatedKvMemory, NoAllocationIsTooLargeAndSlabsDoNotOverlap) {
  for (const size_t largest : {size_t{100}, size_t{299}, size_t{300}, size_t{10000}}) {
    std::map<std::byte*, size_t> parts;
    const AllocatedKvMemory memory({100, 7, largest}, [&](size_t bytes) {
      EXPECT_LE(bytes, largest);
      Buffer buffer(bytes);
      parts[static_cast<std::byte*>(buffer.data())] = bytes;
      return buffer;
    });
    size_t total = 0;
    for (const auto& part : parts) total += part.second;
    EXPECT_EQ(total, 700u);
    std::map<std::byte*, int> slabs;
    for (int i = 0; i < 7; ++i) slabs[memory.slab(i)] = i;
    EXPECT_EQ(slabs.size(), 7u);
    std::byte* end = nullptr;
    for (const auto& [data, slab] : slabs) {
      EXPECT_GE(data, end);
      end = data + 100;
      const auto part = std::prev(parts.upper_bound(data));
      EXPECT_LE(end, part->first + part->second);
    }
  }
}

TEST(AllocatedKvMemory, ASlabThatCannotBeAllocatedIsRefusedWithBothSizes) {
  try {
    AllocatedKvMemory({100, 7, 99}, allocate);
    FAIL() << "was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), MR_NO_MEMORY);
    EXPECT_STREQ(e.what(), "a KV slab has 100 bytes, the device's largest allocation is 99");
  }
}

// The device's limit, for what is opened meanwhile.
class Limit {
 public:
  explicit Limit(const char* bytes) { setenv(kName, bytes, 1); }
  ~Limit() { unsetenv(kName); }

 private:
  static constexpr const char* kName = "MILLRACE_SYCL_LARGEST_ALLOCATION";
};

TEST(SyclMemory, SlabsInManyAllocationsGiveTheSameBits) {
  if (!on_device()) GTEST_SKIP() << "NOT TESTED here: the sycl backend, see scripts/test-sycl.sh";
  const auto logits = [](int slabs) {
    Builder b = small_llama();
    Random random(5);
    const std::vector<int32_t> prompt = random.tokens(100, b.vocab);
    Model model("simd", b, slabs);
    model.next_slab = 18;  // 21 slabs are in an allocation of 256 KiB
    Sequence sequence(model);
    std::vector<float> all = model.step({{&sequence, prompt}});
    const std::vector<float> next = model.step({{&sequence, {7}}});
    all.insert(all.end(), next.begin(), next.end());
    return all;
  };
  const std::vector<float> expected = logits(40);
  const Limit limit("262144");
  EXPECT_EQ(logits(40), expected);
}

TEST(SyclMemory, ATensorThatCannotBeAllocatedIsRefusedByItsOp) {
  if (!on_device()) GTEST_SKIP() << "NOT TESTED here: the sycl backend, see scripts/test-sycl.sh";
  Builder b = small_llama();
  b.max_rows = b.max_outputs = 1;  // slots are small
  const Limit limit("12000");
  try {
    Model model("simd", b, 0);
    FAIL() << "was taken";
  } catch (const Failure& e) {
    EXPECT_EQ(e.status, MR_NO_MEMORY);
    EXPECT_STREQ(e.what(),
                 "op 2 (LINEAR, layer -1): 66560 bytes in one piece, the device's largest "
                 "allocation is 12000 bytes; with UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 a GPU "
                 "allocates more, and is slower");
  }
}

TEST(SyclMemory, TiedEmbeddingsAreOnTheDeviceOnce) {
  if (!on_device()) GTEST_SKIP() << "NOT TESTED here: the sycl backend, see scripts/test-sycl.sh";
  Builder b = small_llama();
  const mr_tensor table = b.tensors[b.ops.front().embed.table];
  const auto* bits = static_cast<const uint16_t*>(table.data);
  const std::vector<uint16_t> copy(bits, bits + table.dims[0] * table.dims[1]);
  b.tensors.push_back(table);
  b.ops.back().linear.parts[0] = b.part(static_cast<int>(b.tensors.size()) - 1);
  std::vector<int32_t> tokens(b.vocab);
  for (int32_t i = 0; i < b.vocab; ++i) tokens[i] = i;
  for (const std::string& isa : tested_isas()) {
    const auto run = [&](const void* head, uint64_t& weight_bytes) {
      b.tensors.back().data = head;
      Model model(isa, b, 10);
      weight_bytes = model.info().weight_bytes;
      Sequence sequence(model);
      return model.step({{&sequence, tokens}});
    };
    uint64_t twice = 0, once = 0;
    const std::vector<float> expected = run(copy.data(), twice);
    EXPECT_EQ(run(table.data, once), expected) << isa;
    EXPECT_EQ(twice - once, copy.size() * sizeof copy[0]) << isa;
  }
}

TEST(SyclLinear, OneDnnMultipliesManyRowsOfInt8WhereTheProcessorMultipliesBytes) {
  if (!on_device()) GTEST_SKIP() << "NOT TESTED here: the sycl backend, see scripts/test-sycl.sh";
  const std::vector<std::string> isas = tested_isas();
  if (!cpu::has_vnni() || std::ranges::find(isas, "simd-onednn") == isas.end()) {
    GTEST_SKIP() << "NOT TESTED here: oneDNN's products of int8, which want AVX-512 VNNI";
  }
  Builder b = small_llama();
  b.keep({MR_WEIGHTS_INT8});
  const Model model("simd-onednn", b, 1);
  EXPECT_NE(std::string(model.info().linear).find("int8 by oneDNN"), std::string::npos)
      << model.info().linear;
}

TEST(SyclLinear, WithoutProductsOfOperandsFewRowsAreOursOverOneDnnsFloats) {
  if (!on_device()) GTEST_SKIP() << "NOT TESTED here: the sycl backend, see scripts/test-sycl.sh";
  const char* most = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::vector<std::string> isas = tested_isas();
  if (most == nullptr || std::string(most) != "AVX2" ||
      std::ranges::find(isas, "simd-onednn") == isas.end()) {
    GTEST_SKIP() << "NOT TESTED here: products of floats, which want ONEDNN_MAX_CPU_ISA=AVX2";
  }
  Builder b = small_llama();
  const Model model("simd-onednn", b, 1);
  const std::string name = model.info().linear;
  int used = 0, kinds = 0, own = 0;
  const size_t from = name.find(": ");
  ASSERT_NE(from, std::string::npos) << name;
  ASSERT_EQ(std::sscanf(name.c_str() + from, ": %d of %d kinds, few rows ours in %d", &used, &kinds,
                        &own),
            3)
      << name;
  EXPECT_EQ(used, kinds) << name;
  EXPECT_EQ(own, kinds) << name;
}

// oneTBB's bound on the process, as the device has set it.
size_t tbb_threads() {
  void* tbb = dlopen("libtbb.so.12", RTLD_NOW | RTLD_NOLOAD);
  using Active = size_t (*)(int);
  const auto active = reinterpret_cast<Active>(
      tbb == nullptr ? nullptr : dlsym(tbb, "_ZN3tbb6detail2r127global_control_active_valueEi"));
  return active == nullptr ? 0 : active(0);
}

TEST(SyclThreads, TheDeviceAndOneDnnUseNoMoreThanWasAsked) {
  if (!on_device()) GTEST_SKIP() << "NOT TESTED here: the sycl backend, see scripts/test-sycl.sh";
  {
    const Device two("simd", 2);
    EXPECT_EQ(tbb_threads(), 2u);
    {
      const Device one("simd", 1);
      EXPECT_EQ(tbb_threads(), 1u);
    }
    EXPECT_EQ(tbb_threads(), 2u);
  }
  const Device any("simd", 0);
  EXPECT_NE(tbb_threads(), 1u);
}

}  // namespace
}  // namespace millrace::test
