// Linear ops by our own kernels, device/linear.cpp.
#ifndef MILLRACE_GPU_LINEAR_KERNEL_HPP
#define MILLRACE_GPU_LINEAR_KERNEL_HPP

#include <optional>
#include <string>
#include <vector>

#include "gpu/linear.hpp"
#include "gpu/shapes.hpp"
#include "platform/bundle.hpp"

namespace millrace::gpu {

// The kernels by the most rows that they take at once, ascending.
struct LinearKernel {
  int rows;
  Kernel kernel;
  // A kernel that takes all slices itself has these; 0: a sub-group takes one.
  int sub_groups = 0, local_bytes = 0;
  int groups = 1;  // of columns that a work-group computes
  int most = 0;    // rows that it is for: more than it takes at once; 0: those alone
  int fills =
      0;  // work-groups from which on the next kernel, of larger ones, is the better one; 0: any number

  size_t work_groups(int all_rows, int all_groups) const {
    return size_t(all_rows + rows - 1) / rows * ((all_groups + groups - 1) / groups);
  }
};
// groups: of columns.
inline const LinearKernel& kernel_for(const std::vector<LinearKernel>& kernels, int rows,
                                      int groups) {
  for (const LinearKernel& k : kernels) {
    if (k.rows < rows && k.most < rows) continue;
    if (k.fills == 0 || k.work_groups(rows, groups) < size_t(k.fills)) return k;
  }
  return kernels.back();
}

// The kernels of a bundle for tensor cores, cuda/device/mma.hpp: prefix8, ..., and of many rows prefixtiles, or
// prefixwide and prefixwidest. units: of the device. few: the rows of those whose sub-groups take one slice each.
std::vector<LinearKernel> mma_kernels(const Bundle& bundle, Target target,
                                      const std::string& prefix, const std::vector<int>& few,
                                      MmaTile large, int tile_steps, WideTile wide, WideTile widest,
                                      int units);

// The kernels of device/linear.cpp.
std::vector<LinearKernel> row_kernels(const Bundle& bundle, Target target);

// Columns of a block of weights, and so of an embedding that shares them.
inline int block_columns(Target target) { return target.mma() ? kMmaColumns : target.lanes; }

// The kernels of device/linear.cpp and of device/packed.cpp.
struct LinearKernels {
  int lanes;                                        // of a sub-group
  std::vector<LinearKernel> tiles, packed, floats;  // floats: where oneDNN multiplies floats
  std::optional<Kernel> widen, finish;
};

class KernelLinear : public Linear {
 public:
  // The kernels outlive it.
  KernelLinear(Stream& stream, Target target, const std::vector<LinearKernel>& kernels,
               const LinearKind& kind, const Program& program, const Op& op);

  void run(Stream& stream, int rows, const void* in, void* out) override;
  int tile_rows(int rows) const override;
  void run_tiles(Stream& stream, const TiledRows& rows, const void* in, void* out) override;
  uint64_t bytes() const override { return weights_.size() + bias_.size(); }
  WeightBlocks blocks() const override {
    return {shape_.gated ? nullptr : weights_.data(), columns_, shape_.depth_blocks * kDepth / 2,
            2};
  }

 private:
  // tiles: of experts, the kernel's last pointer.
  template <class... Tiles>
  void launch(Stream& stream, const LinearKernel& k, size_t work_groups, const LinearShape& shape,
              const void* in, void* out, Tiles... tiles);

  const std::vector<LinearKernel>& kernels_;
  int lanes_, columns_;  // of a sub-group, of a block
  LinearShape shape_{};
  int column_groups_;  // of kColumnBlocks blocks
  Buffer
      weights_;  // [experts][column blocks][depth blocks][8][columns] pairs, or tiles for tensor cores
  Buffer bias_;  // [experts][column blocks][columns] floats
};

}  // namespace millrace::gpu

#endif
