#include <algorithm>

#include "cpu/ops/ops.hpp"

namespace millrace::cpu {

// In pieces, so that the loops over elements are of vectors.
void CpuOps::all_reduce(const Op& op, const Run& run) {
  constexpr int kPiece = 64;
  const FloatScope mode(mode_);
  const Slot out = run.slot(op.out);
  for_rows(context_.pool, run.rows, out.width, [&](int r, int) {
    const int64_t row = int64_t{r} * out.width;
    for (int first = 0; first < out.width; first += kPiece) {
      const int n = std::min(kPiece, out.width - first);
      float sum[kPiece];
      std::copy_n(run.ranks[0][op.in].f32() + row + first, n, sum);
      for (const Slot* slots : run.ranks.subspan(1)) {
        const float* x = slots[op.in].f32() + row + first;
        for (int i = 0; i < n; ++i) sum[i] += x[i];
      }
      float* y = out.f32() + row + first;
      if (op.all_reduce.accumulate) {
        for (int i = 0; i < n; ++i) y[i] += sum[i];
      } else {
        std::copy_n(sum, n, y);
      }
    }
  });
}

}  // namespace millrace::cpu
