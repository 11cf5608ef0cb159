#include "gpu/linear.hpp"

#include <algorithm>

namespace millrace::gpu {

LinearKind linear_kind(const Program& p, const Op& op, mr_dtype type) {
  const mr_slot& in = p.slots[op.in];
  const mr_slot& out = p.slots[op.out];
  const bool bias = std::any_of(op.linear.parts, op.linear.parts + op.linear.n_parts,
                                [](const mr_part& part) { return part.bias >= 0; });
  return {type,
          in.width,
          out.width,
          {op.linear.activation, op.linear.act_a, op.linear.act_b},
          op.linear.gated != 0,
          op.linear.accumulate != 0,
          bias,
          out.type == MR_SLOT_F32,
          op.index <= p.select      ? p.max_rows
          : op.out == p.logits_slot ? p.max_outputs
                                    : p.max_selected()};
}

int64_t row_of_column(const LinearKind& kind, int64_t column, int unit) {
  if (!kind.gated) return column < kind.width ? column : -1;
  const int64_t block = column / unit, row = block / 2 * unit + column % unit;
  if (row >= kind.width) return -1;
  return block % 2 == 0 ? row : row + kind.width;
}

Slices cut_sum(const DeviceHandle& device, int tasks, int steps, int group) {
  constexpr int kLeastSteps = 4;
  const int wanted = busy_sub_groups(device);
  int slices = std::clamp((wanted + tasks - 1) / tasks, 1, kMostSlices);
  slices = std::clamp(steps / kLeastSteps, 1, slices);
  const int groups = ((steps + slices - 1) / slices + group - 1) / group;
  const int slice = groups * group;
  return {(steps + slice - 1) / slice, slice};
}

}  // namespace millrace::gpu
