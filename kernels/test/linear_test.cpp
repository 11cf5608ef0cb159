// The linear ops of the CPU backend on every instruction set of this machine.
#include "cpu/linear/linear.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "amx_emulated.hpp"
#include "avx_vnni_evex.hpp"
#include "cpu/linear/kernels.hpp"
#include "cpu/linear/measure.hpp"
#include "cpu/linear/tune.hpp"
#include "cpu/machine/isa.hpp"
#include "exec/bf16.hpp"
#include "exec/program.hpp"
#include "exec/quantize.hpp"

namespace millrace::cpu {
namespace {

constexpr int kMaxRows = 257;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float uniform() { return static_cast<float>(engine_() >> 8) * 0x1p-23f - 1.0f; }
  std::vector<bf16> operand(int64_t n) {
    std::vector<bf16> values(n);
    for (bf16& v : values) v = from_float(uniform());
    return values;
  }
  std::vector<float> floats(int64_t n) {
    std::vector<float> values(n);
    for (float& v : values) v = uniform();
    return values;
  }

 private:
  std::mt19937 engine_;
};

// A float tensor and what a linear op makes of it.
struct Weights {
  Weights(int64_t rows, int64_t cols, uint32_t seed)
      : values(Random(seed).floats(rows * cols)),
        biases(Random(seed + 1).floats(rows)),
        tensor{values.data(), MR_F32, 2, {rows, cols}},
        bias{biases.data(), MR_F32, 1, {rows, 0}} {}
  Weights(const Weights&) = delete;

  std::vector<float> values, biases;
  mr_tensor tensor, bias;
};

double activate(double x, int activation) {
  switch (activation) {
    case MR_ACT_SILU:
      return x / (1 + std::exp(-x));
    case MR_ACT_GELU_TANH:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MR_ACT_GELU_ERF:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case MR_ACT_RELU:
      return x > 0 ? x : 0;
    default:
      return x;
  }
}

// An instruction set and what the weights are kept as.
struct Kind {
  Isa isa;
  int weights = MR_WEIGHTS_16BIT;
  int group = 0;
  const char* instead = "";  // of the machine's own instructions, kernels has
  const LinearKernels& (*kernels)(int weights) = nullptr;

  std::unique_ptr<Linear> pack(const LinearSpec& spec, ThreadPool& pool) const {
    return Linear::pack(spec, kernels ? kernels(weights) : linear_kernels(isa, weights), pool);
  }
};

struct Ending {
  int activation = MR_ACT_NONE;
  bool gated = false, accumulate = false, out_f32 = true, biased = false;
};

struct Case {
  Case(int64_t k, int64_t n, Ending e)
      : ending(e),
        in_width(k),
        out_width(n),
        weights(n * (e.gated ? 2 : 1), k, 7),
        in(Random(3).operand(kMaxRows * k)),
        before(Random(5).floats(kMaxRows * n)) {
    const mr_tensor* bias = e.biased ? &weights.bias : nullptr;
    for (int part = 0; part <= (e.gated ? 1 : 0); ++part) {
      spec.parts.push_back({&weights.tensor, bias, part * n, n, n, 0});
    }
    spec.in_width = k;
    spec.out_width = n;
    spec.activation = e.activation;
    spec.gated = e.gated;
    spec.accumulate = e.accumulate;
    spec.out_f32 = e.out_f32;
    keep({});
  }

  // From here on the op's weights are of a kind, and so are those that are expected.
  void keep(const Kind& kind) {
    spec.weights = kind.weights;
    spec.group = kind.group;
    kept.clear();
    taken.clear();
    for (const float w : weights.values) kept.push_back(to_float(from_float(w)));
    for (const bf16 x : in) taken.push_back(to_float(x));
    if (kind.weights == MR_WEIGHTS_16BIT) return;
    const int64_t group = in_groups(kind.weights) ? kind.group : in_width;
    for (size_t row = 0; row < weights.values.size(); row += in_width) {
      for (int64_t k = 0; k < in_width; k += group) {
        const int64_t n = std::min(group, in_width - k);
        quantize(&weights.values[row + k], n, kind.weights, &kept[row + k]);
      }
    }
    if (!quantizes_rows(kind.weights)) return;
    for (size_t row = 0; row < taken.size(); row += in_width) {
      const std::vector<float> x(taken.begin() + row, taken.begin() + row + in_width);
      quantize(x.data(), in_width, MR_WEIGHTS_INT8, &taken[row]);
    }
  }

