#include "gpu/coded_weights.hpp"

#include <algorithm>

#include "exec/bf16.hpp"
#include "exec/quantize.hpp"
#include "gpu/weights.hpp"

namespace millrace::gpu {
namespace {

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// The code that counts as 0.
uint8_t zero_code(int32_t weights) {
  return weights == MR_WEIGHTS_INT4 ? 8 : weights == MR_WEIGHTS_NF4 ? 7 : 0;
}

uint32_t word_of_bytes(const uint8_t* codes) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= uint32_t{codes[i]} << 8 * i;
  return word;
}

// The first four are in the low halves of the bytes.
uint32_t word_of_halves(const uint8_t* codes) {
  return word_of_bytes(codes) | word_of_bytes(codes + 4) << 4;
}

}  // namespace

int64_t CodedLayout::place(int64_t i, int64_t words, int column) const {
  if (!mma) return i * kPackedColumns + column;
  const int64_t tile = column / kMmaColumns * (words / 8) + i / 8;
  return tile * kMmaTileWords + mma_place(static_cast<int>(i % 8), column % kMmaColumns);
}

CodedWeights::CodedWeights(Stream& stream, CodedLayout layout, const LinearKind& kind,
                           const Program& p, const Op& op)
    : layout_(layout) {
  CodedShape& s = shape_;
  s.width = kind.width;
  s.depth = kind.depth;
  s.padded_depth = static_cast<int32_t>(round_up(kind.depth, kDepthCodes));
  s.steps = s.padded_depth / kCodeDepth;
  const int unit = kind.gated ? layout.block_columns() / 2 : layout.block_columns();
  s.blocks = (kind.width + unit - 1) / unit;
  s.group_steps = in_groups(op.linear.weights) ? op.linear.group / kCodeDepth : 1;
  s.groups = (s.steps + s.group_steps - 1) / s.group_steps;
  s.activation = kind.activation;
  s.gated = kind.gated;
  s.accumulate = kind.accumulate;
  s.bias = kind.bias;
  s.out_f32 = kind.out_f32;
  s.expert = {int64_t{columns()} * s.padded_depth / (in_groups(op.linear.weights) ? 8 : 4),
              in_groups(op.linear.weights) ? int64_t{columns()} * s.groups : columns(), columns()};
  // A tile of int4 for tensor cores has two steps.
  const int together =
      layout.mma && in_groups(op.linear.weights) ? std::max(s.group_steps, 2) : s.group_steps;
  const Slices slices = cut_sum(stream.device(), s.blocks * shares(), s.steps, together);
  s.slices = slices.count;
  s.slice_steps = slices.steps;
  load(stream, kind, p, op);
}

void CodedWeights::load(Stream& stream, const LinearKind& kind, const Program& p, const Op& op) {
  const CodedShape& s = shape_;
  const int block_columns = layout_.block_columns();
  const bool grouped = in_groups(op.linear.weights);
  const int word_codes = grouped ? 8 : 4, group = grouped ? op.linear.group : s.depth;
  const int64_t words = s.padded_depth / word_codes;  // of a column
  const auto pack = grouped ? word_of_halves : word_of_bytes;
  const std::vector<uint8_t> zeros(8, zero_code(op.linear.weights));
  const int64_t all = int64_t{columns()} * op.expert_count();
  std::vector<uint32_t> packed(all * words, pack(zeros.data()));
  std::vector<float> scales(grouped ? 0 : all);
  std::vector<uint16_t> group_scales(grouped ? all * s.groups : 0);
  std::vector<float> bias(kind.bias ? all : 0);
  parallel(all, [&](int64_t column) {
    const int64_t row = row_of_column(kind, column % columns(), block_columns / 2);
    if (row < 0) return;
    const SourceRow source = source_row(p, op, static_cast<int>(column / columns()), row);
    std::vector<float> values(s.depth);
    millrace::read_row(*source.weight, source.row, values.data());
    const int64_t block = column / block_columns;
    const auto place = static_cast<int>(column % block_columns);
    std::vector<uint8_t> codes(s.padded_depth, zeros[0]);
    for (int k = 0; k < s.depth; k += group) {
      const float scale =
          quantize(op.linear.weights, &values[k], std::min(group, s.depth - k), &codes[k]);
      if (grouped) {
        group_scales[(block * s.groups + k / group) * block_columns + place] =
            cpu::from_float(scale);
      } else {
        scales[column] = scale;
      }
    }
    for (int64_t i = 0; i < words; ++i) {
      const uint8_t* step = &codes[i / 4 * kCodeDepth + i % 4 * 4];
      packed[block * words * block_columns + layout_.place(i, words, place)] =
          layout_.mma && grouped ? word_of_bytes(step) | word_of_bytes(step + 16) << 4
                                 : pack(&codes[i * word_codes]);
    }
    if (source.bias != nullptr) bias[column] = element(*source.bias, source.row);
  });
  words_ = stream.upload(packed);
  scales_ = grouped ? stream.upload(group_scales) : stream.upload(scales);
  bias_ = stream.upload(bias);
}

std::vector<LinearKernel> kernels_by_rows(const Bundle& bundle, const std::string& prefix,
                                          const std::vector<int>& rows) {
  std::vector<LinearKernel> all;
  for (const int n : rows) all.push_back({n, bundle.kernel(prefix + std::to_string(n))});
  return all;
}

}  // namespace millrace::gpu
