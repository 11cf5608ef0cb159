// Weights of blocks: what the blocks stand for, and linear ops on every instruction set of this machine.
#include "exec/blocks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "amx_emulated.hpp"
#include "avx_vnni_evex.hpp"
#include "block_matrix.hpp"
#include "cpu/linear/block_panels.hpp"
#include "cpu/linear/kernels.hpp"
#include "cpu/linear/linear.hpp"
#include "cpu/machine/isa.hpp"
#include "exec/bf16.hpp"
#include "exec/quantize.hpp"
#include "exec/tensor.hpp"

namespace millrace::cpu {
namespace {

struct Kernels {
  std::string name;
  const LinearKernels* kernels;
};

std::vector<Kernels> all_kernels(BlockWeights weights = kIntegerBlocks) {
  std::vector<Kernels> all;
  for (const Isa isa : available_isas()) {
    all.push_back({isa_name(isa), &linear_kernels(isa, weights)});
  }
  if (weights != kIntegerBlocks) return all;
  all.push_back({"emulated amx", &emulated_amx_kernels(MR_WEIGHTS_BLOCKS)});
#if defined(__x86_64__)
  const auto runs = [isas = available_isas()](Isa isa) {
    return std::find(isas.begin(), isas.end(), isa) != isas.end();
  };
  if (runs(Isa::avx2)) all.push_back({"avx2 without VNNI", &linear_blocks_avx2()});
  if (runs(Isa::avx512) && has_vnni()) {
    all.push_back({"AVX-VNNI in the other encoding", &evex_avx_vnni_kernels(MR_WEIGHTS_BLOCKS)});
  }
#endif
  return all;
}

// An op of parts of some types, one below the other or gated.
struct Op {
  Op(const std::vector<const BlockType*>& types, int64_t rows, int64_t width, bool gated)
      : width(width) {
    const bool integers = types[0]->weights == kIntegerBlocks;
    group = integers ? 32 : kMostBlock;
    for (const BlockType* type : types) {
      matrices.emplace_back(*type, rows, width, 11 + type->dtype);
      group = std::min(group, type->group);
    }
    for (const Matrix& m : matrices) spec.parts.push_back({&m.tensor, nullptr, 0, rows, rows, 0});
    spec.in_width = width;
    spec.out_width = gated ? rows : rows * static_cast<int64_t>(types.size());
    spec.gated = gated;
    spec.out_f32 = true;
    spec.weights = types[0]->weights;
    spec.group = group;
  }

  std::vector<double> weight(int64_t row) const {
    const Matrix& m = matrices[row / matrices[0].tensor.dims[0]];
    std::vector<float> w(width);
    read_row(m.tensor, row % m.tensor.dims[0], w.data());
    return {w.begin(), w.end()};
  }

