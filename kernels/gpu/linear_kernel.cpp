#include "gpu/linear_kernel.hpp"

#include "gpu/weights.hpp"

namespace millrace::gpu {
KernelLinear::KernelLinear(Stream& stream, Target target, const std::vector<LinearKernel>& kernels,
                           const LinearKind& kind, const Program& p, const Op& op)
    : kernels_(kernels), lanes_(target.lanes) {
  const int lanes = lanes_;
  LinearShape& s = shape_;
  s.depth = kind.depth;
  s.width = kind.width;
  s.depth_blocks = (s.depth + kDepth - 1) / kDepth;
  s.activation = kind.activation;
  s.gated = kind.gated;
  s.accumulate = kind.accumulate;
  s.out_f32 = kind.out_f32;
  s.bias = kind.bias;

  const int64_t columns = int64_t{s.width} * (s.gated ? 2 : 1);
  const int64_t group = int64_t{lanes} * kColumnBlocks;
  // A gated op's last group holds the rest of gate and the rest of up.
  const int64_t padded = s.gated ? (s.width + lanes - 1) / lanes * lanes * 2 : columns;
  column_groups_ = static_cast<int>((padded + group - 1) / group);
  const Slices slices = cut_sum(stream.device(), column_groups_, s.depth_blocks, 1);
  s.slices = slices.count;
  s.slice_blocks = slices.steps;

  const int64_t packed_columns = column_groups_ * group;
  const int64_t block = int64_t{8} * lanes * 2;  // 16-bit numbers
  std::vector<uint16_t> weights(packed_columns / lanes * s.depth_blocks * block);
  std::vector<float> bias(s.bias ? packed_columns : 0);
  parallel(packed_columns, [&](int64_t column) {
    const int64_t row = row_of_column(kind, column, lanes);
    if (row < 0) return;
    const SourceRow source = source_row(p, op, row);
    uint16_t* out = weights.data() + column / lanes * s.depth_blocks * block + column % lanes * 2;
    read_row(source, s.depth, kind.type, out, 2 * lanes);
    if (source.bias != nullptr) bias[column] = element(*source.bias, source.row);
  });
  weights_ = stream.upload(weights);
  bias_ = stream.upload(bias);
}

void KernelLinear::run(Stream& stream, int rows, const void* in, void* out) {
  const LinearKernel& k = kernel_for(kernels_, rows);
  LinearShape shape = shape_;
  shape.rows = rows;
  const size_t tiles = (size_t(rows) + k.rows - 1) / k.rows;
  const size_t floats = size_t(shape.slices) * k.rows * kColumnBlocks * lanes_;
  stream.launch_local(k.kernel, tiles * column_groups_, size_t(shape.slices) * lanes_, floats,
                      shape, in, static_cast<const void*>(weights_.data()),
                      static_cast<const void*>(bias_.data()), out);
}

}  // namespace millrace::gpu
