#include "cpu/linear/measure.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "cpu/linear/kernels.hpp"
#include "millrace_kernels.h"

namespace millrace::cpu {
namespace {

constexpr size_t kTask = 256 * kReadStep;
constexpr int kPeakRuns = 4;
constexpr int64_t kRounds = 50'000;  // about a millisecond: some run is left undisturbed

template <class F>
double seconds(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Limits::Limits(Isa isa, ThreadPool& pool, uint64_t bytes)
    : isa_(isa),
      pool_(pool),
      tasks_(static_cast<int>(std::max<uint64_t>(1, bytes / kTask))),
      data_(tasks_ * kTask) {
  // Written, so that it is not the one page of zeroes; by the thread that reads it.
  auto* data = static_cast<std::byte*>(data_.data());
  pool.parallel_for(tasks_, [&](int task, int) { std::memset(data + task * kTask, task, kTask); });
}

double Limits::read_gbps() {
  const auto* data = static_cast<const std::byte*>(data_.data());
  std::atomic<uint64_t> sink{0};
  double least = 1e30;
  for (const PrefetchVariant& variant : linear_kernels(isa_, MR_WEIGHTS_16BIT).prefetch_variants) {
    const double s = seconds([&] {
      pool_.parallel_for(tasks_, [&](int task, int) {
        sink.fetch_xor(variant.read(data + task * kTask, kTask, variant.distance),
                       std::memory_order_relaxed);
      });
    });
    least = std::min(least, s);
  }
  return static_cast<double>(tasks_) * kTask / least * 1e-9;
}

double Limits::peak_gflops(int weights) {
  const LinearKernels& kernels = linear_kernels(isa_, weights);
  double best = 0;
  for (int run = 0; run < kPeakRuns; ++run) {
    std::vector<double> done(pool_.size());
    const double s = seconds([&] {
      pool_.parallel_for(pool_.size(),
                         [&](int task, int) { done[task] = kernels.products(kRounds); });
    });
    double operations = 0;
    for (const double d : done) operations += d;
    best = std::max(best, operations / s * 1e-9);
  }
  return best;
}

bool multiplies_faster(Isa a, Isa b) {
  const auto speed = [](Isa isa, int weights) {
    double best = 0;
    for (int run = 0; run < kPeakRuns; ++run) {
      double operations = 0;
      const double s =
          seconds([&] { operations = linear_kernels(isa, weights).products(kRounds); });
      best = std::max(best, operations / s);
    }
    return best;
  };
  for (const int weights : {MR_WEIGHTS_16BIT, MR_WEIGHTS_INT8}) {
    if (speed(a, weights) <= speed(b, weights)) return false;
  }
  return true;
}

}  // namespace millrace::cpu
