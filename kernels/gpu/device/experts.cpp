// Mixtures of experts: who is chosen, rows sorted by their experts, and the sums of what experts give. The products
// are those of linear ops (linear.cpp, blocks.hpp), with MR_EXPERTS.
#include "common.hpp"

namespace mr_experts {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// The place of the largest of n numbers in local memory, of equal ones the first, by a sub-group. A NaN is below all.
MR_INLINE int best(const sycl::sub_group& sub_group, const float* x, int n) {
  uint64_t most = 0;
  for (int i = sub_group.get_local_linear_id(); i < n; i += MR_LANES) {
    const uint32_t bits = sycl::bit_cast<uint32_t>(x[i] + 0.0f);  // one zero
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t order = nan ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
    const uint64_t key = uint64_t{order} << 32 | static_cast<uint32_t>(~i);
    most = key > most ? key : most;
  }
  most = sycl::reduce_over_group(sub_group, most, sycl::maximum<uint64_t>());
  return static_cast<int>(~static_cast<uint32_t>(most));
}

// Only groups whose best experts, two or one, have the largest sums keep their experts. sums, kept: [groups]
MR_INLINE void keep_groups(const sycl::sub_group& sub_group, const mr::RouteShape& s, float* choice,
                           float* sums, float* kept) {
  const int lane = sub_group.get_local_linear_id(), size = s.experts / s.groups;
  for (int g = lane; g < s.groups; g += MR_LANES) {
    float first = kNone, second = kNone;
    for (int i = 0; i < size; ++i) {
      const float x = choice[g * size + i], less = sycl::fmin(first, x);
      second = sycl::fmax(second, less);
      first = sycl::fmax(first, x);
    }
    sums[g] = size > 1 && s.group_scores != 1 ? first + second : first;
    kept[g] = 0;
  }
  for (int k = 0; k < s.top_groups; ++k) {
    sycl::group_barrier(sub_group);
    const int g = best(sub_group, sums, s.groups);
    sycl::group_barrier(sub_group);
    if (lane == 0) {
      kept[g] = 1;
      sums[g] = kNone;
    }
  }
  sycl::group_barrier(sub_group);
  for (int e = lane; e < s.experts; e += MR_LANES) {
    if (kept[e / size] == 0) choice[e] = kNone;
  }
}

}  // namespace mr_experts

// chosen[row] = (expert, its weight) of the top_k experts, by exec/route.cpp's rule. A sub-group per row; local memory
// [scores][choice][sums of groups][kept groups].
MR_KERNEL mr_route(const float* logits, const float* bias, const float* factors, float* chosen,
                   sycl::local_accessor<float, 1> local, mr::RouteShape s) {
  using namespace mr_experts;
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto sub_group = item.get_sub_group();
  const int lane = sub_group.get_local_linear_id(), n = s.experts;
  float* const scores = local.get_multi_ptr<sycl::access::decorated::no>().get();
  float* const choice = scores + n;
  const float* in = logits + item.get_group(0) * int64_t{n};
  float* out = chosen + item.get_group(0) * int64_t{2} * s.top_k;

  float most = kNone, sum = 0;
  for (int e = lane; e < n; e += MR_LANES) most = sycl::fmax(most, in[e]);
  most = sycl::reduce_over_group(sub_group, most, sycl::maximum<float>());
  for (int e = lane; e < n; e += MR_LANES) {
    float x = in[e];
    if (s.scores == mr::kRouteSoftmax) sum += x = sycl::exp(x - most);
    if (s.scores == mr::kRouteSigmoid) x = 1 / (1 + sycl::exp(-x));
    scores[e] = x;
  }
  sum = sycl::reduce_over_group(sub_group, sum, sycl::plus<float>());
  for (int e = lane; e < n; e += MR_LANES) {
    if (s.scores == mr::kRouteSoftmax) scores[e] /= sum;
    choice[e] = s.bias ? scores[e] + bias[e] : scores[e];
  }
  sycl::group_barrier(sub_group);
  if (s.groups > 1) keep_groups(sub_group, s, choice, choice + n, choice + n + s.groups);

  for (int j = 0; j < s.top_k; ++j) {
    sycl::group_barrier(sub_group);
    const int e = best(sub_group, choice, n);
    float weight = scores[e];
    if (s.scores == mr::kRouteSparseMixer) {
      const float top = choice[e];
      float near = 0;
      for (int i = lane; i < n; i += MR_LANES) {
        const float far = (top - scores[i]) / sycl::fmax(sycl::fabs(scores[i]), top);
        if (!(far > 2 * s.jitter)) near += sycl::exp(choice[i] - top);
      }
      weight = 1 / sycl::reduce_over_group(sub_group, near, sycl::plus<float>());
    }
    sycl::group_barrier(sub_group);
    if (lane == 0) {
      choice[e] = kNone;
      out[2 * j] = static_cast<float>(e);
      out[2 * j + 1] = weight;
    }
  }
  if (lane != 0) return;
  if (s.scores == mr::kRouteSoftmaxChosen) {
    float top = kNone, total = 0;
    for (int j = 0; j < s.top_k; ++j) top = sycl::fmax(top, out[2 * j + 1]);
    for (int j = 0; j < s.top_k; ++j) total += out[2 * j + 1] = sycl::exp(out[2 * j + 1] - top);
    for (int j = 0; j < s.top_k; ++j) out[2 * j + 1] /= total;
  }
  float total = 0;
  for (int j = 0; j < s.top_k; ++j) total += out[2 * j + 1];
  for (int j = 0; j < s.top_k; ++j) {
    out[2 * j + 1] = (s.normalize ? out[2 * j + 1] / total : out[2 * j + 1]) * s.scale;
    if (s.factors) out[2 * j + 1] *= factors[static_cast<int>(out[2 * j])];
  }
}

