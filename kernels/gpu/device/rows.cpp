// Rows that are copied: the outputs' rows, operands of an F32 slot, a KV slab.
#include "common.hpp"

// out[i] = in[output_rows[i]], `words` words of 16 bits each. A work-group per row.
MR_KERNEL mr_select_rows(const uint16_t* in, const int32_t* output_rows, uint16_t* out,
                         int32_t words) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int64_t row = item.get_group(0);
  const uint16_t* source = in + output_rows[row] * int64_t{words};
  for (int i = item.get_local_id(0); i < words; i += mr::kRowItems) {
    out[row * words + i] = source[i];
  }
}

// The operands of an F32 slot that feeds a linear op (post-norm models).
MR_KERNEL mr_round(const float* in, operand* out, int64_t n) {
  MR_AFTER_PREVIOUS();
  const int64_t i = this_item().get_global_id(0);
  if (i < n) out[i] = to_operand(in[i]);
}

// The first `words` words of every block of a slab. A work-group per block.
MR_KERNEL mr_copy_slab(const uint32_t* from, uint32_t* to, int32_t block, int32_t words) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int64_t at = item.get_group(0) * int64_t{block};
  for (int i = item.get_local_id(0); i < words; i += mr::kRowItems) {
    to[at + i] = from[at + i];
  }
}
