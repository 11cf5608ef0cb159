// out[row] = scale * table[token[row]] (+ positions[position[row] + offset]) (+ types[type[row]]), or out[row] += it.
// A token of -1 - i is drawn[i], what the step before has drawn from its output i; where it drew none, nobody wants the row.
// A work-group per row.
#include "common.hpp"

// Where element i of a token's row lies in the table.
MR_INLINE int64_t table_place(const mr::EmbedShape& s, int32_t token, int i) {
  if (s.columns == 0) return int64_t{token} * s.width + i;
#if MR_MMA
  const int64_t tile = (int64_t{token / s.columns} * s.steps + i / 2) / 8;
  return (tile * mr::kMmaTileWords + mr::mma_place(i / 2 % 8, token % s.columns)) * 2 + i % 2;
#endif
  const int64_t step = int64_t{token / s.columns} * s.steps + i / s.deep;
  return (step * s.columns + token % s.columns) * s.deep + i % s.deep;
}

MR_KERNEL mr_embed(const int32_t* tokens, const int32_t* drawn, const int32_t* row_positions,
                   const int32_t* row_types, const void* table, const void* positions,
                   const void* types, void* out, mr::EmbedShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int64_t row = item.get_group(0);
  int32_t token = tokens[row];
  if (token < 0) token = drawn[-1 - token];
  if (token < 0) token = 0;
  if (s.added > 0 && token >= s.added) token = 0;
  const int64_t position = (int64_t{row_positions[row]} + s.position_offset) * s.width;
  const int64_t type = s.typed ? int64_t{row_types[row]} * s.width : 0;
  for (int i = item.get_local_id(0); i < s.width; i += mr::kRowItems) {
    float x = 0;
    if (s.table_type >= 0) x = s.scale * element(table, s.table_type, table_place(s, token, i));
    if (s.position_type >= 0) x += element(positions, s.position_type, position + i);
    if (s.type_type >= 0) x += element(types, s.type_type, type + i);
    if (s.added > 0) x += static_cast<const float*>(out)[row * s.width + i];
    store(out, s.out_f32, row * s.width + i, x);
  }
}
