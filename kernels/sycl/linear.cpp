#include "sycl/linear.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "cpu/bf16.hpp"

namespace millrace::sycl_backend {
namespace {

uint16_t to_bits(float x, mr_dtype type) {
  if (type == MR_BF16) return cpu::from_float(x);
  return sycl::bit_cast<uint16_t>(static_cast<sycl::half>(x));
}

float element(const mr_tensor& t, int64_t i) {
  if (t.dtype == MR_F32) return static_cast<const float*>(t.data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(t.data)[i];
  return t.dtype == MR_BF16 ? cpu::to_float(bits) : cpu::f16_to_float(bits);
}

// A row of W, wherever its part takes it from.
struct SourceRow {
  const mr_tensor* weight;
  const mr_tensor* bias;
  int64_t row;
};

SourceRow source_row(const Program& p, const Op& op, int64_t row) {
  const mr_part* part = op.parts;
  while (row >= part->rows) row -= (part++)->rows;
  return {p.tensor(part->weight), p.tensor(part->bias),
          part->offset + row / part->block * part->stride + row % part->block};
}

// The row of W that a column of the packed blocks holds, -1: none. A gated op
// has a block of gate, then one of up.
int64_t row_of_column(const Op& op, int64_t width, int64_t column, int lanes) {
  if (!op.gated) return column < width ? column : -1;
  const int64_t block = column / lanes, row = block / 2 * lanes + column % lanes;
  if (row >= width) return -1;
  return block % 2 == 0 ? row : row + width;
}

void pack_column(const SourceRow& source, int depth, mr_dtype type, int lanes, uint16_t* out) {
  const mr_tensor& w = *source.weight;
  const auto* same = w.dtype == type ? static_cast<const uint16_t*>(w.data) : nullptr;
  for (int k = 0; k < depth; ++k) {
    const int64_t at = source.row * depth + k;
    const uint16_t bits = same != nullptr ? same[at] : to_bits(element(w, at), type);
    out[(int64_t{k / 2} * lanes) * 2 + k % 2] = bits;
  }
}

// Runs fn(i) for i in [0, n) on all cores.
template <class F>
void parallel(int64_t n, F&& fn) {
  const auto threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, n);
  std::vector<std::thread> workers;
  for (int64_t t = 1; t < threads; ++t) {
    workers.emplace_back([&, t] {
      for (int64_t i = t; i < n; i += threads) fn(i);
    });
  }
  for (int64_t i = 0; i < n; i += threads) fn(i);
  for (std::thread& worker : workers) worker.join();
}

}  // namespace

Linear::Linear(Stream& stream, Target target, mr_dtype type, const Program& p, const Op& op)
    : target_(target) {
  const int lanes = target.lanes;
  LinearShape& s = shape_;
  s.depth = p.slots[op.in].width;
  s.width = p.slots[op.out].width;
  s.depth_blocks = (s.depth + kDepth - 1) / kDepth;
  s.activation = op.activation;
  s.gated = op.gated;
  s.accumulate = op.accumulate;
  s.out_f32 = p.slots[op.out].type == MR_SLOT_F32;
  for (int i = 0; i < op.n_parts; ++i) s.bias |= op.parts[i].bias >= 0;

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
    pack_column(source, s.depth, type, lanes, out);
    if (source.bias != nullptr) bias[column] = element(*source.bias, source.row);
  });
  weights_ = stream.allocate(weights.size() * sizeof(uint16_t));
  stream.copy(weights_.data(), weights.data(), weights_.size());
  bias_ = stream.allocate(bias.size() * sizeof(float));
  if (s.bias) stream.copy(bias_.data(), bias.data(), bias_.size());
  stream.wait();
}

// Cuts the sum into as many slices as fill the device when there is one row.
void Linear::cut(const Stream& stream) {
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

void Linear::run(Stream& stream, const std::vector<LinearKernel>& kernels, int rows, const void* in,
                 void* out) const {
  const auto fits = std::find_if(kernels.begin(), kernels.end(),
                                 [&](const LinearKernel& k) { return k.rows >= rows; });
  const LinearKernel& k = fits != kernels.end() ? *fits : kernels.back();
  LinearShape shape = shape_;
  shape.rows = rows;
  const size_t tiles = (size_t(rows) + k.rows - 1) / k.rows;
  const size_t floats = size_t(shape.slices) * k.rows * kColumnBlocks * target_.lanes;
  stream.launch_local(k.kernel, tiles * column_groups_, size_t(shape.slices) * target_.lanes,
                      floats, shape, in, static_cast<const void*>(weights_.data()),
                      static_cast<const void*>(bias_.data()), out);
}

}  // namespace millrace::sycl_backend
