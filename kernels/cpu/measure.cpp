#include "measure.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "linear_kernels.hpp"
#include "pages.hpp"

namespace millrace::cpu {
namespace {

constexpr int kReadRuns = 5, kSlices = 16, kPeakRuns = 20;

template <class F>
double seconds(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

double measure_read_gbps(Isa isa, ThreadPool& pool, uint64_t bytes) {
  constexpr size_t kTask = 256 * kReadStep;
  const LinearKernels& kernels = linear_kernels(isa);
  const int tasks = static_cast<int>(std::max<uint64_t>(1, bytes / kTask));
  const Pages pages(tasks * kTask);
  auto* data = static_cast<std::byte*>(pages.data());
  // Written, so that it is not the one page of zeroes; by the thread that reads it.
  pool.parallel_for(tasks, [&](int task, int) { std::memset(data + task * kTask, task, kTask); });
  // In slices of some milliseconds, so that some are left undisturbed by others.
  const int slice = std::max(1, tasks / kSlices);
  double best = 0;
  std::atomic<uint64_t> sink{0};
  for (int run = 0; run < kReadRuns; ++run) {
    for (int first = 0; first + slice <= tasks; first += slice) {
      const double s = seconds([&] {
        pool.parallel_for(slice, [&](int task, int) {
          sink.fetch_xor(kernels.read(data + (first + task) * kTask, kTask),
                         std::memory_order_relaxed);
        });
      });
      best = std::max(best, static_cast<double>(slice) * kTask / s * 1e-9);
    }
  }
  return best;
}

double measure_peak_gflops(Isa isa, ThreadPool& pool) {
  const LinearKernels& kernels = linear_kernels(isa);
  constexpr int64_t kRounds = 50'000;  // about a millisecond: some run is left undisturbed
  double best = 0;
  for (int run = 0; run < kPeakRuns; ++run) {
    std::vector<double> done(pool.size());
    const double s = seconds([&] {
      pool.parallel_for(pool.size(),
                        [&](int task, int) { done[task] = kernels.products(kRounds); });
    });
    double operations = 0;
    for (const double d : done) operations += d;
    best = std::max(best, operations / s * 1e-9);
  }
  return best;
}

}  // namespace millrace::cpu
