// Linear ops of the CPU backend with weights and rows of random numbers, and the values that they
// must have.
#ifndef MILLRACE_TEST_LINEAR_CASE_HPP
#define MILLRACE_TEST_LINEAR_CASE_HPP

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cpu/linear/kernels.hpp"
#include "cpu/linear/linear.hpp"
#include "cpu/machine/isa.hpp"
#include "exec/bf16.hpp"
#include "exec/program.hpp"
#include "exec/quantize.hpp"

namespace millrace::cpu {

inline constexpr int kMaxRows = 257;

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
        tensor{values.data(), MR_F32, 2, {rows, cols}, 0, nullptr},
        bias{biases.data(), MR_F32, 1, {rows, 0}, 0, nullptr} {}
  Weights(const Weights&) = delete;

  std::vector<float> values, biases;
  mr_tensor tensor, bias;
};

inline double activate(double x, int activation) {
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

class EveryKind : public testing::TestWithParam<Kind> {};

class EveryIsa : public testing::TestWithParam<Isa> {};

}  // namespace millrace::cpu

#endif
