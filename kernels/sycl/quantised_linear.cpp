#include "sycl/quantised_linear.hpp"

#include <algorithm>

#include "cpu/bf16.hpp"
#include "exec/quantise.hpp"
#include "sycl/onednn.hpp"
#include "sycl/weights.hpp"

namespace millrace::sycl_backend {
namespace {

constexpr int kBlockRows = 256;  // of oneDNN's products at once

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Weights as device/quantised.cpp has them.
struct Packed {
  Packed(const LinearKind& kind, const QuantisedShape& s, bool int4)
      : words(size_t(s.blocks) * s.padded_depth / (int4 ? 8 : 4) * kPackedColumns,
              int4 ? 0x88888888u : 0),
        scales8(int4 ? 0 : size_t(s.blocks) * kPackedColumns),
        scales4(int4 ? size_t(s.blocks) * s.groups * kPackedColumns : 0),
        bias(kind.bias ? size_t(s.blocks) * kPackedColumns : 0) {}

  std::vector<uint32_t> words;
  std::vector<float> scales8;
  std::vector<uint16_t> scales4;
  std::vector<float> bias;
};

void pack_int8(const std::vector<float>& row, int64_t column, const QuantisedShape& s, Packed& to) {
  std::vector<int8_t> codes(s.padded_depth);
  to.scales8[column] = quantise_int8(row.data(), static_cast<int64_t>(row.size()), codes.data());
  const int64_t quads = s.padded_depth / 4;
  uint32_t* out =
      to.words.data() + column / kPackedColumns * quads * kPackedColumns + column % kPackedColumns;
  for (int64_t q = 0; q < quads; ++q) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= uint32_t{static_cast<uint8_t>(codes[4 * q + i])} << 8 * i;
    out[q * kPackedColumns] = word;
  }
}

void pack_int4(const std::vector<float>& row, int64_t column, int group, const QuantisedShape& s,
               Packed& to) {
  std::vector<uint8_t> codes(s.padded_depth, 8);  // 8 counts as 0
  const int depth = static_cast<int>(row.size());
  uint16_t* scales = to.scales4.data() +
                     column / kPackedColumns * s.groups * int64_t{kPackedColumns} +
                     column % kPackedColumns;
  for (int k = 0; k < depth; k += group) {
    const float scale = quantise_int4(row.data() + k, std::min(group, depth - k), &codes[k]);
    scales[int64_t{k / group} * kPackedColumns] = cpu::from_float(scale);
  }
  const int64_t eights = s.padded_depth / 8;
  uint32_t* out =
      to.words.data() + column / kPackedColumns * eights * kPackedColumns + column % kPackedColumns;
  for (int64_t e = 0; e < eights; ++e) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
      word |= uint32_t{codes[8 * e + i]} << 8 * i | uint32_t{codes[8 * e + 4 + i]} << (8 * i + 4);
    }
    out[e * kPackedColumns] = word;
  }
}

void reach(Stream& stream, Buffer& buffer, size_t bytes) {
  if (bytes > buffer.size()) buffer = stream.allocate(bytes);
}

std::vector<LinearKernel> kernels(const Bundle& bundle, const std::string& prefix) {
  std::vector<LinearKernel> all;
  for (const int rows : {1, 2, 4, 8}) {
    all.push_back({rows, bundle.kernel(prefix + std::to_string(rows))});
  }
  return all;
}

}  // namespace

