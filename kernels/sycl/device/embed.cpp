// out[row] = scale * table[token[row]] (+ positions[position[row] + offset]).
// A work-group per row.
#include "common.hpp"

MR_KERNEL mr_embed(const int32_t* tokens, const int32_t* row_positions, const void* table,
                   const void* positions, void* out, mr::EmbedShape s) {
  const Item item = this_item();
  const int64_t row = item.get_group(0);
  const int64_t token = tokens[row] * int64_t{s.width};
  const int64_t position = (int64_t{row_positions[row]} + s.position_offset) * s.width;
  for (int i = item.get_local_id(0); i < s.width; i += mr::kRowItems) {
    float x = 0;
    if (s.table_type >= 0) x = s.scale * element(table, s.table_type, token + i);
    if (s.position_type >= 0) x += element(positions, s.position_type, position + i);
    store(out, s.out_f32, row * s.width + i, x);
  }
}
