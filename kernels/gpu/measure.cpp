#include "gpu/measure.hpp"

#include <algorithm>
#include <chrono>

#include "gpu/recipes.hpp"
#include "gpu/shapes.hpp"
#include "platform/bundle.hpp"

namespace millrace::gpu {
namespace {

constexpr size_t kMeasuredBytes = size_t{512} << 20;  // larger than any cache
constexpr int kTries = 5;

// The best of several runs, in seconds; the first one compiles.
template <class F>
double best(F&& run) {
  double least = 1e30;
  run();
  for (int i = 0; i < kTries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    least = std::min(least, passed.count());
  }
  return least;
}

}  // namespace

mr_measurement measure(Stream& stream, Target target) {
  const Recipe recipe = measure_recipe(target);
  const Bundle bundle(stream, recipe.files, recipe.options);
  const Kernel read = bundle.kernel("mr_read"), products = bundle.kernel("mr_products");
  const size_t groups = compute_units(stream.device()) * size_t{8};
  const size_t items = size_t{4} * target.lanes;

  const Buffer data = stream.allocate(kMeasuredBytes), out = stream.allocate(64);
  const double read_seconds = best([&] {
    stream.launch(read, groups, items, data.data(), static_cast<int64_t>(kMeasuredBytes / 4),
                  out.data());
    stream.wait();
  });
  const int32_t rounds = target.products == Products::simd ? 1 << 12 : 1 << 16;
  const double product_seconds = best([&] {
    stream.launch(products, groups, items, data.data(), rounds, out.data());
    stream.wait();
  });
  // Flops of a lane: four products of 8 rows, or by tensor cores eight of 16 columns by 8 rows by 32 lanes.
  const double per_round = target.mma() ? 8.0 * 16 * 8 / 32 * kDepth * 2 : 4.0 * 8 * kDepth * 2;
  return {static_cast<double>(kMeasuredBytes) / read_seconds / 1e9,
          per_round * rounds * static_cast<double>(groups * items) / product_seconds / 1e9, 0};
}

}  // namespace millrace::gpu
