// The order of AMX's sums, and its instructions where the machine has them. What all
// instruction sets promise is tested in linear_test.cpp, over emulated tiles everywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "amx_emulated.hpp"
#include "cpu/linear/linear.hpp"
#include "cpu/machine/isa.hpp"

namespace millrace::cpu {
namespace {

// One random linear op, K x N, and rows for it.
struct Op {
  Op(int64_t k, int64_t n, int rows, int weights, int group = 0) : k(k), n(n), rows(rows) {
    std::mt19937 random(7);
    const auto fill = [&](std::vector<bf16>& values, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        values.push_back(from_float(static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f));
      }
    };
    fill(w, n * k);
    fill(in, rows * k);
    tensor = {w.data(), MR_BF16, 2, {n, k}, 0, nullptr};
    spec = {{{&tensor, nullptr, 0, n, n, 0}}, k, n, MR_ACT_NONE, false, false, true, weights};
    spec.group = group;
  }
  Op(const Op&) = delete;

  std::vector<float> run(const LinearKernels& kernels) const {
    ThreadPool pool(2);
    return run(kernels, pool);
  }
  std::vector<float> run(const LinearKernels& kernels, ThreadPool& pool) const {
    std::vector<float> out(rows * n);
    Linear::pack(spec, kernels, pool)->run(in.data(), rows, out.data(), pool);
    return out;
  }

  int64_t k, n;
  int rows;
  std::vector<bf16> w, in;
  mr_tensor tensor;
  LinearSpec spec;
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A plain loop per output, without tiles of rows or columns, edges or panels.
TEST(Amx, ASumIsThatOfTheEvenAndOddProductsOfEachTileOfK) {
  constexpr int kTile = 32;
  for (const int64_t k : {1, 31, 32, 33, 500, 1111}) {
    const Op op(k, 45, 70, MR_WEIGHTS_16BIT);
    std::vector<float> expected(op.rows * op.n);
    for (int r = 0; r < op.rows; ++r) {
      for (int64_t n = 0; n < op.n; ++n) {
        float& sum = expected[r * op.n + n];
        for (int64_t from = 0; from < k; from += kTile) {
          float halves[2] = {};
          for (int64_t i = from; i < std::min(k, from + kTile); ++i) {
            halves[i % 2] += to_float(op.in[r * k + i]) * to_float(op.w[n * k + i]);
          }
          sum += halves[0] + halves[1];
        }
      }
    }
    EXPECT_TRUE(same(op.run(emulated_amx_kernels(MR_WEIGHTS_16BIT)), expected)) << "K " << k;
  }
}

TEST(Amx, Int8IsThatOfEveryInstructionSet) {
  const Op op(1111, 45, 70, MR_WEIGHTS_INT8);
  const std::vector<float> out = op.run(emulated_amx_kernels(MR_WEIGHTS_INT8));
  for (const Isa isa : available_isas()) {
    EXPECT_TRUE(same(out, op.run(linear_kernels(isa, MR_WEIGHTS_INT8)))) << isa_name(isa);
  }
}

TEST(Amx, Int4IsThatOfEveryInstructionSet) {
  for (const int group : {32, 64, 128}) {
    for (const int rows : {1, 14, 15, 16, 17, 31, 33, 70}) {
      const Op op(1111, 45, rows, MR_WEIGHTS_INT4, group);
      const std::vector<float> out = op.run(emulated_amx_kernels(MR_WEIGHTS_INT4));
      for (const Isa isa : available_isas()) {
        if (isa == Isa::portable) continue;  // of another class
        EXPECT_TRUE(same(out, op.run(linear_kernels(isa, MR_WEIGHTS_INT4))))
            << isa_name(isa) << ", groups of " << group << ", " << rows << " rows";
      }
    }
  }
}

TEST(Amx, NothingOfOtherRowsIsBehindARow) {
  ThreadPool pool(1);
  for (const int weights : {MR_WEIGHTS_16BIT, MR_WEIGHTS_INT8}) {
    const LinearKernels& kernels = emulated_amx_kernels(weights);
    Op bad(640, 45, 70, weights);
    std::fill(bad.in.begin(), bad.in.end(), bf16{0x7fc0});  // NaN, which scratch memory keeps
    const Op op(33, 45, 70, weights);
    bad.run(kernels, pool);
    EXPECT_TRUE(same(op.run(kernels, pool), op.run(kernels))) << "weights " << weights;
  }
}

TEST(Amx, InstructionsDoWhatTheEmulatedTilesDo) {
  const std::vector<Isa> isas = available_isas();
  if (std::find(isas.begin(), isas.end(), Isa::amx) == isas.end()) {
    GTEST_SKIP() << "NOT TESTED: the instructions of AMX: this machine cannot run them";
  }
  for (const int weights : {MR_WEIGHTS_16BIT, MR_WEIGHTS_INT8}) {
    for (const int rows : {1, 15, 16, 17, 32, 33, 200}) {
      const Op op(1111, 77, rows, weights);
      EXPECT_TRUE(
          same(op.run(linear_kernels(Isa::amx, weights)), op.run(emulated_amx_kernels(weights))))
          << rows << " rows, weights " << weights;
    }
  }
}

}  // namespace
}  // namespace millrace::cpu
