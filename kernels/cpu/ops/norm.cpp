#include "cpu/ops/ops.hpp"

namespace millrace::cpu {

namespace {

// The elements of a row that are normed.
int width_of(const Context& c, const Op& op) {
  return op.norm.width > 0 ? op.norm.width : c.program.slots[op.in].width;
}

// A vector of one of a norm's groups, or of all of them, for all.
std::vector<float> of_groups(std::vector<float> v, int width) {
  if (v.empty()) return v;
  const size_t one = v.size();
  v.resize(width);
  for (size_t i = one; i < v.size(); ++i) v[i] = v[i - one];
  return v;
}

}  // namespace

Norm::Norm(const Context& c, const Op& op)
    : groups_(op.norm.width > 0 ? op.norm.groups : 1),
      offset_(op.norm.width > 0 ? op.norm.offset : 0),
      weight_(op.norm.weight < 0
                  ? std::vector<float>(width_of(c, op), 1.0f)
                  : of_groups(floats(c.program.tensor(op.norm.weight)), width_of(c, op))),
      bias_(of_groups(floats(c.program.tensor(op.norm.bias)), width_of(c, op))),
      row_{weight_.data(),
           bias_.empty() ? nullptr : bias_.data(),
           static_cast<int>(weight_.size()) / groups_,
           op.norm.eps,
           op.norm.kind == MR_NORM_LAYER,
           c.program.slots[op.out].type == MR_SLOT_F32,
           op.norm.accumulate != 0,
           op.norm.kind == MR_NORM_NONE,
           op.norm.scale != 0 ? op.norm.scale : 1} {}

void Norm::run(const Context& c, int rows, Slot in, Slot out) const {
  const size_t out_bytes = row_.out_f32 ? sizeof(float) : sizeof(bf16);
  for_rows(c.pool, rows, in.width, [&](int r, int) {
    const int64_t at = int64_t{r} * in.width;
    if (groups_ == 1) {
      row(c, in.f32() + at + offset_,
          static_cast<std::byte*>(out.data) + (at + offset_) * out_bytes);
      return;
    }
    NormRow group = row_;
    for (int g = 0; g < groups_; ++g) {
      float* x = in.f32() + at + offset_ + g * row_.width;
      group.weight = row_.weight + g * row_.width;
      if (row_.bias != nullptr) group.bias = row_.bias + g * row_.width;
      c.kernels.norm(group, x, x);
    }
  });
}

}  // namespace millrace::cpu
