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
    : groups(op.norm.width > 0 ? op.norm.groups : 1),
      offset(op.norm.width > 0 ? op.norm.offset : 0),
      weight(op.norm.weight < 0
                 ? std::vector<float>(width_of(c, op), 1.0f)
                 : of_groups(floats(c.program.tensor(op.norm.weight)), width_of(c, op))),
      bias(of_groups(floats(c.program.tensor(op.norm.bias)), width_of(c, op))),
      row{weight.data(),
          bias.empty() ? nullptr : bias.data(),
          static_cast<int>(weight.size()) / groups,
          op.norm.eps,
          op.norm.kind == MR_NORM_LAYER,
          c.program.slots[op.out].type == MR_SLOT_F32,
          op.norm.accumulate != 0,
          op.norm.kind == MR_NORM_NONE,
          op.norm.scale != 0 ? op.norm.scale : 1} {}

void CpuOps::norm(const Op& op, const Run& run) {
  const FloatScope mode(mode_);
  const Norm& norm = norm_of(op);
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const size_t out_bytes = norm.row.out_f32 ? sizeof(float) : sizeof(bf16);
  for_rows(context_.pool, run.rows, in.width, [&](int r, int) {
    const int64_t at = int64_t{r} * in.width + norm.offset;
    if (norm.groups == 1) {
      context_.kernels.norm(norm.row, in.f32() + at,
                            static_cast<std::byte*>(out.data) + at * out_bytes);
      return;
    }
    NormRow group = norm.row;
    for (int g = 0; g < norm.groups; ++g) {
      float* x = in.f32() + at + g * group.width;
      group.weight = norm.row.weight + g * group.width;
      if (norm.row.bias != nullptr) group.bias = norm.row.bias + g * group.width;
      context_.kernels.norm(group, x, x);
    }
  });
}

}  // namespace millrace::cpu
