// Programs of one attention op, for tests.
#ifndef MILLRACE_TEST_ATTENTION_CASE_HPP
#define MILLRACE_TEST_ATTENTION_CASE_HPP

#include <cmath>
#include <string>
#include <vector>

#include "harness.hpp"

namespace millrace::test {

struct AttentionCase {
  int heads = 4, kv_heads = 2, head_dim = 64;
  int rotary_dim = 0;
  bool interleaved = false;
  float rotary_scale = 1;
  bool norms = false;
  int window = 0;
  int sinks = 0;
  int heavy = 0, recent = 0;
  bool alibi = false;
  bool norm_last = false, chunked = false, null_scores = false;
  bool both_ways = false;
  float softcap = 0;
  int q_scale_tokens = 0;  // 0: queries have no factors
  int context = 0;         // tokens before the compared ones
  int rows = 1;            // compared, in one step

  std::string text() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
           std::to_string(head_dim) + ", rotary " + std::to_string(rotary_dim) +
           (interleaved ? " interleaved" : "") + (norms ? ", norms" : "") + ", window " +
           std::to_string(window) + ", sinks " + std::to_string(sinks) + (alibi ? ", alibi" : "") +
           (norm_last ? ", normed last" : "") + (chunked ? ", chunks" : "") +
           (both_ways ? ", both ways" : "") + (null_scores ? ", null scores" : "") +
           (softcap > 0 ? ", capped" : "") + (q_scale_tokens > 0 ? ", factors" : "") + ", " +
           std::to_string(rows) + " rows after " + std::to_string(context);
  }
};

// A case without what only the CPU backend has.
inline AttentionCase plain(AttentionCase c) {
  c.both_ways = false;
  return c;
}

// The QKV of a token is its row of the table, so that the values are chosen.
inline Builder attention_program(const AttentionCase& c) {
  Builder b;
  Random random(7 + c.head_dim + c.heads);
  b.kv_heads = c.kv_heads;
  b.head_dim = c.head_dim;
  b.vocab = c.heads * c.head_dim;
  const int width = (c.heads + 2 * c.kv_heads) * c.head_dim;
  const int qkv = b.slot(MR_SLOT_F32, width), out = b.slot(MR_SLOT_F32, b.vocab);
  const int logits = b.slot(MR_SLOT_F32, b.vocab);
  b.embed(b.random(random, b.vocab, width, MR_BF16, 1.0f), qkv);
  mr_op& rope = b.rope_store(0, qkv, c.heads);
  rope.attention.rotary_dim = c.rotary_dim;
  rope.attention.rotary_interleaved = c.interleaved;
  rope.attention.rotary_scale = c.rotary_scale;
  if (c.rotary_dim > 0) rope.attention.inv_freq = b.inv_freq(c.rotary_dim);
  if (c.norms) {
    rope.attention.q_norm = b.random(random, c.head_dim, 0, MR_BF16, 0.2f, 1.0f);
    rope.attention.k_norm = b.random(random, c.head_dim, 0, MR_F32, 0.2f, 1.0f);
    rope.attention.norm_last = c.norm_last;
  }
  if (c.q_scale_tokens > 0) {
    rope.attention.q_scales = b.constant({1, 1.5f, 0.5f, 2});
    rope.attention.n_q_scales = 4;
    rope.attention.q_scale_offset = 1;
    rope.attention.q_scale_tokens = c.q_scale_tokens;
  }
  const int sink_q = c.sinks > 0 ? b.slot(MR_SLOT_F32, c.heads * c.head_dim) : -1;
  b.max_rows = b.max_outputs = std::max(b.max_rows, c.both_ways ? c.rows : 0);
  rope.attention.both_ways = c.both_ways;
  rope.attention.window = c.window;
  rope.attention.sinks = c.sinks;
  rope.attention.heavy = c.heavy;
  rope.attention.recent = c.recent;
  rope.attention.sink_q = sink_q;
  mr_op& attention = b.attention(0, qkv, c.heads, out);
  attention.attention.both_ways = c.both_ways;
  attention.attention.sinks = c.sinks;
  attention.attention.heavy = c.heavy;
  attention.attention.recent = c.recent;
  attention.attention.sink_q = sink_q;
  attention.attention.window = c.window;
  attention.attention.chunked = c.chunked;
  attention.attention.softcap = c.softcap;
  if (c.null_scores) attention.attention.null_scores = b.random(random, c.heads, 0, MR_BF16, 2.0f);
  if (c.alibi) {
    std::vector<float> slopes;
    for (int h = 0; h < c.heads; ++h) slopes.push_back(std::exp2(-8.0f * (h + 1) / c.heads));
    attention.attention.alibi_slopes = b.constant(slopes);
  }
  b.select_rows(out, logits);
  return b;
}

// The case, or without what the backend under test refuses.
inline AttentionCase tested(const std::string& isa, const AttentionCase& c) {
  Builder b = attention_program(c);
  return refuses(isa, b) ? plain(c) : c;
}

}  // namespace millrace::test

#endif
