#include "exec/h2o.hpp"

#include <algorithm>
#include <bit>

#include "exec/error.hpp"

namespace millrace {

void check_h2o(const KvLayout& kv, const Batch& batch, int place) {
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const Sequence& s = batch.sequences[i];
    if (s.position == 0) continue;
    const int had = H2oHead(kv, s, place, 0).tokens();
    if (had != s.position) {
      fail(MR_INVALID,
           "sequence %zu is at position %d, expected 0 or %d: its sums have that many tokens", i,
           s.position, had);
    }
  }
}

std::vector<int> h2o_kept(const Program& p, const H2oHead& head, int live) {
  const int before = live - p.recent;
  // Floats that are not negative are in the order of their bits. Later places have larger keys.
  std::vector<uint64_t> order(before);
  for (int i = 0; i < before; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(head.sum(i)) & 0x7fffffffu;
    order[i] = uint64_t{bits} << 32 | static_cast<uint32_t>(i);
  }
  const auto heavy = order.end() - p.heavy;
  std::nth_element(order.begin(), heavy, order.end());
  std::vector<int> kept;
  kept.reserve(p.kept());
  for (auto i = heavy; i != order.end(); ++i) kept.push_back(static_cast<int>(*i & 0xffffffffu));
  std::sort(kept.begin(), kept.end());
  for (int i = before; i < live; ++i) kept.push_back(i);
  return kept;
}

}  // namespace millrace
