#include "cpu/ops/kivi.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/ops/ops.hpp"

namespace millrace::cpu {
namespace {

// A row's key (value = 0) or value of a KV head in the slot.
const float* row_head(const Op& op, Slot in, int64_t row, int value, int head) {
  return in.f32() + row * in.width +
         (op.attention.heads + value * op.attention.kv_heads + head) * op.attention.head_dim;
}

// The tokens of a group as the cache keeps them, [MR_KIVI_TOKENS][head_dim].
void gather(const Context& c, const Op& op, const Sequence& s, Slot in, int first, int value,
            int head, float* to) {
  const int d = op.attention.head_dim;
  for (int t = first; t < first + MR_KIVI_TOKENS; ++t, to += d) {
    if (t >= s.position) {
      const float* x = row_head(op, in, s.first_row + t - s.position, value, head);
      for (int i = 0; i < d; ++i) to[i] = rounded(x[i]);
      continue;
    }
    const auto* x = reinterpret_cast<const bf16*>(s.head + c.kv.block(op.place, value, head) +
                                                  exact_offset(c.kv.slab_bytes, d, t));
    for (int i = 0; i < d; ++i) to[i] = to_float(x[i]);
  }
}

// blocks: of the group's two slabs.
void code_keys(const float* x, int d, std::byte* const (&blocks)[2]) {
  uint32_t* const words[2] = {reinterpret_cast<uint32_t*>(blocks[0]),
                              reinterpret_cast<uint32_t*>(blocks[1])};
  auto* scales = reinterpret_cast<bf16*>(blocks[0] + KiviCodes{d}.parts());
  auto* zeros = reinterpret_cast<bf16*>(blocks[1] + KiviCodes{d}.parts());
  for (int k = 0; k < d; ++k) {
    uint8_t codes[MR_KIVI_TOKENS];
    const Kivi q = quantize_kivi(x + k, MR_KIVI_TOKENS, d, codes);
    for (int slab = 0; slab < 2; ++slab) {
      uint32_t word = 0;
      for (int t = 0; t < kSlabTokens; ++t) {
        word |= uint32_t{codes[slab * kSlabTokens + t]} << (2 * t);
      }
      words[slab][k] = word;
    }
    scales[k] = from_float(q.scale);
    zeros[k] = from_float(q.zero);
  }
}

void code_values(const float* x, int d, std::byte* const (&blocks)[2]) {
  const KiviCodes layout{d};
  for (int slab = 0; slab < 2; ++slab) {
    auto* words = reinterpret_cast<uint32_t*>(blocks[slab]);
    auto* scales = reinterpret_cast<bf16*>(blocks[slab] + layout.parts());
    auto* zeros = scales + layout.groups() * kSlabTokens;
    std::fill_n(words, d, 0u);
    for (int t = 0; t < kSlabTokens; ++t, x += d) {
      for (int g = 0; g < layout.groups(); ++g) {
        uint8_t codes[kKvGroup];
        const int first = g * kKvGroup, n = std::min(kKvGroup, d - first);
        const Kivi q = quantize_kivi(x + first, n, 1, codes);
        for (int i = 0; i < n; ++i) words[first + i] |= uint32_t{codes[i]} << (2 * t);
        scales[g * kSlabTokens + t] = from_float(q.scale);
        zeros[g * kSlabTokens + t] = from_float(q.zero);
      }
    }
  }
}

}  // namespace

static_assert(MR_KIVI_TOKENS == 2 * kSlabTokens);

void KiviStore::code(const Context& c, const Op& op, const Batch& batch, Slot in) {
  groups_.clear();
  for (const Sequence& s : batch.sequences) {
    for (int first = s.position / MR_KIVI_TOKENS * MR_KIVI_TOKENS;
         first + MR_KIVI_TOKENS <= s.position + s.rows; first += MR_KIVI_TOKENS) {
      groups_.push_back({&s, first});
    }
  }
  const int heads = 2 * op.attention.kv_heads, tasks = static_cast<int>(groups_.size()) * heads;
  c.pool.parallel_for(tasks, [&](int task, int) {
    const auto [s, first] = groups_[task / heads];
    const int value = task % 2, head = task % heads / 2, d = op.attention.head_dim;
    float x[MR_KIVI_TOKENS * kMaxHeadDim];
    gather(c, op, *s, in, first, value, head, x);
    std::byte* const block =
        s->kv + c.kv.slab_bytes * (first / kSlabTokens) + c.kv.block(op.place, value, head);
    std::byte* const blocks[2] = {block, block + c.kv.slab_bytes};
    (value == 0 ? code_keys : code_values)(x, d, blocks);
  });
}

void KiviStore::keep(const Context& c, const Op& op, const Batch& batch, Slot in) {
  const int d = op.attention.head_dim;
  for_rows(c.pool, batch.rows, 2 * op.attention.kv_heads * d, [&](int row, int) {
    const auto next = std::upper_bound(batch.sequences.begin(), batch.sequences.end(), row,
                                       [](int r, const Sequence& s) { return r < s.first_row; });
    const Sequence& s = next[-1];
    if (s.first_row + s.rows - row > kExactTokens) return;
    for (int h = 0; h < op.attention.kv_heads; ++h) {
      for (int value = 0; value < 2; ++value) {
        const float* x = row_head(op, in, row, value, h);
        auto* to = reinterpret_cast<bf16*>(s.head + c.kv.block(op.place, value, h) +
                                           exact_offset(c.kv.slab_bytes, d, batch.positions[row]));
        for (int i = 0; i < d; ++i) to[i] = from_float(x[i]);
      }
    }
  });
}

}  // namespace millrace::cpu
