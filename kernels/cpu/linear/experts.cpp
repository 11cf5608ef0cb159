#include "cpu/linear/experts.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/linear/kernels.hpp"
#include "cpu/machine/pages.hpp"

namespace millrace::cpu {
namespace {

// The share that has an item of a count that shares have after one another.
template <class Share>
const Share& share_of(const std::vector<Share>& shares, int Share::*before, int item) {
  const auto next = std::upper_bound(shares.begin(), shares.end(), item,
                                     [&](int i, const Share& s) { return i < s.*before; });
  return *(next - 1);
}

}  // namespace

Experts::Experts(std::vector<std::unique_ptr<Linear>> experts, const mr_linear& op)
    : experts_(std::move(experts)),
      top_k_(op.top_k),
      tail_(op.tail),
      slices_(op.routed != MR_ROUTED_EACH),
      reduces_(op.routed == MR_ROUTED_SUM),
      accumulates_(op.accumulate != 0),
      weighs_in_(op.weighs_in != 0) {}

Experts::Sorted Experts::sort(const float* chosen, int rows, int threads) const {
  const int all = rows * top_k_;
  std::vector<int> counts(experts_.size() + 1);
  const auto expert_of = [&](int i) {
    return chosen == nullptr ? i % top_k_ : static_cast<int>(chosen[2 * i]);
  };
  for (int i = 0; i < all; ++i) ++counts[expert_of(i) + 1];
  Sorted s;
  for (size_t e = 0; e < experts_.size(); ++e) {
    const int n = counts[e + 1];
    counts[e + 1] += counts[e];
    if (n == 0) continue;
    const Linear& linear = *experts_[e];
    Share share{static_cast<int>(e), counts[e], n, linear.plan(n, threads), {}, s.packs, s.tasks};
    s.packs += linear.pack_tasks(share.plan.tiling);
    s.tasks += Linear::tasks(share.plan);
    s.shares.push_back(share);
  }
  s.from.resize(all);
  s.place.resize(all);
  for (int i = 0; i < all; ++i) {
    const int place = counts[expert_of(i)]++;
    s.from[place] = i;
    s.place[i] = place;
  }
  return s;
}

// copies: room for [threads][kPackRows] rows.
void Experts::pack(const Sorted& sorted, const bf16* in, const float* chosen, std::byte* copies,
                   ThreadPool& pool) const {
  const int64_t width = experts_[0]->in_width();
  const int64_t elements = static_cast<int64_t>(sorted.from.size()) * width;
  Linear::for_operand(pool, elements, sorted.packs, [&](int task, int thread) {
    const Share& share = share_of(sorted.shares, &Share::packs, task);
    auto* const copy = reinterpret_cast<bf16*>(copies) + thread * Linear::kPackRows * width;
    experts_[share.expert]->pack_task(share.batch, task - share.packs, [&](int first, int count) {
      for (int r = 0; r < count; ++r) {
        const int from = sorted.from[share.first + first + r];
        const bf16* row = in + (slices_ ? from : from / top_k_) * (width + tail_);
        bf16* const to = copy + r * width;
        std::memcpy(to, row, width * sizeof(bf16));
        if (reduces_ || !weighs_in_) continue;
        const float weight = chosen[2 * from + 1];
        for (int64_t k = 0; k < width; ++k) to[k] = from_float(weight * to_float(to[k]));
      }
      return copy;
    });
  });
}

void Experts::run(const bf16* in, const float* floats, const float* chosen, int rows, void* out,
                  ThreadPool& pool) const {
  if (rows <= 0) return;
  const Linear& any = *experts_[0];
  Sorted sorted = sort(chosen, rows, pool.size());
  const size_t element = any.out_f32_ ? sizeof(float) : sizeof(bf16),
               out_row = any.out_width() * element;
  // The scratch: products by expert, operands, copies of rows, each thread's room.
  const size_t products = whole_lines(rows * top_k_ * out_row);
  const size_t copies =
      whole_lines(pool.size() * Linear::kPackRows * any.in_width() * sizeof(bf16));
  size_t operands = 0;
  int64_t room = 0;
  for (const Share& s : sorted.shares) {
    operands += whole_lines(any.operand_room(s.rows));
    room = std::max(room, s.plan.room);
  }
  auto* const scratch = static_cast<std::byte*>(
      pool.scratch(products + operands + copies + room * pool.size() * sizeof(float)));
  std::byte* operand = scratch + products;
  for (Share& s : sorted.shares) {
    s.batch = {experts_[s.expert]->place(s.plan.tiling, operand), scratch + s.first * out_row};
    operand += whole_lines(any.operand_room(s.rows));
  }
  pack(sorted, in, chosen, operand, pool);
  auto* const rooms = reinterpret_cast<float*>(operand + copies);
  pool.parallel_for(sorted.tasks, [&](int task, int thread) {
    const Share& s = share_of(sorted.shares, &Share::tasks, task);
    experts_[s.expert]->run_task(s.batch, s.plan, task - s.tasks, rooms + thread * room);
  });
  if (reduces_)
    return add_up(sorted, chosen, reinterpret_cast<const float*>(scratch), rows,
                  static_cast<float*>(out), pool);
  const size_t tail = tail_ * sizeof(float);
  pool.parallel_for(rows, [&](int r, int) {
    for (int i = r * top_k_; i < (r + 1) * top_k_; ++i) {
      auto* const to = static_cast<std::byte*>(out) + i * (out_row + tail);
      std::memcpy(to, scratch + sorted.place[i] * out_row, out_row);
      if (tail == 0) continue;
      const int64_t width = any.in_width();
      std::memcpy(to + out_row, floats + i * (width + tail_) + width, tail);
    }
  });
}

// In the order of the row's choices.
void Experts::add_up(const Sorted& sorted, const float* chosen, const float* products, int rows,
                     float* out, ThreadPool& pool) const {
  const int64_t width = experts_[0]->out_width();
  pool.parallel_for(rows, [&](int r, int) {
    float* const y = out + r * width;
    if (!accumulates_) std::fill_n(y, width, 0.0f);
    for (int i = r * top_k_; i < (r + 1) * top_k_; ++i) {
      const float weight = weighs_in_ ? 1.0f : chosen[2 * i + 1];
      const float* const x = products + sorted.place[i] * width;
      for (int64_t n = 0; n < width; ++n) y[n] += weight * x[n];
    }
  });
}

}  // namespace millrace::cpu