  // The numbers that the codes stand for.
  static void quantize(const float* w, int64_t n, int type, double* to) {
    std::vector<uint8_t> codes(n);
    const auto width = static_cast<int>(n);
    double scale = 0;
    switch (type) {
      case MR_WEIGHTS_INT8:
        scale = quantize_int8(w, n, reinterpret_cast<int8_t*>(codes.data()));
        for (int i = 0; i < width; ++i) to[i] = scale * static_cast<int8_t>(codes[i]);
        break;
      case MR_WEIGHTS_INT4:
        scale = quantize_int4(w, width, codes.data());
        for (int i = 0; i < width; ++i) to[i] = scale * (codes[i] - 8);
        break;
      case MR_WEIGHTS_FP8:
        scale = quantize_fp8(w, n, codes.data());
        for (int i = 0; i < width; ++i) to[i] = scale * double{fp8_value(codes[i])};
        break;
      case MR_WEIGHTS_NF4:
        scale = quantize_nf4(w, width, codes.data());
        for (int i = 0; i < width; ++i) to[i] = scale * double{kNf4Levels[codes[i]]};
        break;
    }
  }

  // The bytes of `rows` rows of out, beginning with row `first` of in.
  std::vector<char> run(const Linear& linear, int first, int rows, ThreadPool& pool) const {
    const size_t element = ending.out_f32 ? sizeof(float) : sizeof(bf16);
    std::vector<char> out(rows * out_width * element);
    if (ending.accumulate) std::memcpy(out.data(), &before[first * out_width], out.size());
    linear.run(in.data() + first * in_width, rows, out.data(), pool);
    return out;
  }

  double expected(int row, int64_t column) const {
    const auto product = [&](int64_t n) {
      double sum = ending.biased ? weights.biases[n] : 0;
      for (int64_t k = 0; k < in_width; ++k) {
        sum += taken[row * in_width + k] * kept[n * in_width + k];
      }
      return sum;
    };
    double y = activate(product(column), ending.activation);
    if (ending.gated) y *= product(out_width + column);
    return ending.accumulate ? before[row * out_width + column] + y : y;
  }

  Ending ending;
  int64_t in_width, out_width;
  Weights weights;
  std::vector<bf16> in;
  std::vector<float> before;
  LinearSpec spec;
  std::vector<double> kept, taken;  // the values of weights and rows as they are multiplied
};

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

class EveryKind : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Linear, EveryKind, testing::ValuesIn(kinds()), kind_name);

class EveryIsa : public testing::TestWithParam<Isa> {};

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

// The promise of the whole project rests on this one.
TEST_P(EveryKind, ARowsBitsDependOnNeitherTheOtherRowsNorTheThreads) {
  struct Shape {
    int64_t k, n;
    Ending ending;
  };
  // 1111 makes several blocks of K, 700 several tasks for each thread.
  for (const Shape& s : {Shape{1111, 67, {}}, Shape{64, 700, {.out_f32 = false}},
                         Shape{129, 65, {MR_ACT_SILU, true, false, false, true}},
                         Shape{600, 40, {MR_ACT_GELU_ERF, false, true, true, true}}}) {
    Case c(s.k, s.n, s.ending);
    c.keep(GetParam());
    ThreadPool one(1);
    const auto linear = GetParam().pack(c.spec, one);
    std::vector<char> alone;
    for (int r = 0; r < kMaxRows; ++r) {
      const std::vector<char> row = c.run(*linear, r, 1, one);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    const size_t row_bytes = alone.size() / kMaxRows;
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      for (const int rows : {1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 100, 257}) {
        for (const int first : {0, kMaxRows - rows}) {
          const std::vector<char> out = c.run(*linear, first, rows, pool);
          ASSERT_EQ(std::memcmp(out.data(), alone.data() + first * row_bytes, out.size()), 0)
              << rows << " rows from " << first << ", " << threads << " threads, K " << s.k;
        }
      }
    }
  }
}

// Weights that come from memory go by other blocks than those that a cache holds.
TEST_P(EveryKind, ARowsBitsAreThoseOfItAloneWithLargeWeights) {
  Case c(2050, 3901, {.out_f32 = false});
  c.spec.weights = GetParam().weights;
  c.spec.group = GetParam().group;
  ThreadPool pool(2);
  const auto linear = GetParam().pack(c.spec, pool);
  for (const int rows : {2, 29, 61, 135}) {
    const std::vector<char> out = c.run(*linear, 0, rows, pool);
    const size_t row_bytes = out.size() / rows;
    for (const int r : {0, rows / 2, rows - 1}) {
      const std::vector<char> alone = c.run(*linear, r, 1, pool);
      ASSERT_EQ(std::memcmp(out.data() + r * row_bytes, alone.data(), row_bytes), 0)
          << "row " << r << " of " << rows;
    }
  }
}

