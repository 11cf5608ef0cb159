#include "gpu/quantized_linear.hpp"

#include <algorithm>

#include "gpu/coded_weights.hpp"
#include "gpu/onednn.hpp"

namespace millrace::gpu {
namespace {

// Steps of this many rows or fewer are ours beside oneDNN, which runs on processors alone. From three rows on it is faster.
constexpr int kMostOwnInt8Rows = 2;

}  // namespace

class QuantizedLinear : public Linear {
 public:
  QuantizedLinear(QuantizedLinears& shared, const LinearKind& kind, const Program& p, const Op& op)
      : shared_(shared),
        kind_(kind),
        kernels_(op.linear.weights == MR_WEIGHTS_INT4 ? shared.int4_ : shared.int8_),
        weights_(shared.stream_, coded_layout(shared.target_, shared.target_.mma()), kind, p, op) {}

  void run(Stream& stream, int rows, const void* in, void* out) override {
    if (!coded_) quantize_rows(stream, rows, in);
    if (!onednn_ || rows <= kMostOwnInt8Rows) {
      weights_.multiply(stream, kernel_for(kernels_, rows, weights_.groups()), rows, out, codes(0),
                        row_scales(0));
      return;
    }
    const size_t row_bytes = size_t(kind_.width) * (kind_.out_f32 ? 4 : 2);
    for (int first = 0; first < rows; first += kOneDnnRows) {
      run_onednn(stream, first, std::min(rows - first, kOneDnnRows),
                 static_cast<std::byte*>(out) + row_bytes * first);
    }
  }

  int tile_rows(int rows) const override {
    return kernel_for(kernels_, rows, weights_.groups()).rows;
  }
  void run_tiles(Stream& stream, const TiledRows& rows, const void* in, void* out) override {
    quantize_rows(stream, rows.rows, in);
    weights_.multiply_tiles(stream, kernel_for(kernels_, rows.tile_rows, weights_.groups()), rows,
                            out, codes(0), row_scales(0));
  }

  RowCodes take_codes() override {
    coded_ = true;
    return {shared_.codes_.data(), shared_.row_scales_.data(), padded_depth()};
  }

  uint64_t bytes() const override { return weights_.bytes(); }

  int columns() const { return weights_.columns(); }
  int padded_depth() const { return weights_.shape().padded_depth; }
  // From here on oneDNN computes many rows.
  void set_onednn(Int8Products& products) {
    onednn_ = true;
    weights_.change_words(
        [&](Buffer words) { return products.adopt(std::move(words), padded_depth(), columns()); });
  }

 private:
  void quantize_rows(Stream& stream, int rows, const void* in) {
    stream.launch(shared_.quantize_, rows, kRowItems, in, shared_.codes_.data(),
                  shared_.row_scales_.data(), kind_.depth, padded_depth());
  }
  void run_onednn(Stream& stream, int first, int rows, void* out) {
    shared_.onednn_->run(kind_.most_rows, rows, padded_depth(), columns(), codes(first),
                         weights_.words(), shared_.sums_.data());
    CodedShape s = weights_.shape();
    s.rows = rows;
    stream.launch(*shared_.finish_, size_t(rows) * s.blocks,
                  size_t(weights_.shares()) * shared_.target_.lanes,
                  static_cast<const void*>(shared_.sums_.data()), row_scales(first),
                  weights_.scales(), weights_.bias(), out, s);
  }

  const void* codes(int row) const {
    return static_cast<const std::byte*>(shared_.codes_.data()) + size_t(row) * padded_depth();
  }
  const void* row_scales(int row) const {
    return static_cast<const float*>(shared_.row_scales_.data()) + row;
  }

  QuantizedLinears& shared_;
  LinearKind kind_;
  const std::vector<LinearKernel>& kernels_;
  CodedWeights weights_;
  bool onednn_ = false;  // computes many rows
  bool coded_ = false;   // the op before leaves codes
};

bool quantized(const Program& program, bool of_experts) {
  return std::any_of(program.ops.begin(), program.ops.end(), [&](const Op& op) {
    return op.kind == MR_OP_LINEAR && (op.linear.routed != MR_ROUTED_NONE) == of_experts &&
           quantizes_rows(op.linear.weights);
  });
}

QuantizedLinears::QuantizedLinears(Stream& stream, Target target, const Bundle& bundle)
    : stream_(stream), target_(target), quantize_(bundle.kernel("mr_quantize_rows")) {
  if (target.mma()) {
    const int units = compute_units(stream.device());
    int8_ =
        mma_kernels(bundle, target, "mr_int8_", {8, 16, 32}, kLargeTile, 1, kWide, kWidest, units);
    int4_ = mma_kernels(bundle, target, "mr_int4_", {8, 16}, kLargeTileInt4, 2, kWideInt4,
                        kWidestInt4, units);
    return;
  }
  const std::vector<int> rows = target.xmx() ? std::vector{1, 2, 4, 8} : std::vector{1, 2, 4};
  int8_ = kernels_by_rows(bundle, "mr_int8_", rows);
  int4_ = kernels_by_rows(bundle, "mr_int4_", rows);
  finish_ = bundle.kernel("mr_int8_finish");
  if (target.xmx() && target.lanes == 16) int8_.push_back({16, bundle.kernel("mr_int8_tiles")});
  if (target.onednn) onednn_ = open_int8_products(stream);
}

std::unique_ptr<Linear> QuantizedLinears::make(const LinearKind& kind, const Program& program,
                                               const Op& op) {
  auto linear = std::make_unique<QuantizedLinear>(*this, kind, program, op);
  grow(stream_, codes_, size_t(kind.most_rows) * linear->padded_depth());
  grow(stream_, row_scales_, kind.most_rows * sizeof(float));
  if (op.linear.weights == MR_WEIGHTS_INT8 && by_onednn(kind, *linear)) {
    linear->set_onednn(*onednn_);
  }
  (op.linear.weights == MR_WEIGHTS_INT8 ? has_int8_ : has_int4_) = true;
  return linear;
}

bool QuantizedLinears::by_onednn(const LinearKind& kind, const QuantizedLinear& linear) {
  const auto known = by_onednn_.find(kind);
  if (known != by_onednn_.end()) return known->second;
  const bool can = kind.most_rows > kMostOwnInt8Rows && onednn_ &&
                   onednn_->can(kind.most_rows, linear.padded_depth(), linear.columns());
  if (can) {
    const size_t rows = std::min(kind.most_rows, kOneDnnRows);
    grow(stream_, sums_, rows * linear.columns() * sizeof(int32_t));
  }
  return by_onednn_.emplace(kind, can).first->second;
}

uint64_t QuantizedLinears::scratch_bytes() const {
  return codes_.size() + row_scales_.size() + sums_.size();
}

std::string QuantizedLinears::name() const {
  const bool theirs = std::any_of(by_onednn_.begin(), by_onednn_.end(),
                                  [](const auto& entry) { return entry.second; });
  std::string name = has_int8_ ? "int8" : "";
  if (theirs) name += " by " + onednn_version() + " for many rows";
  if (has_int4_) name += name.empty() ? "int4" : ", int4";
  return name;
}

}  // namespace millrace::gpu
