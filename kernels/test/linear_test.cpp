// The values of the CPU backend's linear ops on every instruction set of this machine.
// linear_bits_test.cpp has what changes none of their bits.
#include "cpu/linear/linear.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "amx_emulated.hpp"
#include "avx_vnni_evex.hpp"
#include "cpu/linear/kernels.hpp"
#include "cpu/linear/measure.hpp"
#include "cpu/machine/isa.hpp"
#include "exec/bf16.hpp"
#include "linear_case.hpp"

namespace millrace::cpu {
namespace {

double value(const std::vector<char>& out, bool f32, size_t i) {
  if (f32) {
    float x;
    std::memcpy(&x, out.data() + i * sizeof x, sizeof x);
    return x;
  }
  bf16 x;
  std::memcpy(&x, out.data() + i * sizeof x, sizeof x);
  return to_float(x);
}

void expect_close(Case& c, const Kind& kind, int rows) {
  ThreadPool pool(2);
  c.keep(kind);
  const auto linear = kind.pack(c.spec, pool);
  const std::vector<char> out = c.run(*linear, 0, rows, pool);
  double error = 0, norm = 0;
  for (int r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < c.out_width; ++n) {
      const double expected = c.expected(r, n);
      const double d = value(out, c.ending.out_f32, r * c.out_width + n) - expected;
      error += d * d;
      norm += expected * expected;
    }
  }
  EXPECT_LE(error, (c.ending.out_f32 ? 1e-11 : 1e-5) * norm + 1e-30)
      << isa_name(kind.isa) << " K " << c.in_width << " N " << c.out_width << " rows " << rows
      << " activation " << c.ending.activation;
}

std::vector<Kind> kinds() {
  std::vector<Kind> kinds;
  for (const Isa isa : available_isas()) {
    kinds.push_back({isa});
    kinds.push_back({isa, MR_WEIGHTS_INT8});
    kinds.push_back({isa, MR_WEIGHTS_FP8});
    kinds.push_back({isa, MR_WEIGHTS_NF4, 64});
    for (const int group : {32, 64, 128}) kinds.push_back({isa, MR_WEIGHTS_INT4, group});
  }
  for (const int weights : {MR_WEIGHTS_16BIT, MR_WEIGHTS_INT8}) {
    kinds.push_back({Isa::amx, weights, 0, "Emulated", emulated_amx_kernels});
  }
  for (const int group : {32, 64, 128}) {
    kinds.push_back({Isa::amx, MR_WEIGHTS_INT4, group, "Emulated", emulated_amx_kernels});
  }
  if (available_isas().front() >= Isa::avx512 && has_vnni()) {
    kinds.push_back({Isa::avx2, MR_WEIGHTS_INT8, 0, "VnniByEvex", evex_avx_vnni_kernels});
    kinds.push_back({Isa::avx2, MR_WEIGHTS_INT4, 32, "VnniByEvex", evex_avx_vnni_kernels});
  }
  return kinds;
}

std::string kind_name(const testing::TestParamInfo<Kind>& info) {
  const Kind& kind = info.param;
  std::string name = isa_name(kind.isa);
  std::erase(name, '-');
  name += kind.instead;
  if (kind.weights == MR_WEIGHTS_INT8) name += "Int8";
  if (kind.weights == MR_WEIGHTS_FP8) name += "Fp8";
  if (kind.weights == MR_WEIGHTS_INT4) name += "Int4Group" + std::to_string(kind.group);
  if (kind.weights == MR_WEIGHTS_NF4) name += "Nf4Group" + std::to_string(kind.group);
  return name;
}

INSTANTIATE_TEST_SUITE_P(Linear, EveryKind, testing::ValuesIn(kinds()), kind_name);

INSTANTIATE_TEST_SUITE_P(Linear, EveryIsa, testing::ValuesIn(available_isas()),
                         [](const testing::TestParamInfo<Isa>& info) {
                           return kind_name({Kind{info.param}, info.index});
                         });

TEST_P(EveryKind, AgreesWithAPlainLoopOnAwkwardShapes) {
  for (const int64_t k : {1, 2, 3, 17, 111, 500, 1111}) {
    for (const int64_t n : {1, 3, 17, 33, 111}) {
      Case c(k, n, {.biased = true});
      for (const int rows : {1, 2, 5, 13, 37}) expect_close(c, GetParam(), rows);
    }
  }
}

TEST_P(EveryKind, AgreesWithAPlainLoopInEveryEnding) {
  for (const int activation :
       {MR_ACT_NONE, MR_ACT_SILU, MR_ACT_GELU_TANH, MR_ACT_GELU_ERF, MR_ACT_RELU}) {
    for (const bool gated : {false, true}) {
      for (const bool biased : {false, true}) {
        Case f32(45, 37, {activation, gated, false, true, biased});
        Case residual(45, 37, {activation, gated, true, true, biased});
        Case operand(45, 37, {activation, gated, false, false, biased});
        for (Case* c : {&f32, &residual, &operand}) {
          for (const int rows : {1, 4, 29}) expect_close(*c, GetParam(), rows);
        }
      }
    }
  }
}

TEST_P(EveryIsa, PartsAndBiasesTakeTheirRowsFromTheTensor) {
  // Two heads of [q|k|v] x 3, as BLOOM fuses them; the parts are k, then q.
  constexpr int64_t kHead = 3, kStride = 9, kRows = 18, kWidth = 20;
  const Weights w(kRows, kWidth, 11);
  const std::vector<bf16> in = Random(3).operand(kWidth);
  const LinearSpec spec{
      {{&w.tensor, &w.bias, kHead, 6, kHead, kStride}, {&w.tensor, nullptr, 0, 6, kHead, kStride}},
      kWidth,
      12,
      MR_ACT_NONE,
      false,
      false,
      true};
  ThreadPool pool(2);
  std::vector<float> out(12);
  Linear::pack(spec, GetParam(), pool)->run(in.data(), 1, out.data(), pool);
  const int64_t rows[] = {3, 4, 5, 12, 13, 14, 0, 1, 2, 9, 10, 11};
  for (int i = 0; i < 12; ++i) {
    double expected = i < 6 ? w.biases[rows[i]] : 0;
    for (int64_t k = 0; k < kWidth; ++k) {
      expected +=
          double{to_float(in[k])} * double{to_float(from_float(w.values[rows[i] * kWidth + k]))};
    }
    EXPECT_NEAR(out[i], expected, 1e-5) << "output " << i;
  }
}

TEST_P(EveryIsa, WeightsOfEveryTypeAreRoundedToBf16) {
  const float exact[] = {1.0f, -0.5f, 1.5f, 0.25f, 2.0f, -3.0f};  // in f16 and bf16 alike
  const uint16_t f16[] = {0x3c00, 0xb800, 0x3e00, 0x3400, 0x4000, 0xc200};
  std::vector<bf16> brain;
  for (const float x : exact) brain.push_back(from_float(x));
  const bf16 in[] = {from_float(1), from_float(2), from_float(4)};
  ThreadPool pool(1);
  const mr_tensor tensors[] = {{exact, MR_F32, 2, {2, 3}, 0, nullptr},
                               {f16, MR_F16, 2, {2, 3}, 0, nullptr},
                               {brain.data(), MR_BF16, 2, {2, 3}, 0, nullptr}};
  for (const mr_tensor& t : tensors) {
    const LinearSpec spec{{{&t, nullptr, 0, 2, 2, 0}}, 3, 2, MR_ACT_NONE, false, false, true};
    float out[2];
    Linear::pack(spec, GetParam(), pool)->run(in, 1, out, pool);
    EXPECT_EQ(out[0], 6.0f) << "type " << t.dtype;
    EXPECT_EQ(out[1], -7.75f) << "type " << t.dtype;
  }
}

TEST_P(EveryIsa, MeasuresAreThoseOfAMachine) {
  ThreadPool pool(1);
  Limits limits(GetParam(), pool, 4 << 20);
  EXPECT_GT(limits.read_gbps(), 0.01);
  EXPECT_GT(limits.peak_gflops(MR_WEIGHTS_16BIT), 0.01);
  EXPECT_GT(limits.peak_gflops(MR_WEIGHTS_INT8), 0.01);
}

// What cannot be multiplied shows as NaN in its own row and column, and nowhere else.
TEST_P(EveryKind, NanAndInfinityStayInTheirRowsAndColumns) {
  Case c(70, 40, {});
  c.in[3 * 70 + 5] = 0x7f80;                      // an infinity in row 3
  c.weights.values[7 * 70 + 69] = std::nanf("");  // and a NaN in column 7
  c.spec.weights = GetParam().weights;
  c.spec.group = GetParam().group;
  ThreadPool pool(2);
  const std::vector<char> out = c.run(*GetParam().pack(c.spec, pool), 0, 5, pool);
  for (int r = 0; r < 5; ++r) {
    for (int n = 0; n < 40; ++n) {
      const bool bad = r == 3 || n == 7;
      EXPECT_EQ(std::isfinite(value(out, true, r * 40 + n)), !bad)
          << "row " << r << " column " << n;
    }
  }
}

TEST(Isa, NamesGoBothWays) {
  for (const Isa isa : available_isas()) EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  EXPECT_EQ(isa_from_name("avx1024"), std::nullopt);
}

}  // namespace
}  // namespace millrace::cpu
