#include "exec/cascade.hpp"

#include <algorithm>
#include <span>

namespace millrace {
namespace {

// The slabs that no row of the sequence writes in this step.
std::span<const int32_t> stored(const Sequence& s) {
  return {s.slabs, static_cast<size_t>(s.position / MR_SLAB_TOKENS)};
}

// Tokens at the beginning that are the same memory, in whole blocks.
int common_tokens(const Sequence& a, const Sequence& b) {
  const auto x = stored(a), y = stored(b);
  const auto slabs = std::ranges::mismatch(x, y).in1 - x.begin();
  return static_cast<int>(slabs) * MR_SLAB_TOKENS / kSharedBlock * kSharedBlock;
}

}  // namespace

void Cascade::find(const Batch& batch, int most_rows, int least) {
  groups_.clear();
  members_.clear();
  step_rows_.clear();
  common_.clear();
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const Sequence& s = batch.sequences[i];
    if (s.beams != nullptr || s.rows > most_rows || s.position < least) continue;
    if (s.slabs[0] < 0) continue;  // not mapped any more: no window of this sequence shows it
    members_.push_back({static_cast<int>(i), 0, s.rows});
  }
  // In this order two members have in common what all members from the one to the other have.
  const auto sequence = [&](const Member& m) -> const Sequence& {
    return batch.sequences[m.sequence];
  };
  std::ranges::sort(members_, [&](const Member& a, const Member& b) {
    return std::ranges::lexicographical_compare(stored(sequence(a)), stored(sequence(b)));
  });
  for (Member& m : members_) {
    m.first = static_cast<int>(step_rows_.size());
    const Sequence& s = sequence(m);
    for (int r = 0; r < s.rows; ++r) step_rows_.push_back({s.first_row + r, s.position + r});
  }
  for (size_t i = 0; i + 1 < members_.size(); ++i) {
    common_.push_back(common_tokens(sequence(members_[i]), sequence(members_[i + 1])));
  }
  divide(least);
}

// Chooses the groups that save the most: all members of a group but one do not read its tokens.
void Cascade::divide(int least) {
  const int n = static_cast<int>(members_.size());
  saved_.assign(n + 1, 0);
  last_.assign(n + 1, 0);
  for (int end = 1; end <= n; ++end) {
    saved_[end] = saved_[end - 1];
    last_[end] = end - 1;
    int tokens = end > 1 ? common_[end - 2] : 0;
    for (int begin = end - 2; begin >= 0; --begin) {
      tokens = std::min(tokens, common_[begin]);
      if (tokens < least) break;
      const int64_t saved = saved_[begin] + int64_t{end - 1 - begin} * tokens;
      if (saved <= saved_[end]) continue;
      saved_[end] = saved;
      last_[end] = begin;
    }
  }
  for (int end = n; end > 0; end = last_[end]) {
    if (end - last_[end] > 1) add_group(last_[end], end);
  }
}

void Cascade::add_group(int begin, int end) {
  Group group{begin, end, *std::min_element(&common_[begin], &common_[end - 1]), 0, 0};
  for (int i = begin; i < end; ++i) {
    const Member& m = members_[i];
    group.most_rows = std::max(group.most_rows, m.rows);
    group.last_position = std::max(group.last_position, step_rows_[m.first + m.rows - 1].position);
  }
  groups_.push_back(group);
}

}  // namespace millrace