// As the ops do that read one norm.
TEST_P(EveryKind, AnOperandIsOfUseToLargeAndSmallWeights) {
  Case small(2050, 40, {}), large(2050, 3901, {});
  ThreadPool pool(2);
  std::unique_ptr<Linear> ops[2];
  int op = 0;
  for (Case* c : {&small, &large}) {
    c->spec.weights = GetParam().weights;
    c->spec.group = GetParam().group;
    ops[op++] = GetParam().pack(c->spec, pool);
  }
  ASSERT_TRUE(ops[0]->reads_like(*ops[1]));
  for (const int rows : {33, 100}) {
    Pages room(ops[0]->operand_room(rows));
    const auto rows_of = [&](int first, int, int) { return &large.in[first * large.in_width]; };
    const Linear::Operand operand = ops[0]->pack_rows(rows, room.data(), pool, rows_of);
    std::vector<float> out(rows * large.out_width);
    ops[1]->run(operand, out.data(), pool);
    const std::vector<char> expected = large.run(*ops[1], 0, rows, pool);
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), expected.size()), 0) << rows << " rows";
  }
}

TEST_P(EveryKind, EveryPrefetchVariantGivesTheSameBits) {
  Case c(129, 700, {.biased = true});
  c.keep(GetParam());
  ThreadPool pool(2);
  const auto linear = GetParam().pack(c.spec, pool);
  for (int rows = 1; rows <= linear->max_tile_rows(); ++rows) {
    linear->set_prefetch_variant(rows, 0);
    const std::vector<char> expected = c.run(*linear, 0, rows, pool);
    for (int variant = 1; variant < kPrefetchVariants; ++variant) {
      linear->set_prefetch_variant(rows, variant);
      EXPECT_EQ(c.run(*linear, 0, rows, pool), expected) << rows << " rows, variant " << variant;
    }
  }
}

TEST_P(EveryKind, TuningChangesNoBits) {
  Case c(600, 300, {MR_ACT_SILU, true, false, false, true});
  c.keep(GetParam());
  ThreadPool pool(2);
  const auto linear = GetParam().pack(c.spec, pool);
  const std::vector<char> expected = c.run(*linear, 0, kMaxTileRows + 5, pool);
  tune_prefetch({linear.get()}, pool);
  EXPECT_EQ(c.run(*linear, 0, kMaxTileRows + 5, pool), expected);
  for (int rows = 1; rows <= linear->max_tile_rows(); ++rows) {
    const std::vector<char> out = c.run(*linear, 0, rows, pool);
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size()), 0) << rows << " rows";
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
  const mr_tensor tensors[] = {
      {exact, MR_F32, 2, {2, 3}}, {f16, MR_F16, 2, {2, 3}}, {brain.data(), MR_BF16, 2, {2, 3}}};
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

// Weights that FP8 keeps exactly give the bits of 16-bit weights: products and sums are theirs.
TEST(Linear, Fp8SumsAreThoseOf16Bits) {
  Case c(1111, 67, {});
  for (float& w : c.weights.values)
    w = fp8_value(static_cast<uint8_t>(std::lround(w * 100) & 0xf7));
  for (int64_t n = 0; n < c.out_width; ++n) c.weights.values[n * c.in_width] = kFp8Largest;
  ThreadPool pool(2);
  for (const Isa isa : available_isas()) {
    if (isa == Isa::amx) continue;                         // its tiles are not for FP8
    if (isa == Isa::avx512_bf16 && !has_vbmi()) continue;  // FP8 is AVX-512's there
    c.spec.weights = MR_WEIGHTS_16BIT;
    const auto bits16 = Linear::pack(c.spec, isa, pool);
    c.spec.weights = MR_WEIGHTS_FP8;
    const auto fp8 = Linear::pack(c.spec, isa, pool);
    for (const int rows : {1, 5, 40}) {
      EXPECT_EQ(c.run(*fp8, 0, rows, pool), c.run(*bits16, 0, rows, pool)) << isa_name(isa);
    }
  }
}

TEST(Linear, FloatInstructionSetsAgreeBitForBit) {
  const Case c(1111, 67, {.biased = true});
  ThreadPool pool(2);
  const auto portable = Linear::pack(c.spec, Isa::portable, pool);
  for (const Isa isa : available_isas()) {
    if (isa >= Isa::avx512_bf16) continue;  // add pairs in an order of their own
    const auto linear = Linear::pack(c.spec, isa, pool);
    for (const int rows : {1, 5, 40}) {
      EXPECT_EQ(c.run(*linear, 0, rows, pool), c.run(*portable, 0, rows, pool)) << isa_name(isa);
    }
  }
}

TEST(Isa, NamesGoBothWays) {
  for (const Isa isa : available_isas()) EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  EXPECT_EQ(isa_from_name("avx1024"), std::nullopt);
}

}  // namespace
}  // namespace millrace::cpu