  std::vector<Matrix> matrices;
  LinearSpec spec{};
  int64_t width;
  int group;
};

std::vector<bf16> random_rows(int rows, int64_t width) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<bf16> x(rows * width);
  for (bf16& v : x) v = from_float(normal(random));
  return x;
}

std::vector<float> run(const Linear& linear, const bf16* in, int rows, ThreadPool& pool) {
  std::vector<float> out(rows * linear.out_width());
  linear.run(in, rows, out.data(), pool);
  return out;
}

void expect_products(const Op& op, const std::string& what) {
  constexpr int kRows = 3;
  ThreadPool pool(2);
  const std::vector<bf16> in = random_rows(kRows, op.width);
  std::vector<double> x(in.size());
  const auto weights = static_cast<BlockWeights>(op.spec.weights);
  for (size_t i = 0; i < in.size(); i += op.group) {
    std::vector<float> part(op.group);
    for (int k = 0; k < op.group; ++k) part[k] = to_float(in[i + k]);
    std::vector<int8_t> codes(op.group);
    const double scale = quantize_int8(part.data(), op.group, codes.data());
    for (int k = 0; k < op.group; ++k)
      x[i + k] = weights == kIntegerBlocks ? scale * codes[k] : part[k];
  }
  std::vector<double> products;  // [kRows][rows of all parts]
  const auto all = static_cast<int64_t>(op.matrices.size()) * op.matrices[0].tensor.dims[0];
  for (int64_t n = 0; n < all; ++n) {
    const std::vector<double> w = op.weight(n);
    for (int r = 0; r < kRows; ++r) {
      double sum = 0;
      for (int64_t k = 0; k < op.width; ++k) sum += w[k] * x[r * op.width + k];
      products.push_back(sum);
    }
  }
  for (const Kernels& k : all_kernels(weights)) {
    const auto linear = Linear::pack(op.spec, *k.kernels, pool);
    const std::vector<float> out = run(*linear, in.data(), kRows, pool);
    double error = 0, norm = 0;
    for (int r = 0; r < kRows; ++r) {
      for (int64_t n = 0; n < op.spec.out_width; ++n) {
        double expected = products[n * kRows + r];
        if (op.spec.gated) expected *= products[(n + op.spec.out_width) * kRows + r];
        const double d = out[r * op.spec.out_width + n] - expected;
        error += d * d;
        norm += expected * expected;
      }
    }
    EXPECT_GT(norm, 0) << what;
    // Levels of NF4 are rounded to bf16.
    EXPECT_LE(error, (weights == kNf4Blocks ? 1e-5 : 1e-11) * norm) << k.name << " " << what;
  }
}

TEST(Blocks, EveryTypesProductsAreThoseOfItsNumbers) {
  for (const BlockType* type : all_types()) {
    for (const int64_t width : {256, 512 + (type->elements == 32 ? 96 : 256)}) {
      expect_products(Op({type}, 37, width, false),
                      std::string(type->name) + " of " + std::to_string(width));
    }
  }
}

// Vectors with columns of two types keep what both have.
TEST(Blocks, PartsMayBeOfSeveralTypes) {
  const std::vector<const BlockType*> types = all_types();
  for (size_t i = 0; i < types.size(); ++i) {
    const BlockType *next = types[(i + 1) % types.size()], *third = types[(i + 5) % types.size()];
    const std::string names = std::string(types[i]->name) + " " + next->name + " " + third->name;
    expect_products(Op({types[i], next, third}, 24, 512, false), names);
    expect_products(Op({types[i], next}, 40, 256, true), "gated " + names);
  }
}

TEST(Blocks, FloatsProductsAreThoseOfTheirNumbers) {
  for (const BlockType* type : float_types()) {
    const std::string name = type->name;
    for (const int64_t width : {128, 640}) expect_products(Op({type}, 37, width, false), name);
    expect_products(Op({type, type}, 40, 256, true), "gated " + name);
    expect_products(Op({type, type, type}, 24, 384, false), "three of " + name);
  }
  const BlockType *large = block_type(MR_BLOCKS + 128), *small = block_type(MR_BLOCKS + 129);
  expect_products(Op({large, small}, 40, 256, false), "FP8 in groups of two sizes");
}

// A row has the same bits alone and among others, with any number of threads.
TEST(Blocks, BitsDependOnNoOtherRow) {
  constexpr int kRows = 75;
  for (const BlockType* type : all_types({kIntegerBlocks, kFp8Blocks, kNf4Blocks})) {
    const std::string name = type->name;
    const bool chosen = type->weights != kIntegerBlocks || name == "Q4_K" || name == "Q6_K" ||
                        name == "Q8_0" || name == "Q2_K";
    if (!chosen) continue;
    const Op op({type}, 200, 768, false);
    const std::vector<bf16> in = random_rows(kRows, op.width);
    ThreadPool one(1), three(3);
    for (const Kernels& k : all_kernels(type->weights)) {
      const auto linear = Linear::pack(op.spec, *k.kernels, three);
      const std::vector<float> all = run(*linear, in.data(), kRows, three);
      for (const int rows : {1, 2, 5, 14, 15, 31}) {
        for (int first = 0; first + rows <= kRows; first += 22) {
          const std::vector<float> some = run(*linear, &in[first * op.width], rows, one);
          EXPECT_EQ(0, std::memcmp(some.data(), &all[first * op.spec.out_width],
                                   some.size() * sizeof(float)))
              << k.name << " " << name << " rows " << rows << " from " << first;
        }
      }
    }
  }
}

#if defined(__x86_64__)
// All instruction sets that fuse products and sums are of one class of numerics.
TEST(Blocks, AllX86KernelsHaveTheSameBits) {
  ThreadPool pool(2);
  for (const BlockType* type : all_types({kIntegerBlocks, kFp8Blocks, kNf4Blocks})) {
    const Op op({type}, 37, 512, false);
    std::vector<bf16> in = random_rows(9, op.width);
    std::vector<float> first;
    for (const Kernels& k : all_kernels(type->weights)) {
      if (k.kernels == &linear_kernels(Isa::portable, type->weights)) continue;
      const std::vector<float> out =
          run(*Linear::pack(op.spec, *k.kernels, pool), in.data(), 9, pool);
      if (first.empty()) first = out;
      EXPECT_EQ(0, std::memcmp(first.data(), out.data(), out.size() * sizeof(float)))
          << k.name << " " << type->name;
    }
  }
}
#endif

TEST(Blocks, ARowThatIsNotFiniteHasNoOtherResult) {
  ThreadPool pool(1);
  const Op op({block_type(MR_BLOCKS + 12)}, 32, 512, false);
  std::vector<bf16> in = random_rows(2, op.width);
  const auto linear =
      Linear::pack(op.spec, linear_kernels(available_isas()[0], MR_WEIGHTS_BLOCKS), pool);
  const std::vector<float> before = run(*linear, &in[op.width], 1, pool);
  in[300] = 0x7fc0;
  const std::vector<float> out = run(*linear, in.data(), 2, pool);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(0, std::memcmp(before.data(), &out[32], 32 * sizeof(float)));
}

// The rows of q and k of a GGUF file: row j of a head's first half is row 2j, of the second 2j + 1.
TEST(Blocks, InterleavedHalvesAreTakenInOrder) {
  const mr_part part{0, -1, 16, 16, 8, 8, 1, 0};
  const int expected[] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (int i = 0; i < 16; ++i) EXPECT_EQ(16 + i / 8 * 8 + expected[i % 8], part_row(part, i));
}

// What it takes beside the file: integers of 6 bits are bytes, and so on.
TEST(Blocks, PackedTypesTakeLittleMoreThanTheFile) {
  for (const BlockType* type : all_types({kIntegerBlocks, kFp8Blocks, kNf4Blocks})) {
    const double file = 8.0 * type->bytes / type->elements;
    const double packed = 8.0 * span_bytes(*type, 1, kSpan) / kSpan;
    const bool grid = type->levels != nullptr && type->elements == kMostBlock &&
                      std::string(type->name) != "IQ4_XS";
    EXPECT_LE(packed, grid || std::string(type->name) == "TQ1_0" ? file + 2.2 : file * 1.25)
        << type->name;
  }
}

}  // namespace
}  // namespace millrace::cpu