// Sorts the pairs of a row and one of its experts by the expert, in ascending order: order[place] = pair and
// places[pair] = place; and cuts each expert's run into tiles. One work-group; local memory [experts].
MR_KERNEL mr_sort_experts(const float* chosen, int32_t* order, int32_t* places,
                          mr::ExpertTile* tiles, sycl::local_accessor<float, 1> local,
                          mr::SortShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  auto* counts =
      reinterpret_cast<int32_t*>(local.get_multi_ptr<sycl::access::decorated::no>().get());
  const int first = item.get_local_id(0);
  const auto expert = [&](int pair) { return static_cast<int>(chosen[2 * pair]); };
  for (int e = first; e < s.experts; e += mr::kSortItems) {
    int count = 0;
    for (int pair = 0; pair < s.pairs; ++pair) count += expert(pair) == e ? 1 : 0;
    counts[e] = count;
  }
  sycl::group_barrier(item.get_group());
  const auto tiles_of = [&](int e) { return (counts[e] + s.tile_rows - 1) / s.tile_rows; };
  for (int e = first; e < s.experts; e += mr::kSortItems) {
    if (counts[e] == 0) continue;
    int place = 0, tile = 0;
    for (int before = 0; before < e; ++before) {
      place += counts[before];
      tile += tiles_of(before);
    }
    for (int row = 0; row < counts[e]; row += s.tile_rows) {
      const int left = counts[e] - row;
      tiles[tile++] = {e, place + row, left < s.tile_rows ? left : s.tile_rows};
    }
    for (int pair = 0; pair < s.pairs; ++pair) {
      if (expert(pair) != e) continue;
      order[place] = pair;
      places[pair] = place++;
    }
  }
  int used = 0;
  for (int e = 0; e < s.experts; ++e) used += tiles_of(e);
  for (int tile = used + first; tile < s.tiles; tile += mr::kSortItems) tiles[tile] = {0, 0, 0};
}

// The operands of sorted pairs. A work-group per pair.
MR_KERNEL mr_gather_rows(const void* in, const float* chosen, const int32_t* order, operand* out,
                         mr::GatherShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int64_t place = item.get_group(0);
  const int pair = order[place];
  const int64_t row = int64_t{pair / s.sharing} * s.width;
  const float weight = s.weighs ? chosen[2 * pair + 1] : 1.0f;
  for (int i = item.get_local_id(0); i < s.width; i += mr::kRowItems) {
    const float x = s.in_f32 ? static_cast<const float*>(in)[row + i]
                             : to_float(static_cast<const operand*>(in)[row + i]);
    out[place * s.width + i] = to_operand(x * weight);
  }
}

// The operands of each head's part of the rows, sorted by head, and tiles of them. A work-group per row of a head.
MR_KERNEL mr_gather_heads(const void* in, operand* out, mr::ExpertTile* tiles, mr::HeadShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int head = static_cast<int>(item.get_group(0) / s.rows);
  const int row = static_cast<int>(item.get_group(0) % s.rows);
  const int first = item.get_local_id(0), place = head * s.rows + row;
  const int64_t from = (int64_t{row} * s.heads + head) * (s.width + s.tail);
  for (int i = first; i < s.width; i += mr::kRowItems) {
    out[int64_t{place} * s.width + i] = s.f32 ? to_operand(static_cast<const float*>(in)[from + i])
                                              : static_cast<const operand*>(in)[from + i];
  }
  if (first != 0 || row % s.tile_rows != 0) return;
  const int each = (s.rows + s.tile_rows - 1) / s.tile_rows, left = s.rows - row;
  tiles[head * each + row / s.tile_rows] = {head, place, left < s.tile_rows ? left : s.tile_rows};
}

// What the heads give back to the rows, each with the tail of its part of in, [heads][depth + tail]. A work-group per
// row of a head.
MR_KERNEL mr_place_heads(const void* y, const float* in, void* out, int32_t depth,
                         mr::HeadShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int head = static_cast<int>(item.get_group(0) / s.rows);
  const int row = static_cast<int>(item.get_group(0) % s.rows);
  const int64_t pair = int64_t{row} * s.heads + head;
  const int64_t from = (int64_t{head} * s.rows + row) * s.width, to = pair * (s.width + s.tail);
  for (int i = item.get_local_id(0); i < s.width + s.tail; i += mr::kRowItems) {
    if (!s.f32) {
      static_cast<operand*>(out)[to + i] = static_cast<const operand*>(y)[from + i];
    } else if (i < s.width) {
      static_cast<float*>(out)[to + i] = static_cast<const float*>(y)[from + i];
    } else {
      static_cast<float*>(out)[to + i] = in[pair * (depth + s.tail) + depth + i - s.width];
    }
  }
}

// out[row] = the sum of weight x y over the row's experts, in the order of its choices. A work-group per row.
MR_KERNEL mr_sum_experts(const float* y, const float* chosen, const int32_t* places, void* out,
                         mr::SumShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int64_t row = item.get_group(0);
  for (int i = item.get_local_id(0); i < s.width; i += mr::kRowItems) {
    float sum = s.accumulate ? static_cast<const float*>(out)[row * s.width + i] : 0.0f;
    for (int64_t pair = row * s.top_k; pair < (row + 1) * s.top_k; ++pair) {
      const float weight = s.weighs ? chosen[2 * pair + 1] : 1.0f;
      sum = sycl::fma(weight, y[int64_t{places[pair]} * s.width + i], sum);
    }
    store(out, s.out_f32, row * s.width + i, sum);
  }
}