class QuantisedLinear : public Linear {
 public:
  QuantisedLinear(QuantisedLinears& shared, const LinearKind& kind, const Program& p, const Op& op)
      : shared_(shared), kind_(kind), int4_(op.weights == MR_WEIGHTS_INT4) {
    QuantisedShape& s = shape_;
    s.width = kind.width;
    s.padded_depth = static_cast<int32_t>(round_up(kind.depth, kDepthCodes));
    s.steps = s.padded_depth / kCodeDepth;
    const int64_t columns = int64_t{kind.width} * (kind.gated ? 2 : 1);
    s.blocks = static_cast<int32_t>(kind.gated ? (kind.width + kPackedColumns / 2 - 1) /
                                                     (kPackedColumns / 2)
                                               : (columns + kPackedColumns - 1) / kPackedColumns);
    s.group_steps = int4_ ? op.group / kCodeDepth : 1;
    s.groups = (s.steps + s.group_steps - 1) / s.group_steps;
    s.activation = kind.activation;
    s.gated = kind.gated;
    s.accumulate = kind.accumulate;
    s.bias = kind.bias;
    s.out_f32 = kind.out_f32;
    const Slices slices =
        cut_sum(shared.stream_.device(), s.blocks * sub_groups(), s.steps, s.group_steps);
    s.slices = slices.count;
    s.slice_steps = slices.steps;
    load(p, op);
  }

  void run(Stream& stream, int rows, const void* in, void* out) override {
    const QuantisedShape& s = shape_;
    stream.launch(shared_.quantise_, rows, kRowItems, in, shared_.codes_.data(),
                  shared_.row_scales_.data(), kind_.depth, s.padded_depth);
    if (rows <= few_rows_) return run_ours(stream, rows, out);
    const size_t row_bytes = size_t(kind_.width) * (kind_.out_f32 ? 4 : 2);
    for (int first = 0; first < rows; first += kBlockRows) {
      run_onednn(stream, first, std::min(rows - first, kBlockRows),
                 static_cast<std::byte*>(out) + row_bytes * first);
    }
  }

  uint64_t bytes() const override { return weights_.size() + scales_.size() + bias_.size(); }

  int columns() const { return shape_.blocks * kPackedColumns; }
  int padded_depth() const { return shape_.padded_depth; }
  void set_few_rows(int rows) { few_rows_ = rows; }

 private:
  // That share a block of columns.
  int sub_groups() const { return kPackedColumns / shared_.target_.lanes / kColumnBlocks; }

  void load(const Program& p, const Op& op) {
    Packed packed(kind_, shape_, int4_);
    parallel(columns(), [&](int64_t column) {
      const int64_t row = row_of_column(kind_, column, kPackedColumns / 2);
      if (row < 0) return;
      const SourceRow source = source_row(p, op, row);
      std::vector<float> values(kind_.depth);
      for (int64_t k = 0; k < kind_.depth; ++k) {
        values[k] = element(*source.weight, source.row * kind_.depth + k);
      }
      if (int4_) {
        pack_int4(values, column, op.group, shape_, packed);
      } else {
        pack_int8(values, column, shape_, packed);
      }
      if (source.bias != nullptr) packed.bias[column] = element(*source.bias, source.row);
    });
    Stream& stream = shared_.stream_;
    weights_ = stream.upload(packed.words);
    scales_ = int4_ ? stream.upload(packed.scales4) : stream.upload(packed.scales8);
    bias_ = stream.upload(packed.bias);
  }

  void run_ours(Stream& stream, int rows, void* out) {
    const LinearKernel& k = kernel_for(int4_ ? shared_.int4_ : shared_.int8_, rows);
    QuantisedShape s = shape_;
    s.rows = rows;
    const int lanes = shared_.target_.lanes;
    const size_t tiles = (size_t(rows) + k.rows - 1) / k.rows;
    const size_t floats = size_t(s.slices) * k.rows * kColumnBlocks * lanes;
    stream.launch_local(k.kernel, tiles * s.blocks * sub_groups(), size_t(s.slices) * lanes, floats,
                        s, codes(0), row_scales(0), static_cast<const void*>(weights_.data()),
                        static_cast<const void*>(scales_.data()),
                        static_cast<const void*>(bias_.data()), out);
  }

  void run_onednn(Stream& stream, int first, int rows, void* out) {
    shared_.onednn_->run(kind_.most_rows, rows, padded_depth(), columns(), codes(first),
                         weights_.data(), shared_.sums_.data());
    QuantisedShape s = shape_;
    s.rows = rows;
    stream.launch(
        shared_.finish_, size_t(rows) * s.blocks, size_t(sub_groups()) * shared_.target_.lanes,
        static_cast<const void*>(shared_.sums_.data()), row_scales(first),
        static_cast<const void*>(scales_.data()), static_cast<const void*>(bias_.data()), out, s);
  }

