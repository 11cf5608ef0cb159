// A linear op's weights as the checkpoint has them.
#ifndef MILLRACE_SYCL_WEIGHTS_HPP
#define MILLRACE_SYCL_WEIGHTS_HPP

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "exec/program.hpp"

namespace millrace::sycl_backend {

float element(const mr_tensor& t, int64_t i);
uint16_t to_operand(float x, mr_dtype type);  // MR_F16 or MR_BF16

// A row of W, wherever its part takes it from; bias is null where it has none.
struct SourceRow {
  const mr_tensor* weight;
  const mr_tensor* bias;
  int64_t row;
};
SourceRow source_row(const Program& p, const Op& op, int64_t row);

// The row's `depth` numbers in the operand type (MR_F16 or MR_BF16), pair by pair,
// a pair `stride` numbers after the one before it.
void read_row(const SourceRow& source, int depth, mr_dtype type, uint16_t* out, int stride = 2);

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

}  // namespace millrace::sycl_backend

#endif
