// Rows that are copied, or added up: the outputs' rows, operands of an F32 slot, a KV slab, the sums of ranks.
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

// out[i] = the first row of the sequence of output_rows[i], or, of floats, the mean of its rows, whose sum has Kahan's
// correction. `words` as above. A work-group per row.
MR_KERNEL mr_pool_rows(const uint16_t* in, const int32_t* output_rows, const int32_t* row_sequence,
                       const mr::SequenceEntry* sequences, uint16_t* out, int32_t words,
                       int32_t mean) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int64_t row = item.get_group(0);
  const mr::SequenceEntry sequence = sequences[row_sequence[output_rows[row]]];
  const uint16_t* first = in + sequence.first_row * int64_t{words};
  if (!mean) {
    for (int i = item.get_local_id(0); i < words; i += mr::kRowItems) {
      out[row * words + i] = first[i];
    }
    return;
  }
  const int width = words / 2;
  for (int i = item.get_local_id(0); i < width; i += mr::kRowItems) {
    float sum = 0, excess = 0;
    for (int r = 0; r < sequence.rows; ++r) {
      const float x = reinterpret_cast<const float*>(first)[int64_t{r} * width + i] - excess;
      const float next = sum + x;
      excess = next - sum - x;
      sum = next;
    }
    reinterpret_cast<float*>(out)[row * width + i] = sum / static_cast<float>(sequence.rows);
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

// out = in_0 + in_1 + ..., in the order of the ranks, or out += that.
MR_KERNEL mr_sum_ranks(float* out, mr::RankSums s) {
  MR_AFTER_PREVIOUS();
  const int64_t i = this_item().get_global_id(0);
  if (i >= s.n) return;
  float sum = reinterpret_cast<const float*>(kv_memory(s.in[0]))[i];
  for (int r = 1; r < s.ranks; ++r) sum += reinterpret_cast<const float*>(kv_memory(s.in[r]))[i];
  out[i] = s.accumulate ? out[i] + sum : sum;
}
