#include "gpu/dequantized_linear.hpp"

#include <algorithm>

#include "exec/bf16.hpp"
#include "exec/quantize.hpp"
#include "gpu/coded_weights.hpp"

namespace millrace::gpu {
namespace {

class DequantizedLinear : public Linear {
 public:
  // levels: of NF4, else null.
  DequantizedLinear(const std::vector<LinearKernel>& kernels, CodedWeights weights,
                    const void* levels)
      : kernels_(kernels), weights_(std::move(weights)), levels_(levels) {}

  void run(Stream& stream, int rows, const void* in, void* out) override {
    const LinearKernel& kernel = kernel_for(kernels_, rows, weights_.groups());
    if (levels_ != nullptr) {
      weights_.multiply(stream, kernel, rows, out, in, levels_);
    } else {
      weights_.multiply(stream, kernel, rows, out, in);
    }
  }

  int tile_rows(int rows) const override {
    return kernel_for(kernels_, rows, weights_.groups()).rows;
  }
  void run_tiles(Stream& stream, const TiledRows& rows, const void* in, void* out) override {
    const LinearKernel& kernel = kernel_for(kernels_, rows.tile_rows, weights_.groups());
    if (levels_ != nullptr) {
      weights_.multiply_tiles(stream, kernel, rows, out, in, levels_);
    } else {
      weights_.multiply_tiles(stream, kernel, rows, out, in);
    }
  }

  uint64_t bytes() const override { return weights_.bytes(); }

 private:
  const std::vector<LinearKernel>& kernels_;
  CodedWeights weights_;
  const void* levels_;
};

// As device/dequantize.cpp has them. most: of a device without a matrix engine; tiles: 0 where
// there is no such kernel.
std::vector<LinearKernel> kernels(const Bundle& bundle, const std::string& prefix, Target target,
                                  int most, int tiles) {
  if (!target.xmx()) return kernels_by_rows(bundle, prefix, {1, 2, most});
  std::vector<LinearKernel> all = kernels_by_rows(bundle, prefix, {1, 2, 4, 8});
  if (tiles > 0) all.push_back({tiles, bundle.kernel(prefix + "tiles")});
  return all;
}

std::vector<uint16_t> nf4_levels() {
  std::vector<uint16_t> levels;
  for (const float level : kNf4Levels) levels.push_back(cpu::from_float(level));
  return levels;
}

}  // namespace

bool dequantizes(const Program& program, bool of_experts) {
  return std::any_of(program.ops.begin(), program.ops.end(), [&](const Op& op) {
    return op.kind == MR_OP_LINEAR && (op.linear.routed != MR_ROUTED_NONE) == of_experts &&
           op.linear.weights != MR_WEIGHTS_16BIT && !quantizes_rows(op.linear.weights);
  });
}

DequantizedLinears::DequantizedLinears(Stream& stream, Target target, const Bundle& bundle)
    : stream_(stream),
      target_(target),
      fp8_(kernels(bundle, "mr_fp8_", target, 4, 2 * target.lanes)),
      nf4_(kernels(bundle, "mr_nf4_", target, 3, target.lanes == 16 ? 16 : 0)),
      levels_(stream.upload(nf4_levels())) {}

std::unique_ptr<Linear> DequantizedLinears::make(const LinearKind& kind, const Program& program,
                                                 const Op& op) {
  const bool nf4 = op.linear.weights == MR_WEIGHTS_NF4;
  (nf4 ? has_nf4_ : has_fp8_) = true;
  return std::make_unique<DequantizedLinear>(
      nf4 ? nf4_ : fp8_, CodedWeights(stream_, coded_layout(target_, false), kind, program, op),
      nf4 ? levels_.data() : nullptr);
}

std::string DequantizedLinears::name() const {
  const std::string name = has_fp8_ ? "fp8" : "";
  return !has_nf4_ ? name : name.empty() ? "nf4" : name + ", nf4";
}

}  // namespace millrace::gpu
