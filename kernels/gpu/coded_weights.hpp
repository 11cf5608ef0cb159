// A linear op's weights as codes, on the device: int8, int4, FP8 or NF4.
#ifndef MILLRACE_GPU_CODED_WEIGHTS_HPP
#define MILLRACE_GPU_CODED_WEIGHTS_HPP

#include <string>
#include <vector>

#include "platform/bundle.hpp"
#include "gpu/linear_kernel.hpp"

namespace millrace::gpu {

// As device/blocks.hpp has them.
class CodedWeights {
 public:
  // vectors: of columns that a sub-group computes.
  CodedWeights(Stream& stream, int lanes, int vectors, const LinearKind& kind,
               const Program& program, const Op& op);

  const CodedShape& shape() const { return shape_; }
  int columns() const { return shape_.blocks * kPackedColumns; }
  // Sub-groups that share a block of columns.
  int shares() const { return kPackedColumns / lanes_ / vectors_; }
  void* words() const { return words_.data(); }
  const void* scales() const { return scales_.data(); }
  const void* bias() const { return bias_.data(); }
  uint64_t bytes() const { return words_.size() + scales_.size() + bias_.size(); }

  // Runs a kernel of device/blocks.hpp over `rows` rows; `in` are its first arguments.
  template <class... Pointers>
  void multiply(Stream& stream, const LinearKernel& k, int rows, void* out, Pointers... in) const {
    CodedShape shape = shape_;
    shape.rows = rows;
    const size_t tiles = (size_t(rows) + k.rows - 1) / k.rows;
    stream.launch_local(k.kernel, tiles * shape.blocks * shares(), size_t(shape.slices) * lanes_,
                        size_t(shape.slices) * k.rows * vectors_ * lanes_, shape, in...,
                        static_cast<const void*>(words()), scales(), bias(), out);
  }

 private:
  void load(Stream& stream, const LinearKind& kind, const Program& program, const Op& op);

  int lanes_, vectors_;
  CodedShape shape_{};
  Buffer words_, scales_, bias_;
};

// The kernels of these numbers of rows, ascending: named after them.
std::vector<LinearKernel> kernels_by_rows(const Bundle& bundle, const std::string& prefix,
                                          const std::vector<int>& rows);

}  // namespace millrace::gpu

#endif
