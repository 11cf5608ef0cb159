#include "gpu/linear.hpp"

#include <algorithm>

namespace millrace::gpu {

LinearKind linear_kind(const Program& p, const Op& op, mr_dtype type) {
  const mr_slot& in = p.slots[op.in];
  const mr_slot& out = p.slots[op.out];
  const mr_linear& l = op.linear;
  const bool each = l.routed == MR_ROUTED_EACH, sum = l.routed == MR_ROUTED_SUM;
  const bool heads = l.routed == MR_ROUTED_HEADS;
  const mr_part* parts = op.parts_of(0);
  const bool bias = std::any_of(parts, parts + op.expert_count() * op.parts_each(),
                                [](const mr_part& part) { return part.bias >= 0; });
  const int rows = op.index <= p.select      ? p.max_rows
                   : op.out == p.logits_slot ? p.max_outputs
                                             : p.max_selected();
  return {type,
          op.part_width(in.width),
          each    ? out.width / l.top_k
          : heads ? out.width / l.experts - l.tail
                  : out.width,
          {l.activation, l.act_a, l.act_b},
          l.gated != 0,
          l.accumulate != 0 && !sum,
          bias,
          out.type == MR_SLOT_F32 || sum,
          each || sum || heads ? rows * l.top_k : rows};
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
