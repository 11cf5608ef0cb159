#include "cpu/ops/ops.hpp"

namespace millrace::cpu {

Norm::Norm(const Context& c, const Op& op)
    : weight_(floats(c.program.tensor(op.norm.weight))),
      bias_(floats(c.program.tensor(op.norm.bias))),
      row_{weight_.data(),
           bias_.empty() ? nullptr : bias_.data(),
           static_cast<int>(weight_.size()),
           op.norm.eps,
           op.norm.kind == MR_NORM_LAYER,
           c.program.slots[op.out].type == MR_SLOT_F32,
           op.norm.accumulate != 0} {}

void Norm::run(const Context& c, int rows, Slot in, Slot out) const {
  const size_t out_bytes = row_.out_f32 ? sizeof(float) : sizeof(bf16);
  for_rows(c.pool, rows, in.width, [&](int r, int) {
    const int64_t at = int64_t{r} * in.width;
    row(c, in.f32() + at, static_cast<std::byte*>(out.data) + at * out_bytes);
  });
}

}  // namespace millrace::cpu