  const void* codes(int row) const {
    return static_cast<const std::byte*>(shared_.codes_.data()) + size_t(row) * padded_depth();
  }
  const void* row_scales(int row) const {
    return static_cast<const float*>(shared_.row_scales_.data()) + row;
  }

  QuantisedLinears& shared_;
  LinearKind kind_;
  bool int4_;
  QuantisedShape shape_{};
  int few_rows_ = INT32_MAX;  // that are ours
  Buffer weights_, scales_, bias_;
};

bool quantised(const Program& program) {
  return std::any_of(program.ops.begin(), program.ops.end(),
                     [](const Op& op) { return op.weights != MR_WEIGHTS_16BIT; });
}

QuantisedLinears::QuantisedLinears(Stream& stream, Target target, const Bundle& bundle)
    : stream_(stream),
      target_(target),
      int8_(kernels(bundle, "mr_int8_")),
      int4_(kernels(bundle, "mr_int4_")),
      quantise_(bundle.kernel("mr_quantise_rows")),
      finish_(bundle.kernel("mr_int8_finish")) {
  if (target.xmx && target.lanes == 16) int8_.push_back({16, bundle.kernel("mr_int8_tiles")});
  if (target.onednn != OneDnnUse::never) onednn_ = open_int8_products(stream);
}

std::unique_ptr<Linear> QuantisedLinears::make(const LinearKind& kind, const Program& program,
                                               const Op& op) {
  auto linear = std::make_unique<QuantisedLinear>(*this, kind, program, op);
  reach(stream_, codes_, size_t(kind.most_rows) * linear->padded_depth());
  reach(stream_, row_scales_, kind.most_rows * sizeof(float));
  if (op.weights == MR_WEIGHTS_INT8) linear->set_few_rows(few_rows(kind, *linear));
  (op.weights == MR_WEIGHTS_INT8 ? has_int8_ : has_int4_) = true;
  return linear;
}

int QuantisedLinears::few_rows(const LinearKind& kind, QuantisedLinear& linear) {
  const auto known = few_rows_.find(kind);
  if (known != few_rows_.end()) return known->second;
  int few = kind.most_rows;
  if (onednn_ && onednn_->can(kind.most_rows, linear.padded_depth(), linear.columns())) {
    const size_t rows = std::min(kind.most_rows, kBlockRows);
    reach(stream_, sums_, rows * linear.columns() * sizeof(int32_t));
    const Buffer in = stream_.allocate(size_t(kind.most_rows) * kind.depth * sizeof(uint16_t));
    const Buffer out = stream_.allocate(size_t(kind.most_rows) * kind.width * sizeof(float));
    const auto seconds = [&](int rows, int ours) {
      linear.set_few_rows(ours);
      return linear.seconds(stream_, rows, in.data(), out.data());
    };
    // Ours as long as they are faster, up to the largest tile.
    few = 0;
    for (int rows = 1; rows <= std::min(kind.most_rows, 8); rows *= 2) {
      if (seconds(rows, rows) > seconds(rows, 0)) break;
      few = rows;
    }
  }
  return few_rows_.emplace(kind, few).first->second;
}

uint64_t QuantisedLinears::scratch_bytes() const {
  return codes_.size() + row_scales_.size() + sums_.size();
}

std::string QuantisedLinears::name() const {
  const bool theirs = std::any_of(few_rows_.begin(), few_rows_.end(), [](const auto& entry) {
    return entry.second < entry.first.most_rows;
  });
  std::string name = has_int8_ ? "int8" : "";
  if (theirs) name += " by " + onednn_version() + " for many rows";
  if (has_int4_) name += name.empty() ? "int4" : ", int4";
  return name;
}

}  // namespace millrace::sycl_backend
