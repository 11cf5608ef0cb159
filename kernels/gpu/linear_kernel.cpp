#include "gpu/linear_kernel.hpp"

#include "gpu/weights.hpp"

namespace millrace::gpu {

std::vector<LinearKernel> mma_kernels(const Bundle& bundle, Target target,
                                      const std::string& prefix, const std::vector<int>& few,
                                      MmaTile large, int tile_steps, WideTile wide, WideTile widest,
                                      int units) {
  constexpr int kWarpgroup = 4, kAny = 1 << 30;
  std::vector<LinearKernel> all;
  for (const int rows : few) all.push_back({rows, bundle.kernel(prefix + std::to_string(rows))});
  all.back().most =
      kMostFewRows;  // to read weights twice is faster than to bring rows to shared memory
  if (target.wide) {
    const auto add = [&](const std::string& name, WideTile tile, int fills) {
      all.push_back({tile.rows, bundle.kernel(prefix + name), kWarpgroup * tile.warpgroups,
                     wide_local_bytes(tile, tile_steps), tile.groups(), kAny, fills});
    };
    add("wide", wide, 2 * units);
    add("widest", widest, 0);
  } else {
    all.push_back({large.rows(), bundle.kernel(prefix + "tiles"), large.warps(),
                   mma_local_bytes(large, tile_steps), large.groups, kAny, 0});
  }
  return all;
}

std::vector<LinearKernel> row_kernels(const Bundle& bundle, Target target) {
  std::vector<LinearKernel> all;
  for (const int rows : {1, 2, 4, 8}) {
    all.push_back({rows, bundle.kernel("mr_linear_" + std::to_string(rows))});
  }
  if (target.xmx()) all.push_back({2 * target.lanes, bundle.kernel("mr_linear_tiles")});
  return all;
}

KernelLinear::KernelLinear(Stream& stream, Target target, const std::vector<LinearKernel>& kernels,
                           const LinearKind& kind, const Program& p, const Op& op)
    : kernels_(kernels), lanes_(target.lanes), columns_(block_columns(target)) {
  const int block_columns = columns_;
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
  const int64_t group = int64_t{block_columns} * kColumnBlocks;
  // A gated op's last group holds the rest of gate and the rest of up.
  const int64_t padded =
      s.gated ? (s.width + block_columns - 1) / block_columns * block_columns * 2 : columns;
  column_groups_ = static_cast<int>((padded + group - 1) / group);
  const Slices slices = cut_sum(stream.device(), column_groups_, s.depth_blocks, 1);
  s.slices = slices.count;
  s.slice_blocks = slices.steps;

  const int64_t packed_columns = column_groups_ * group;
  const int64_t block = int64_t{8} * block_columns * 2;  // 16-bit numbers
  s.expert = {packed_columns / block_columns * s.depth_blocks * block / 2, 0, packed_columns};
  const int64_t all_columns = packed_columns * op.expert_count();
  std::vector<uint16_t> weights(all_columns / block_columns * s.depth_blocks * block);
  std::vector<float> bias(s.bias ? all_columns : 0);
  parallel(all_columns, [&](int64_t column) {
    const int64_t row = row_of_column(kind, column % packed_columns, block_columns);
    if (row < 0) return;
    const SourceRow source = source_row(p, op, static_cast<int>(column / packed_columns), row);
    uint16_t* out = weights.data() + column / block_columns * s.depth_blocks * block;
    const auto place = static_cast<int>(column % block_columns);
    if (target.mma()) {
      std::vector<uint16_t> numbers(int64_t{s.depth_blocks} * kDepth);
      read_row(source, s.depth, kind.type, numbers.data());
      for (int k = 0; k < s.depth; ++k) {
        out[k / kDepth * block + mma_place(k / 2 % 8, place) * 2 + k % 2] = numbers[k];
      }
    } else {
      read_row(source, s.depth, kind.type, out + place * 2, 2 * block_columns);
    }
    if (source.bias != nullptr) bias[column] = element(*source.bias, source.row);
  });
  weights_ = stream.upload(weights);
  bias_ = stream.upload(bias);
}

void KernelLinear::run(Stream& stream, int rows, const void* in, void* out) {
  const LinearKernel& k = kernel_for(kernels_, rows, column_groups_);
  LinearShape shape = shape_;
  shape.rows = rows;
  launch(stream, k, k.work_groups(rows, column_groups_), shape, in, out);
}

int KernelLinear::tile_rows(int rows) const {
  return kernel_for(kernels_, rows, column_groups_).rows;
}

void KernelLinear::run_tiles(Stream& stream, const TiledRows& rows, const void* in, void* out) {
  LinearShape shape = shape_;
  shape.tiles = rows.count;
  launch(stream, kernel_for(kernels_, rows.tile_rows, column_groups_),
         size_t(rows.count) * column_groups_, shape, in, out, rows.tiles);
}

template <class... Tiles>
void KernelLinear::launch(Stream& stream, const LinearKernel& k, size_t work_groups,
                          const LinearShape& shape, const void* in, void* out, Tiles... tiles) {
  const size_t floats = k.local_bytes > 0
                            ? k.local_bytes / sizeof(float)
                            : size_t(shape.slices) * k.rows * kColumnBlocks * columns_;
  const int sub_groups = k.sub_groups > 0 ? k.sub_groups : shape.slices;
  stream.launch_local(k.kernel, work_groups, size_t(sub_groups) * lanes_, floats, shape, in,
                      static_cast<const void*>(weights_.data()),
                      static_cast<const void*>(bias_.data()), out, tiles...);
}

}  // namespace millrace::gpu
