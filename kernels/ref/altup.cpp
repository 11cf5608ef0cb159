#include <algorithm>
#include <array>
#include <cmath>

#include "ref/ref.hpp"

namespace millrace::ref {
namespace {

double mean_square(const float* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  return sum / n;
}

void match(int streams, int width, float* const* s) {
  constexpr double kLeast = 1e-5;
  const double target = std::sqrt(mean_square(s[0], width));
  for (int j = 1; j < streams; ++j) {
    const double factor = target / std::sqrt(std::max(mean_square(s[j], width), kLeast));
    for (int i = 0; i < width; ++i) s[j][i] = static_cast<float>(s[j][i] * factor);
  }
}

}  // namespace

// The formulas of mr_altup_step.
void RefKernels::altup(const Op& op, const Run& run) {
  const mr_altup& a = op.altup;
  const Slot coefs = run.slot_if(a.step != MR_ALTUP_MATCH, a.coefs);
  const Slot x = run.slot_if(a.step == MR_ALTUP_CORRECT, a.x);
  const int width = run.slot(op.in).width;
  for (int r = 0; r < run.rows; ++r) {
    std::array<float*, MR_MAX_STREAMS> s{};
    for (int j = 0; j < a.streams; ++j) s[j] = run.slot(op.in + j).f32() + int64_t{r} * width;
    if (a.step == MR_ALTUP_MATCH) {
      match(a.streams, width, s.data());
      continue;
    }
    const float* c = coefs.f32() + int64_t{r} * coefs.width;
    for (int i = 0; i < width; ++i) {
      std::array<float, MR_MAX_STREAMS> before{};
      for (int j = 0; j < a.streams; ++j) before[j] = s[j][i];
      for (int j = 0; j < a.streams; ++j) {
        double sum = 0;
        if (a.step == MR_ALTUP_CORRECT) {
          sum = (1 + double{c[j]}) *
                (double{x.f32()[int64_t{r} * width + i]} - double{before[a.active]});
        }
        for (int k = 0; a.step == MR_ALTUP_PREDICT && k < a.streams; ++k)
          sum += double{c[j * a.streams + k]} * before[k];
        s[j][i] = static_cast<float>(before[j] + sum);
      }
    }
  }
}

}  // namespace millrace::ref
