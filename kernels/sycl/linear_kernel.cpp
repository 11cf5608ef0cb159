#include "sycl/linear_kernel.hpp"

#include <algorithm>

#include "sycl/weights.hpp"

namespace millrace::sycl_backend {
namespace {

// The row of W that a column of the packed blocks holds, -1: none. A gated op
// has a block of gate, then one of up.
int64_t row_of_column(const Op& op, int64_t width, int64_t column, int lanes) {
  if (!op.gated) return column < width ? column : -1;
  const int64_t block = column / lanes, row = block / 2 * lanes + column % lanes;
  if (row >= width) return -1;
  return block % 2 == 0 ? row : row + width;
}

}  // namespace

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
  cut(stream);

  const int64_t packed_columns = column_groups_ * group;
  const int64_t block = int64_t{8} * lanes * 2;  // 16-bit numbers
  std::vector<uint16_t> weights(packed_columns / lanes * s.depth_blocks * block);
  std::vector<float> bias(s.bias ? packed_columns : 0);
  parallel(packed_columns, [&](int64_t column) {
    const int64_t row = row_of_column(op, s.width, column, lanes);
    if (row < 0) return;
    const SourceRow source = source_row(p, op, row);
    uint16_t* out = weights.data() + column / lanes * s.depth_blocks * block + column % lanes * 2;
    read_row(source, s.depth, kind.type, out, 2 * lanes);
    if (source.bias != nullptr) bias[column] = element(*source.bias, source.row);
  });
  weights_ = stream.allocate(weights.size() * sizeof(uint16_t));
  stream.copy(weights_.data(), weights.data(), weights_.size());
  bias_ = stream.allocate(bias.size() * sizeof(float));
  if (s.bias) stream.copy(bias_.data(), bias.data(), bias_.size());
  stream.wait();
}

// Cuts the sum into as many slices as fill the device when there is one row.
void KernelLinear::cut(const Stream& stream) {
  constexpr int kMostSlices = 8, kLeastBlocks = 4;
  const sycl::device device = stream.device();
  // A vector engine of a GPU keeps 8 threads in flight, a core of a CPU one.
  const int threads = device.is_cpu() ? 2 : 8;
  const int wanted =
      static_cast<int>(device.get_info<sycl::info::device::max_compute_units>()) * threads;
  int slices = std::clamp((wanted + column_groups_ - 1) / column_groups_, 1, kMostSlices);
  slices = std::clamp(shape_.depth_blocks / kLeastBlocks, 1, slices);
  shape_.slice_blocks = (shape_.depth_blocks + slices - 1) / slices;
  shape_.slices = (shape_.depth_blocks + shape_.slice_blocks - 1) / shape_.slice_blocks;
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

}  // namespace millrace::sycl_backend
