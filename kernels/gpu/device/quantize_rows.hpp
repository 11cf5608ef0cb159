// The kernel before the products of codes, whoever computes these.
#ifndef MILLRACE_GPU_DEVICE_QUANTIZE_ROWS_HPP
#define MILLRACE_GPU_DEVICE_QUANTIZE_ROWS_HPP

#include "quantize.hpp"

// Each row's codes and scale. A work-group per row.
MR_KERNEL mr_quantize_rows(const operand* in, int8_t* codes, float* scales, int32_t depth,
                           int32_t padded_depth) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int64_t row = item.get_group(0);
  const float scale = quantize_row(item, mr::kRowItems, in + row * depth, depth, padded_depth,
                                   codes + row * padded_depth);
  if (item.get_local_id(0) == 0) scales[row] = scale;
}

#endif
