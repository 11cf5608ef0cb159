// Linear ops by oneDNN, on the stream's queue.
#ifndef MILLRACE_SYCL_ONEDNN_HPP
#define MILLRACE_SYCL_ONEDNN_HPP

#include <memory>
#include <string>

#include "sycl/linear.hpp"

namespace millrace::sycl_backend {

// "oneDNN 3.11", or empty where the backend is built without it.
std::string onednn_version();

// The numbers of rows that it has kernels for, of ops of at most so many.
std::vector<int> onednn_block_sizes(int most_rows);

// The products of one program. They share what each kind of op needs beside its
// weights: oneDNN's kernels for some numbers of rows, and memory in between.
class OneDnn {
 public:
  virtual ~OneDnn() = default;

  // Null where oneDNN has nothing but its reference code for this kind.
  virtual std::unique_ptr<Linear> linear(const LinearKind& kind, const Program& program,
                                         const Op& op) = 0;
  virtual uint64_t scratch_bytes() const = 0;
};

// The stream outlives it. Null where the backend is built without oneDNN.
std::unique_ptr<OneDnn> open_onednn(Stream& stream);

}  // namespace millrace::sycl_backend

#endif
