// A checked op program: what a backend may rely on without checking again.
#ifndef MILLRACE_EXEC_PROGRAM_HPP
#define MILLRACE_EXEC_PROGRAM_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "exec/kv.hpp"
#include "millrace_kernels.h"

namespace millrace {

inline constexpr int kStateLanes = 16;

// Whether a token takes what the state has for its key off it, at a rate of its own.
inline bool erases(const mr_recur& u) {
  return u.rule == MR_RECUR_DELTA || u.rule == MR_RECUR_CHANNELS;
}

// Whether a RECUR reads its slot `rates`.
inline bool reads_rates(const mr_recur& u) { return erases(u) || u.rule == MR_RECUR_SCAN; }

class Kernels;
struct Run;

// An op with its place in the program. inv_freq, alibi_slopes, q_scales and null_values point
// into Program::constants.
struct Op : mr_op {
  int index = 0;
  void (Kernels::*run)(const Op&, const Run&) = nullptr;  // the function of its kind
  int64_t state = 0;  // CONV, RECUR: where a sequence's state of the op begins, in floats
  const float* null_values = nullptr;  // ATTENTION: what null_scores has
  int place = 0;  // ROPE_STORE, ATTENTION: of the layer in KvLayout::layers and Program::kv_layers

  // The parts of a linear op's expert, or of the op itself: all of one expert, and how many.
  const mr_part* parts_of(int expert) const {
    if (linear.routed == MR_ROUTED_NONE) return linear.parts;
    return linear.expert_parts + int64_t{expert} * parts_each();
  }
  int parts_each() const {
    if (linear.routed == MR_ROUTED_NONE) return linear.n_parts;
    return linear.gated ? 2 : 1;
  }
  // What a part multiplies of a row of `in` that is this wide.
  int part_width(int width) const {
    if (linear.routed == MR_ROUTED_SUM) return width / linear.top_k;
    if (linear.routed == MR_ROUTED_HEADS) return width / linear.experts - linear.tail;
    return width;
  }
  int expert_count() const { return linear.routed == MR_ROUTED_NONE ? 1 : linear.experts; }

  // CONV, RECUR: the floats of a sequence's state.
  int64_t state_floats() const {
    if (kind == MR_OP_CONV) return int64_t{conv.kernel - 1} * conv.channels;
    return int64_t{recur.heads} * recur.keys * state_row();
  }
  // RECUR: the floats of a row of a head's state, whole vectors.
  int state_row() const { return (recur.values + kStateLanes - 1) / kStateLanes * kStateLanes; }

  // The factor of the queries of a position.
  float q_scale(int position) const {
    const mr_attention& a = attention;
    if (a.q_scales == nullptr) return 1;
    const int64_t number = (int64_t{position} + a.q_scale_offset) / a.q_scale_tokens;
    return a.q_scales[std::min<int64_t>(a.n_q_scales - 1, number)];
  }

  // EMBED: the row of a token in its table, which may have fewer rows where the op accumulates.
  int64_t table_row(int32_t token, const mr_tensor& table) const {
    return embed.accumulate && token >= table.dims[0] ? 0 : token;
  }

  // The first position that the query of a position sees.
  int first_seen(int position) const {
    const int window = attention.window;
    if (window == 0 || position < window) return 0;
    return attention.chunked ? position - position % window : position - window + 1;
  }

  // The last position that the query of a position sees, of a sequence of some tokens so far.
  int last_seen(int position, int tokens) const {
    if (!attention.both_ways) return position;
    return attention.window > 0 ? std::min(tokens, position + attention.window) - 1 : tokens - 1;
  }

  // The position that the query of a position has for the sinks.
  int sink_position(int position) const {
    return std::min(position, attention.sinks + attention.window - 1);
  }
};

struct Program {
  std::vector<Op> ops;
  std::vector<mr_slot> slots;
  std::vector<mr_tensor> tensors;  // the data is the caller's
  std::vector<int> slot_rows;      // [slots] most rows that a slot ever holds; 0 for the logits
  int select = 0;       // index of the first SELECT_ROWS op; from it on ops run on output rows
  int logits_slot = 0;  // the last op's slot: its memory is the caller's
  int vocab = 0, classes = 0;  // tokens; logits of an output
  int layers = 0;              // of a slab
  int kv_groups = 1;
  std::vector<LayerShape> kv_layers;  // [kv_groups][layers]
  int32_t kv_type = MR_KV_AUTO;
  int max_positions = 0, max_rows = 0, max_outputs = 0, max_hidden = 0;
  // [kv_groups] How many positions before its own a row may look at: the largest window of a
  // group, or max_positions where some layer has no window.
  std::vector<int> lookback;
  int sinks = 0;  // tokens at the beginning that a row sees beside those; with one group only
  int heavy = 0, recent = 0;  // as mr_attention has them
  bool both_ways = false;
  int64_t state = 0;  // floats that a sequence keeps beside its keys and values
  std::deque<std::vector<float>> constants;
  std::deque<std::vector<mr_part>> expert_parts;
  const std::byte* packed = nullptr;  // the caller's, as mr_program_desc has them
  size_t packed_bytes = 0;
  void (*use_weights)(uintptr_t context, int32_t op, int32_t in_use) = nullptr;  // likewise
  uintptr_t context = 0;

  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // The keys and values of the first layer that has some; without such a layer heads is 0.
  LayerShape first_layer() const {
    const auto has =
        std::ranges::find_if(kv_layers, [](const LayerShape& s) { return s.heads > 0; });
    return has == kv_layers.end() ? LayerShape{} : *has;
  }
  // The tokens that an eviction keeps; 0: there is none.
  int kept() const { return heavy > 0 ? heavy + recent : 0; }
  // Where a KV head that keeps kept() tokens has the one at a position, which it has just stored.
  int place(int position) const {
    return std::min(position / MR_H2O_TOKENS * MR_H2O_TOKENS, kept()) + position % MR_H2O_TOKENS;
  }
  // The places that a sequence of some tokens has used, at most.
  int places(int tokens) const {
    return kept() > 0 ? std::min(tokens, kept() + MR_H2O_TOKENS) : tokens;
  }
  // The rows that SELECT_ROWS leaves at most.
  int max_selected() const { return std::min(max_rows, max_outputs + max_hidden); }
  const mr_tensor* tensor(int index) const { return index < 0 ? nullptr : &tensors[index]; }

  // As mr_program_desc's use_weights, of ops of any kind.
  void use(const Op& op, bool in_use) const {
    if (op.kind == MR_OP_LINEAR && use_weights != nullptr) use_weights(context, op.index, in_use);
  }
};

// The weights of an op are in memory while it lives.
class WeightsInUse {
 public:
  WeightsInUse(const Program& program, const Op& op) : program_(program), op_(op) {
    program_.use(op_, true);
  }
  ~WeightsInUse() { program_.use(op_, false); }
  WeightsInUse(const WeightsInUse&) = delete;
  WeightsInUse& operator=(const WeightsInUse&) = delete;

 private:
  const Program& program_;
  const Op& op_;
};

// Checks every op and copies what the description points to, except for the
// tensors' data. Throws Error(MR_INVALID) naming the op, found and expected.
void read_program(const mr_program_desc& desc, Program& program);

const char* op_name(int32_t kind);
// Weights with a scale for each group of a row's.
bool in_groups(int32_t weights);
// Weights that meet rows quantized to int8.
bool quantizes_rows(int32_t weights);
const char* kv_type_name(int32_t type);
const char* dtype_name(int32_t dtype);
int dtype_bytes(int32_t dtype);

}  // namespace millrace

#endif
