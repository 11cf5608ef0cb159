// A linear op's weights as the checkpoint has them.
#ifndef MILLRACE_GPU_WEIGHTS_HPP
#define MILLRACE_GPU_WEIGHTS_HPP

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "exec/program.hpp"
#include "exec/tensor.hpp"
#include "platform/stream.hpp"

namespace millrace::gpu {

uint16_t to_operand(float x, mr_dtype type);  // MR_F16 or MR_BF16

// A row of W, wherever its part takes it from; bias is null where it has none.
struct SourceRow {
  const Op* op;
  const mr_tensor* weight;
  const mr_tensor* bias;
  int64_t row;
};
// expert: 0 of an op without experts.
SourceRow source_row(const Program& p, const Op& op, int expert, int64_t row);

// The numbers of a tensor of any float type as floats; none of null.
Buffer upload_floats(Stream& stream, const mr_tensor* tensor);

// The row's `depth` numbers in the operand type (MR_F16 or MR_BF16), pair by pair,
// a pair `stride` numbers after the one before it. Throws Error(MR_UNSUPPORTED) for a number
// beyond f16; what is below its normal range keeps an error of 2^-25 at most.
void read_row(const SourceRow& source, int depth, mr_dtype type, uint16_t* out, int stride = 2);

// Runs fn(i) for i in [0, n) on all cores; throws what one of them has thrown.
template <class F>
void parallel(int64_t n, F&& fn) {
  const auto threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, n);
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&](int64_t first) {
    try {
      for (int64_t i = first; i < n; i += threads) fn(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (int64_t t = 1; t < threads; ++t) workers.emplace_back(work, t);
  work(0);
  for (std::thread& worker : workers) worker.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace millrace::gpu

#endif
