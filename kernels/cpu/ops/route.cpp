#include "cpu/ops/ops.hpp"

namespace millrace::cpu {

void CpuOps::route(const Op& op, const Run& run) {
  const Router& router = *kept_[op.index].router;
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const size_t room = router.room();
  auto* rooms =
      static_cast<float*>(context_.pool.scratch(context_.pool.size() * room * sizeof(float)));
  for_rows(context_.pool, run.rows, in.width, [&](int r, int thread) {
    router.row(in.f32() + int64_t{r} * in.width, out.f32() + int64_t{r} * out.width,
               rooms + thread * room);
  });
}

}  // namespace millrace::cpu
