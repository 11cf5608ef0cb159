// H2O (arXiv:2306.14048): what an eviction keeps. Every backend takes it from here.
//
// A KV head's tokens are in the places [0, Program::kept() + MR_H2O_TOKENS) of a region, in order of
// position. A block of a slab ends in kH2oBytes: of keys the sums of their 16 places; of values, in
// a region's first slab, the number of tokens that the sequence has had so far.
#ifndef MILLRACE_EXEC_H2O_HPP
#define MILLRACE_EXEC_H2O_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "exec/step.hpp"

namespace millrace {

inline constexpr size_t kH2oBytes = MR_SLAB_TOKENS * sizeof(float);

// The keys and values of one layer and KV head of a sequence.
struct H2oHead {
  std::byte *keys, *values;  // blocks in the region's first slab
  size_t slab_bytes, block_bytes;

  H2oHead(const KvLayout& kv, const Sequence& s, int place, int head)
      : keys(s.kv + kv.block(place, 0, head)),
        values(s.kv + kv.block(place, 1, head)),
        slab_bytes(kv.slab_bytes),
        block_bytes(kv.layers[place].bytes[0]) {}

  // Bytes from a block to its sums.
  size_t sums() const { return block_bytes - kH2oBytes; }
  float& sum(int place) const {
    std::byte* slab = keys + slab_bytes * (place / MR_SLAB_TOKENS);
    return reinterpret_cast<float*>(slab + sums())[place % MR_SLAB_TOKENS];
  }
  int32_t& tokens() const { return *reinterpret_cast<int32_t*>(values + sums()); }
};

// Checks that the rows of each sequence follow those that its sums have, or begin at 0.
// Throws Error(MR_INVALID).
void check_h2o(const KvLayout&, const Batch&, int place);

// The places that stay of `live` ones, ascending: the last `recent`, and of those before them the
// `heavy` of the largest sums, of equal ones the later. sum: a float of 0 or more for a place; a NaN
// is larger than all others.
std::vector<int> h2o_kept(const Program&, const H2oHead&, int live);

// The end of the tokens from a position on that see the same kept ones.
constexpr int h2o_end(int position) { return (position / MR_H2O_TOKENS + 1) * MR_H2O_TOKENS; }

// Evicts after the token before `position`, if it is time. move(from, to) moves the key and the
// value of a place.
template <class Move>
void h2o_evict(const Program& p, const H2oHead& head, int position, Move&& move) {
  const int live = p.place(position - 1) + 1;
  if (position % MR_H2O_TOKENS != 0 || live <= p.kept()) return;
  int to = 0;
  for (const int from : h2o_kept(p, head, live)) {
    if (from != to) {
      move(from, to);
      head.sum(to) = head.sum(from);
    }
    ++to;
  }
}

}  // namespace millrace

#endif
