#include "ref/ref.hpp"

namespace millrace::ref {

// y = in_0 + in_1 + ..., in the order of the ranks, or y += that.
void RefKernels::all_reduce(const Op& op, const Run& run) {
  const Slot out = run.slot(op.out);
  context_.pool.parallel_for(run.rows, [&](int r, int) {
    float* y = out.f32() + int64_t{r} * out.width;
    for (int i = 0; i < out.width; ++i) {
      float sum = 0;
      for (size_t k = 0; k < run.ranks.size(); ++k) {
        const float x = run.ranks[k][op.in].f32()[int64_t{r} * out.width + i];
        sum = k == 0 ? x : sum + x;
      }
      y[i] = op.all_reduce.accumulate ? y[i] + sum : sum;
    }
  });
}

}  // namespace millrace::ref
