#include "cpu/linear/tune.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include "cpu/linear/kernels.hpp"

namespace millrace::cpu {
namespace {

// Several times the last cache of most machines: weights as a step meets them.
constexpr uint64_t kTimedBytes = uint64_t{128} << 20;
// Others use the machine too: the least time of some rounds, the variants in turn. One that took
// longer than the fastest by this factor is not tried again.
constexpr int kRounds = 3;
constexpr double kHopeless = 1.15;
// A power of two stands for the numbers of rows above the one before it.
constexpr std::array kTimedRows{1, 2, 4, 8, 16};

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

}  // namespace

void tune_prefetch(const std::vector<Linear*>& linears, ThreadPool& pool) {
  std::vector<Linear*> timed;
  int64_t in_width = 0, out_width = 0;
  uint64_t bytes = 0;
  for (Linear* linear : linears) {
    if (bytes >= kTimedBytes) break;
    if (!linear->has_prefetch_variants()) continue;
    timed.push_back(linear);
    bytes += linear->bytes();
    in_width = std::max(in_width, linear->in_width());
    out_width = std::max(out_width, linear->out_width());
  }
  if (timed.empty()) return;
  const int max_rows = timed[0]->max_tile_rows();
  Pages in(max_rows * in_width * sizeof(bf16)), out(max_rows * out_width * sizeof(float));
  const auto run = [&](int rows, int variant) -> Seconds {
    const auto begin = Clock::now();
    for (Linear* linear : timed) {
      linear->set_prefetch_variant(rows, variant);
      linear->run(static_cast<const bf16*>(in.data()), rows, out.data(), pool);
    }
    return Clock::now() - begin;
  };
  run(1, 0);  // what a file holds comes to memory before it is timed
  int above = 0;
  for (const int upto : kTimedRows) {
    const int rows = std::min(upto, max_rows);
    std::array<Seconds, kPrefetchVariants> least;
    least.fill(Seconds::max());
    const auto fastest = [&] { return std::min_element(least.begin(), least.end()); };
    for (int round = 0; round < kRounds; ++round) {
      for (int variant = 0; variant < kPrefetchVariants; ++variant) {
        if (round > 0 && least[variant] > kHopeless * *fastest()) continue;
        least[variant] = std::min(least[variant], run(rows, variant));
      }
    }
    const auto chosen = static_cast<int>(fastest() - least.begin());
    for (Linear* linear : linears) {
      for (int r = above + 1; r <= rows; ++r) linear->set_prefetch_variant(r, chosen);
    }
    above = rows;
  }
}

}  // namespace millrace::cpu
