// Linear ops by oneDNN, on the stream's queue.
#ifndef MILLRACE_GPU_ONEDNN_HPP
#define MILLRACE_GPU_ONEDNN_HPP

#include <memory>
#include <string>

#include "gpu/linear.hpp"
#include "gpu/linear_kernel.hpp"

namespace millrace::gpu {

// "oneDNN 3.11", or empty where the backend is built without it.
std::string onednn_version();

// Rows that one product takes at most: more go block by block, each as fast.
constexpr int kOneDnnRows = 512;

// The numbers of rows that it has kernels for, for ops of at most most_rows.
std::vector<int> onednn_block_sizes(int most_rows);

// Steps of this many rows or fewer our kernels compute over oneDNN's weights, device/packed.cpp.
struct OwnRows {
  int most = 0;   // 0: none
  int chunk = 0;  // oneDNN adds up this much of the depth at a time, and so do we
};

class OneDnnLinear : public Linear {
 public:
  // Whether the weights lie as device/packed.cpp reads them.
  virtual bool packed() const = 0;
  // Whether oneDNN multiplies floats, and not the operands.
  virtual bool floats() const = 0;
  virtual void set_own_rows(OwnRows own) = 0;
  // The numbers of a row's sums, which are floats, before activation, gate and rounding.
  virtual int sums_width() const = 0;
  // sums: [rows][sums_width()], of at most as many rows as the largest block has.
  virtual void run_sums(Stream& stream, int rows, const void* in, void* sums) = 0;
};

// The products of one program. They share what each kind of op needs beside its
// weights: oneDNN's kernels for some numbers of rows, and memory in between.
class OneDnn {
 public:
  virtual ~OneDnn() = default;

  // Null where oneDNN has nothing but its reference code for this kind.
  virtual std::unique_ptr<OneDnnLinear> linear(const LinearKind& kind, const Program& program,
                                               const Op& op) = 0;
  virtual uint64_t scratch_bytes() const = 0;
};

// Stream and kernels outlive it. Null where the backend is built without oneDNN.
std::unique_ptr<OneDnn> open_onednn(Stream& stream, const LinearKernels& kernels);

}  // namespace millrace::gpu

#endif
