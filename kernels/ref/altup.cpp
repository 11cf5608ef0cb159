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
void altup(const Op& op, int rows, const Slot* streams, Slot coefs, Slot x) {
  const mr_altup& a = op.altup;
  const int width = streams[0].width;
  for (int r = 0; r < rows; ++r) {
    std::array<float*, MR_MAX_STREAMS> s{};
    for (int j = 0; j < a.streams; ++j) s[j] = streams[j].f32() + int64_t{r} * width;
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
