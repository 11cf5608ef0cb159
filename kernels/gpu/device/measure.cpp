// What the device can reach at most: streaming reads, and products that touch
// registers only.
#if MR_MMA
#include "common.hpp"
#include "ptx.hpp"
#else
#include "matrix.hpp"
#endif

// Adds up the words, but for a few at the end of each sub-group's stretch.
MR_KERNEL mr_read(const uint32_t* data, int64_t words, uint32_t* out) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  sycl::vec<uint32_t, 4> sums(0);
#if MR_XMX || MR_MMA  // four words of each item, all items side by side
  const auto* fours = reinterpret_cast<const sycl::vec<uint32_t, 4>*>(data);
  const int64_t items = item.get_global_range(0);
  for (int64_t i = item.get_global_id(0); i < words / 4; i += items) sums += fours[i];
#else  // a stretch for each sub-group, as linear ops read their weights
  const auto sub_group = item.get_sub_group();
  const int64_t sub_groups = item.get_global_range(0) / MR_LANES;
  const int64_t stripes = item.get_local_range(0) / MR_LANES;
  const int64_t stretch = words / sub_groups / (4 * MR_LANES) * (4 * MR_LANES);
  const uint32_t* mine = data + (item.get_group(0) * stripes + sub_group_index(item)) * stretch;
  for (int64_t i = 0; i < stretch; i += 4 * MR_LANES)
#pragma unroll
    for (int k = 0; k < 4; ++k) sums[k] += load_lanes(sub_group, mine + i + k * MR_LANES);
#endif
  const uint32_t total = sums[0] + sums[1] + sums[2] + sums[3];
  if (total == 1) out[0] = total;  // never, but the compiler cannot know
}

// `rounds` times 4 products of 8 x 16 by 16 x MR_LANES per sub-group.
MR_KERNEL mr_products(const operand* rows, int32_t rounds, float* out) {
  MR_AFTER_PREVIOUS();
  constexpr int kChains = 4;
  const Item item = this_item();
#if MR_MMA
  uint32_t a[4];
  float sums[2 * kChains][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = rows[item.get_local_id(0) + i];
  for (int r = 0; r < rounds; ++r)
#pragma unroll
    for (auto& chain : sums) mr_ptx::multiply(chain, a, a[0], a[1]);
#else
  const int lane = item.get_sub_group().get_local_linear_id();
  mr_matrix::Columns b;
#pragma unroll
  for (int i = 0; i < 8; ++i) b.words[i] = rows[lane + i];
  float sums[kChains][8];
#pragma unroll
  for (auto& chain : sums)
#pragma unroll
    for (float& x : chain) x = 0;
  const auto a = mr_matrix::load_rows<8>(rows, mr::kDepth, 8, mr::kDepth, lane);
  for (int r = 0; r < rounds; ++r)
#pragma unroll
    for (auto& chain : sums) mr_matrix::multiply<8>(a, b, chain);
#endif
  float total = 0;
#pragma unroll
  for (auto& chain : sums)
#pragma unroll
    for (const float x : chain) total += x;
  if (total == 1) out[0] = total;
}
