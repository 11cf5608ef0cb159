#include "exec/program.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "exec/backend.hpp"
#include "exec/blocks.hpp"
#include "exec/error.hpp"
#include "exec/tensor.hpp"

namespace millrace {
namespace {

constexpr int kMaxOps = 1 << 16;
constexpr int kMaxWidth = 1 << 24;
constexpr int64_t kMaxElements = int64_t{1} << 40;
constexpr int kMaxGroups = 64;
constexpr int kMostStateWidth = 1 << 12;  // of a head's keys and values

// What a slot holds at a point of the program.
enum class Held : uint8_t { nothing, rows, outputs };

class Reader {
 public:
  explicit Reader(Program& program) : p_(program) {}

  void read(const mr_program_desc& desc) {
    read_shape(desc);
    read_slots(desc);
    read_tensors(desc);
    held_.assign(p_.slots.size(), Held::nothing);
    p_.kv_layers.assign(size_t(p_.kv_groups) * p_.layers, {});
    p_.lookback.assign(p_.kv_groups, 0);
    p_.slot_rows.assign(p_.slots.size(), 0);
    p_.select = -1;
    p_.ops.reserve(desc.n_ops);
    for (int i = 0; i < desc.n_ops; i++) read_op(desc.ops[i], i);
    check_end();
  }

  // A kind of op: its number, its name, what checks it and what runs it.
  struct Kind {
    int32_t number;
    const char* name;
    void (Reader::*check)(Op&);
    void (Kernels::*run)(const Op&, const Run&);
  };
  // Null: there is none of this number.
  static const Kind* find(int32_t number) {
    static constexpr Kind kKinds[] = {
        {MR_OP_EMBED, "EMBED", &Reader::embed, &Kernels::embed},
        {MR_OP_NORM, "NORM", &Reader::norm, &Kernels::norm},
        {MR_OP_LINEAR, "LINEAR", &Reader::linear, &Kernels::linear},
        {MR_OP_ROPE_STORE, "ROPE_STORE", &Reader::rope_store, &Kernels::rope_store},
        {MR_OP_ATTENTION, "ATTENTION", &Reader::attention, &Kernels::attention},
        {MR_OP_SELECT_ROWS, "SELECT_ROWS", &Reader::select_rows, &Kernels::select_rows},
        {MR_OP_ROUTE, "ROUTE", &Reader::route, &Kernels::route},
        {MR_OP_CONV, "CONV", &Reader::conv, &Kernels::conv},
        {MR_OP_RECUR, "RECUR", &Reader::recur, &Kernels::recur},
        {MR_OP_GATE, "GATE", &Reader::gate, &Kernels::gate},
        {MR_OP_ALTUP, "ALTUP", &Reader::altup, &Kernels::altup},
        {MR_OP_ALL_REDUCE, "ALL_REDUCE", &Reader::all_reduce, &Kernels::all_reduce},
    };
    const Kind* found = std::ranges::find(kKinds, number, &Kind::number);
    return found == std::end(kKinds) ? nullptr : found;
  }

 private:
  Program& p_;
  const Op* op_ = nullptr;
  bool evicts_ = false;     // heavy and recent are known
  bool has_heads_ = false;  // both_ways is known
  int reduced_ = -1;        // slot that the last ALL_REDUCE reads
  std::vector<Held> held_;  // [slots]

  [[noreturn, gnu::format(printf, 2, 3)]] void bad(const char* format, ...) const {
    char text[400];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (op_ == nullptr) fail(MR_INVALID, "program: %s", text);
    fail(MR_INVALID, "op %d (%s): %s", op_->index, op_name(op_->kind), text);
  }

  void in_range(const char* what, int64_t found, int64_t least, int64_t most) const {
    if (found < least || found > most) {
      bad("%s is %lld, expected %lld to %lld", what, static_cast<long long>(found),
          static_cast<long long>(least), static_cast<long long>(most));
    }
  }
  void finite(const char* what, float found) const {
    if (!std::isfinite(found)) bad("%s is %g, expected a finite number", what, found);
  }

  void read_shape(const mr_program_desc& d) {
    in_range("n_ops", d.n_ops, 1, kMaxOps);
    in_range("n_slots", d.n_slots, 1, kMaxOps);
    in_range("n_tensors", d.n_tensors, 0, kMaxOps);
    if (d.ops == nullptr || d.slots == nullptr || (d.tensors == nullptr && d.n_tensors > 0)) {
      bad("ops, slots or tensors is a null pointer");
    }
    in_range("vocab", p_.vocab = d.vocab, 1, kMaxWidth);
    in_range("classes", d.classes, 0, kMaxWidth);
    p_.classes = d.classes > 0 ? d.classes : d.vocab;
    in_range("layers", p_.layers = d.layers, 1, 1 << 12);
    in_range("kv_groups", d.kv_groups, 0, d.kv_type == MR_KV_KIVI ? 1 : kMaxGroups);
    p_.kv_groups = std::max(1, d.kv_groups);
    in_range("max_positions", p_.max_positions = d.max_positions, 1, 1 << 30);
    in_range("max_rows", p_.max_rows = d.max_rows, 1, 1 << 20);
    in_range("max_outputs", p_.max_outputs = d.max_outputs, 1, d.max_rows);
    in_range("max_hidden", p_.max_hidden = d.max_hidden, 0, d.max_rows);
    in_range("kv_type", p_.kv_type = d.kv_type, MR_KV_AUTO, MR_KV_KIVI);
    p_.packed = static_cast<const std::byte*>(d.packed);
    p_.packed_bytes = d.packed_bytes;
    p_.use_weights = d.packed == nullptr ? d.use_weights : nullptr;
    p_.context = d.context;
    if (reinterpret_cast<uintptr_t>(d.packed) % 64 != 0) bad("packed is not 64-byte aligned");
  }

  void read_slots(const mr_program_desc& d) {
    p_.slots.assign(d.slots, d.slots + d.n_slots);
    for (int i = 0; i < d.n_slots; i++) {
      const mr_slot& s = p_.slots[i];
      if (s.type != MR_SLOT_F32 && s.type != MR_SLOT_OPERAND) {
        bad("slot %d has type %d, expected %d (F32) or %d (OPERAND)", i, s.type, MR_SLOT_F32,
            MR_SLOT_OPERAND);
      }
      if (s.width < 1 || s.width > kMaxWidth) {
        bad("slot %d is %d wide, expected 1 to %d", i, s.width, kMaxWidth);
      }
    }
  }

  void read_tensors(const mr_program_desc& d) {
    p_.tensors.assign(d.tensors, d.tensors + d.n_tensors);
    for (int i = 0; i < d.n_tensors; i++) {
      mr_tensor& t = p_.tensors[i];
      if (t.data == nullptr) bad("tensor %d has no data", i);
      const BlockType* type = block_type(t.dtype);
      if (type == nullptr && (t.dtype < MR_F32 || t.dtype > MR_BF16)) {
        bad("tensor %d has dtype %d, expected 0 (F32), 1 (F16), 2 (BF16) or a known type of blocks",
            i, t.dtype);
      }
      if (t.rank != 1 && t.rank != 2) bad("tensor %d has rank %d, expected 1 or 2", i, t.rank);
      if (t.rank == 1) t.dims[1] = 1;
      for (int k = 0; k < 2; k++) {
        if (t.dims[k] < 1 || t.dims[k] > kMaxElements / t.dims[0]) {
          bad("tensor %d is [%lld, %lld], expected 1 to %lld elements", i,
              static_cast<long long>(t.dims[0]), static_cast<long long>(t.dims[1]),
              static_cast<long long>(kMaxElements));
        }
      }
      if (type != nullptr && (t.rank != 2 || t.dims[1] % type->elements != 0)) {
        bad("tensor %d of %s has rank %d and rows of %lld, expected a matrix of whole blocks of %d",
            i, type->name, t.rank, static_cast<long long>(t.dims[1]), type->elements);
      }
      const int64_t least = row_bytes(t);
      if (t.row_bytes == 0) t.row_bytes = least;
      in_range("a tensor's row_bytes", t.row_bytes, least, t.rank == 1 ? least : kMaxElements);
    }
  }

  void read_op(const mr_op& source, int index) {
    Op& op = p_.ops.emplace_back();
    static_cast<mr_op&>(op) = source;
    op.index = index;
    op_ = &op;
    const Kind* kind = find(op.kind);
    if (kind == nullptr) {
      bad("unknown op kind %d, expected %d to %d", op.kind, MR_OP_EMBED, MR_OP_ALL_REDUCE);
    }
    op.run = kind->run;
    (this->*kind->check)(op);
  }

  void check_end() {
    const int out = op_->out;
    if (op_->kind == MR_OP_ROPE_STORE) bad("the last op writes no slot, expected the logits");
    if (p_.select < 0) bad("is the last op, but the program has no SELECT_ROWS");
    if (p_.slots[out].type != MR_SLOT_F32 || p_.slots[out].width != p_.classes) {
      bad("the last op's slot %d has type %d and width %d, expected F32 and the %s, %d", out,
          p_.slots[out].type, p_.slots[out].width,
          p_.classes == p_.vocab ? "vocabulary" : "classes", p_.classes);
    }
    if (p_.both_ways && p_.state > 0) bad("a program of attention both ways has states");
    if (wrote_rows(out)) {
      bad("the last op's slot %d, the logits, is also written before SELECT_ROWS", out);
    }
    if (p_.max_hidden > 0 && op_->kind != MR_OP_LINEAR) {
      bad("is the last op, expected LINEAR with max_hidden of %d", p_.max_hidden);
    }
    p_.logits_slot = out;
    p_.slot_rows[out] = 0;
  }

  bool wrote_rows(int slot) const {
    for (int i = 0; i < p_.select; i++) {
      const Op& op = p_.ops[i];
      const int outs = op.kind == MR_OP_ALTUP ? op.altup.streams : 1;
      if (op.kind != MR_OP_ROPE_STORE) {
        if (op.out <= slot && slot < op.out + outs) return true;
      } else if (op.attention.sinks > 0 && op.attention.sink_q == slot) {
        return true;
      }
    }
    return false;
  }

  // ---- slots and tensors of one op

  Held stage() const { return p_.select < 0 ? Held::rows : Held::outputs; }

  const mr_slot& slot(const char* what, int index) const {
    in_range(what, index, 0, static_cast<int64_t>(p_.slots.size()) - 1);
    return p_.slots[index];
  }

  const mr_slot& reads(const char* what, int index) const {
    const mr_slot& s = slot(what, index);
    if (held_[index] != stage()) {
      const bool stale = held_[index] == Held::rows;
      bad("%s slot %d %s", what, index,
          stale ? "was written before SELECT_ROWS" : "is read before any op wrote it");
    }
    return s;
  }

  const mr_slot& writes(int index) {
    const mr_slot& s = slot("out", index);
    held_[index] = stage();
    p_.slot_rows[index] =
        std::max(p_.slot_rows[index], p_.select < 0 ? p_.max_rows : p_.max_selected());
    return s;
  }

  void slot_type(const char* what, int index, mr_slot_type expected) const {
    if (p_.slots[index].type != expected) {
      bad("%s slot %d has type %d, expected %d (%s)", what, index, p_.slots[index].type, expected,
          expected == MR_SLOT_F32 ? "F32" : "OPERAND");
    }
  }
  void slot_width(const char* what, int index, int64_t expected) const {
    if (p_.slots[index].width != expected) {
      bad("%s slot %d is %d wide, expected %lld", what, index, p_.slots[index].width,
          static_cast<long long>(expected));
    }
  }

  const mr_tensor& tensor(const char* what, int index, int rank) const {
    if (index < 0 || index >= static_cast<int>(p_.tensors.size())) {
      bad("%s is tensor %d, expected 0 to %d", what, index,
          static_cast<int>(p_.tensors.size()) - 1);
    }
    const mr_tensor& t = p_.tensors[index];
    if (t.rank != rank) {
      bad("%s (tensor %d) has rank %d, expected %d", what, index, t.rank, rank);
    }
    return t;
  }
  void vector_of(const char* what, int index, int64_t length) const {
    const mr_tensor& t = tensor(what, index, 1);
    if (t.dims[0] != length) {
      bad("%s (tensor %d) is [%lld], expected [%lld]", what, index,
          static_cast<long long>(t.dims[0]), static_cast<long long>(length));
    }
  }
  void matrix_of(const char* what, int index, int64_t least_rows, int64_t width) const {
    const mr_tensor& t = tensor(what, index, 2);
    if (t.dims[0] < least_rows || t.dims[1] != width) {
      bad("%s (tensor %d) is [%lld, %lld], expected [>= %lld, %lld]", what, index,
          static_cast<long long>(t.dims[0]), static_cast<long long>(t.dims[1]),
          static_cast<long long>(least_rows), static_cast<long long>(width));
    }
    if (t.row_bytes != row_bytes(t)) {
      bad("%s (tensor %d) is columns of a matrix, expected a whole one", what, index);
    }
  }

  const float* constant(const char* what, const float* values, int n) {
    if (values == nullptr) bad("%s is a null pointer, expected %d numbers", what, n);
    for (int i = 0; i < n; i++) finite(what, values[i]);
    return p_.constants.emplace_back(values, values + n).data();
  }

  // ---- the kinds

  void embed(Op& op) {
    if (stage() != Held::rows) bad("comes after SELECT_ROWS");
    in_range("accumulate", op.embed.accumulate, 0, 1);
    if (op.embed.accumulate) {
      reads("out (accumulated)", op.out);
      slot_type("out (accumulated)", op.out, MR_SLOT_F32);
    }
    const int width = writes(op.out).width;
    if (op.embed.table < 0 && op.embed.positions < 0)
      bad("has neither a token table nor a position table");
    if (op.embed.accumulate && (op.embed.table < 0 || op.embed.positions >= 0))
      bad("adds positions, expected rows of a token table");
    if (op.embed.table >= 0)
      matrix_of("weight", op.embed.table, op.embed.accumulate ? 1 : p_.vocab, width);
    finite("embed_scale", op.embed.scale);
    if (op.embed.types >= 0) {
      matrix_of("type table", op.embed.types, 1, width);
      in_range("the type table's rows", p_.tensors[op.embed.types].dims[0], 1, 2);
    }
    if (op.embed.positions < 0) return;
    in_range("position_offset", op.embed.position_offset, 0, 1 << 20);
    matrix_of("position table", op.embed.positions,
              int64_t{p_.max_positions} + op.embed.position_offset, width);
  }

  void norm(Op& op) {
    const int width = reads("in", op.in).width;
    slot_type("in", op.in, MR_SLOT_F32);
    in_range("accumulate", op.norm.accumulate, 0, 1);
    if (op.norm.accumulate) {
      reads("out (accumulated)", op.out);
      slot_type("out (accumulated)", op.out, MR_SLOT_F32);
    }
    writes(op.out);
    slot_width("out", op.out, width);
    in_range("norm_kind", op.norm.kind, MR_NORM_RMS, MR_NORM_NONE);
    finite("norm scale", op.norm.scale);
    if (op.norm.scale != 0) slot_type("out (scaled)", op.out, MR_SLOT_F32);
    if (op.norm.width != 0) {
      norm_part(op, width);
    } else {
      if (op.norm.weight != -1) vector_of("weight", op.norm.weight, width);
      if (op.norm.bias >= 0) vector_of("bias", op.norm.bias, width);
    }
    finite("eps", op.norm.eps);
    if (op.norm.eps < 0) bad("eps is %g, expected >= 0", op.norm.eps);
  }

  // A norm of some of a row's elements.
  void norm_part(const Op& op, int width) const {
    const mr_norm& n = op.norm;
    in_range("norm offset", n.offset, 0, width - 1);
    in_range("norm width", n.width, 1, width - n.offset);
    in_range("norm groups", n.groups, 1, n.width);
    if (n.width % n.groups != 0) {
      bad("norms %d elements in %d groups, expected equal ones", n.width, n.groups);
    }
    if (op.in != op.out || n.accumulate) {
      bad("norms a part of slot %d to slot %d, expected one slot and no accumulation", op.in,
          op.out);
    }
    const auto part_of = [&](const char* what, int index) {
      if (index == -1) return;
      const int64_t found = tensor(what, index, 1).dims[0];
      if (found != n.width && found != n.width / n.groups) {
        bad("%s (tensor %d) is [%lld], expected [%d] or [%d]", what, index,
            static_cast<long long>(found), n.width, n.width / n.groups);
      }
    };
    part_of("weight", n.weight);
    part_of("bias", n.bias);
  }

  // index: for messages; width: of what the part multiplies
  void part(const mr_part& part, int index, int width) const {
    const mr_tensor& weight = tensor("a part's weight", part.weight, 2);
    const int64_t rows = weight.dims[0];
    if (weight.dims[1] != width) {
      bad("part %d: weight (tensor %d) is %lld wide, expected the width of in, %d", index,
          part.weight, static_cast<long long>(weight.dims[1]), width);
    }
    in_range("a part's rows", part.rows, 1, kMaxWidth);
    in_range("a part's block", part.block, 1, kMaxWidth);
    in_range("a part's stride", part.stride, 0, rows);
    in_range("a part's offset", part.offset, 0, rows - 1);
    in_range("a part's interleaved", part.interleaved, 0, 1);
    if (part.interleaved && (part.block % 2 != 0 || part.rows % part.block != 0)) {
      bad("part %d has %lld rows in interleaved blocks of %lld, expected whole blocks of an even "
          "number",
          index, static_cast<long long>(part.rows), static_cast<long long>(part.block));
    }
    const int64_t last = last_row(part);
    if (last >= rows) {
      bad("part %d reaches row %lld of tensor %d, which has %lld rows", index,
          static_cast<long long>(last), part.weight, static_cast<long long>(rows));
    }
    if (part.bias >= 0 && tensor("a part's bias", part.bias, 1).dims[0] <= last) {
      bad("part %d reaches row %lld of its bias (tensor %d), which has %lld", index,
          static_cast<long long>(last), part.bias,
          static_cast<long long>(p_.tensors[part.bias].dims[0]));
    }
  }

  static int64_t last_row(const mr_part& part) {
    const int64_t whole = part.rows / part.block, rest = part.rows % part.block;
    int64_t last = 0;
    if (whole > 0) last = (whole - 1) * part.stride + part.block - 1;
    if (rest > 0) last = std::max(last, whole * part.stride + rest - 1);
    return part.offset + last;
  }

  void quantization(Op& op) {
    in_range("weights", op.linear.weights, MR_WEIGHTS_16BIT, MR_WEIGHTS_BLOCKS);
    if (op.linear.weights == MR_WEIGHTS_BLOCKS) {
      blocks(op);
    } else if (in_groups(op.linear.weights)) {
      const bool nf4 = op.linear.weights == MR_WEIGHTS_NF4;
      if (op.linear.group != 64 && (nf4 || (op.linear.group != 32 && op.linear.group != 128))) {
        bad("group is %d, expected %s", op.linear.group, nf4 ? "64" : "32, 64 or 128");
      }
    } else {
      in_range("group", op.linear.group, 0, 0);
    }
    // A sum of up to this many products of codes is an int32.
    constexpr int kMostQuantized = 1 << 17;
    const int width = in_width(op);
    if (quantizes_rows(op.linear.weights) && width > kMostQuantized) {
      bad("in is %d wide, quantized weights take up to %d", width, kMostQuantized);
    }
  }

  // What an op with weights of blocks keeps, and the elements of a row of `in`, or of floats of weights, that share a scale.
  void blocks(Op& op) const {
    constexpr int kRowGroup = 32;
    const BlockType* first = nullptr;
    int group = kMostBlock;
    for (int i = 0; i < op.expert_count() * op.parts_each(); ++i) {
      const mr_part& part = op.parts_of(0)[i];
      const mr_tensor& weight = tensor("a part's weight", part.weight, 2);
      const BlockType* type = block_type(weight.dtype);
      if (type == nullptr) {
        bad("part %d: weight (tensor %d) is %s, expected blocks, by the op's weights", i,
            part.weight, dtype_name(weight.dtype));
      }
      if (first == nullptr) first = type;
      if (type->weights != first->weights) {
        bad("part %d: weight (tensor %d) is of blocks of %s, which do not go with %s", i,
            part.weight, type->name, first->name);
      }
      group = std::min(group, type->group);
      order(op, i);
    }
    op.linear.weights = first->weights;
    op.linear.group = first->weights == kIntegerBlocks ? std::min(group, kRowGroup) : group;
  }

  // The order of a part's columns is that of the first part of its expert.
  void order(const Op& op, int i) const {
    const int64_t width = in_width(op);
    const mr_part* const parts = op.parts_of(i / op.parts_each());
    const int32_t* const first = p_.tensors[parts[0].weight].order;
    const int32_t* const own = p_.tensors[op.parts_of(0)[i].weight].order;
    if ((own == nullptr) != (first == nullptr) ||
        (own != nullptr && !std::equal(own, own + width, first))) {
      bad("part %d: weight (tensor %d) has other columns than the first part", i,
          op.parts_of(0)[i].weight);
    }
    for (int64_t k = 0; own != nullptr && k < width; ++k) in_range("order", own[k], 0, width - 1);
  }

  // The width of what a part multiplies.
  int in_width(const Op& op) const { return op.part_width(p_.slots[op.in].width); }

  void chooses(int experts, int top_k) const {
    constexpr int kMostExperts = 1 << 12;
    in_range("experts", experts, 1, kMostExperts);
    in_range("top_k", top_k, 1, experts);
  }

  void route(Op& op) {
    chooses(op.route.experts, op.route.top_k);
    reads("in", op.in);
    slot_type("in", op.in, MR_SLOT_F32);
    slot_width("in", op.in, op.route.experts);
    writes(op.out);
    slot_type("out", op.out, MR_SLOT_F32);
    slot_width("out", op.out, 2 * int64_t{op.route.top_k});
    if (op.route.bias >= 0) vector_of("bias", op.route.bias, op.route.experts);
    if (op.route.factors >= 0) vector_of("factors", op.route.factors, op.route.experts);
    in_range("route_scores", op.route.scores, MR_ROUTE_SOFTMAX, MR_ROUTE_SPARSE_MIXER);
    finite("route_jitter", op.route.jitter);
    in_range("route_normalize", op.route.normalize, 0, 1);
    in_range("route_groups", op.route.groups, 0, op.route.experts);
    finite("route_scale", op.route.scale);
    if (op.in == op.out) bad("in and out are both slot %d", op.in);
    if (op.route.groups <= 1) return;
    in_range("route_group_scores", op.route.group_scores, 0, 2);
    in_range("route_top_groups", op.route.top_groups, 1, op.route.groups);
    if (op.route.experts % op.route.groups != 0 ||
        op.route.top_k > op.route.top_groups * (op.route.experts / op.route.groups)) {
      bad("%d experts in %d groups, of which %d give %d, expected equal groups that have as many",
          op.route.experts, op.route.groups, op.route.top_groups, op.route.top_k);
    }
  }

  // The experts of a linear op, and the slot that says whose rows are whose.
  void experts(Op& op) {
    const bool heads = op.linear.routed == MR_ROUTED_HEADS;
    if (heads) op.linear.top_k = op.linear.experts;
    chooses(op.linear.experts, op.linear.top_k);
    in_range("n_parts", op.linear.n_parts, 0, 0);
    if (heads) {
      each_head(op);
    } else if (const mr_slot& route = reads("route", op.linear.route);
               route.type != MR_SLOT_F32 || route.width != 2 * op.linear.top_k || !routes(op)) {
      bad("route slot %d is none of a ROUTE of %d experts, of which %d are chosen", op.linear.route,
          op.linear.experts, op.linear.top_k);
    }
    if (op.linear.expert_parts == nullptr) bad("expert_parts is a null pointer");
    const auto n = int64_t{op.linear.experts} * op.parts_each();
    op.linear.expert_parts =
        p_.expert_parts.emplace_back(op.linear.expert_parts, op.linear.expert_parts + n).data();
    for (int64_t i = 1; i < n; ++i) {
      if (op.linear.expert_parts[i].rows != op.linear.expert_parts[0].rows) {
        bad("part %lld has %lld rows, the first one %lld, expected equal experts",
            static_cast<long long>(i), static_cast<long long>(op.linear.expert_parts[i].rows),
            static_cast<long long>(op.linear.expert_parts[0].rows));
      }
    }
    if (op.linear.routed == MR_ROUTED_SUM) {
      if (p_.slots[op.in].width % op.linear.top_k != 0) {
        bad("in is %d wide, expected a multiple of top_k, %d", p_.slots[op.in].width,
            op.linear.top_k);
      }
      slot_type("out", op.out, MR_SLOT_F32);
    } else if (op.linear.accumulate) {
      bad("accumulates what each expert gives, expected their sum");
    }
  }

  // A linear op whose experts each have a part of every row.
  void each_head(const Op& op) {
    const int width = p_.slots[op.in].width;
    if (width % op.linear.experts != 0) {
      bad("in is %d wide, expected a multiple of experts, %d", width, op.linear.experts);
    }
    in_range("tail", op.linear.tail, 0, width / op.linear.experts - 1);
    in_range("gated", op.linear.gated, 0, 0);
    in_range("weighs_in", op.linear.weighs_in, 0, 0);
    if (op.linear.tail > 0) {
      slot_type("in", op.in, MR_SLOT_F32);
      slot_type("out", op.out, MR_SLOT_F32);
    }
  }

  // Whether the last op that wrote the slot chooses among the op's experts.
  bool routes(const Op& op) const {
    for (int i = op.index - 1; i >= 0; --i) {
      const Op& before = p_.ops[i];
      if (before.out != op.linear.route || before.kind == MR_OP_ROPE_STORE) continue;
      if (before.kind == MR_OP_SELECT_ROWS) return false;
      return before.kind == MR_OP_ROUTE && before.route.experts == op.linear.experts &&
             before.route.top_k == op.linear.top_k;
    }
    return false;
  }

  void activation(const mr_linear& l) const {
    in_range("activation", l.activation, MR_ACT_NONE, MR_ACT_SWIGLU);
    finite("act_a", l.act_a);
    finite("act_b", l.act_b);
    const bool limits = l.activation == MR_ACT_CLAMP || l.activation == MR_ACT_SOFTCAP ||
                        l.activation == MR_ACT_SWIGLU;
    if (limits && l.act_a <= 0) bad("act_a is %g, expected > 0", l.act_a);
    if (l.activation == MR_ACT_SWIGLU && l.gated == 0) bad("has a SWIGLU without a gate");
  }

  void linear(Op& op) {
    reads("in", op.in);
    activation(op.linear);
    in_range("gated", op.linear.gated, 0, 1);
    in_range("accumulate", op.linear.accumulate, 0, 1);
    in_range("routed", op.linear.routed, MR_ROUTED_NONE, MR_ROUTED_HEADS);
    in_range("weighs_in", op.linear.weighs_in, 0, op.linear.routed == MR_ROUTED_NONE ? 0 : 1);
    slot("out", op.out);
    if (op.linear.routed != MR_ROUTED_NONE) {
      experts(op);
    } else {
      in_range("n_parts", op.linear.n_parts, 1, MR_MAX_PARTS);
    }
    quantization(op);
    int64_t rows = 0;
    for (int e = 0; e < op.expert_count(); e++) {
      for (int i = 0; i < op.parts_each(); i++) {
        const mr_part& p = op.parts_of(e)[i];
        part(p, e * op.parts_each() + i, in_width(op));
        if (e == 0) rows += p.rows;
      }
    }
    if (op.linear.gated) {
      const mr_part* parts = op.parts_of(0);
      if (op.parts_each() != 2 || parts[0].rows != parts[1].rows) {
        bad("is gated with %d parts of %lld and %lld rows, expected two of equal rows",
            op.linear.n_parts, static_cast<long long>(parts[0].rows),
            static_cast<long long>(parts[1].rows));
      }
      rows /= 2;
    }
    if (op.linear.routed == MR_ROUTED_EACH) rows *= op.linear.top_k;
    if (op.linear.routed == MR_ROUTED_HEADS) rows = (rows + op.linear.tail) * op.linear.experts;
    if (op.linear.accumulate) reads("out (accumulated)", op.out);
    writes(op.out);
    slot_width("out", op.out, rows);
    if (op.linear.accumulate) slot_type("out (accumulated)", op.out, MR_SLOT_F32);
    if (op.in == op.out) bad("in and out are both slot %d", op.in);
  }

  void heads(Op& op) {
    mr_attention& a = op.attention;
    if (stage() != Held::rows) bad("comes after SELECT_ROWS");
    both_ways(op);
    in_range("layer", op.layer, 0, p_.layers - 1);
    in_range("kv_group", a.kv_group, 0, p_.kv_groups - 1);
    in_range("stored", a.stored, 0, 1);
    in_range("latent", a.latent, 0, 1);
    in_range("kv_heads", a.kv_heads, 1, 1 << 12);
    in_range("head_dim", a.head_dim, 1, 1 << 12);
    if (a.value_dim == 0) a.value_dim = a.head_dim;
    in_range("value_dim", a.value_dim, 1, a.latent ? a.head_dim : 1 << 12);
    in_range("heads", a.heads, op.kind == MR_OP_ROPE_STORE && !a.stored ? 0 : 1, 1 << 14);
    if (a.heads % a.kv_heads != 0) {
      bad("%d heads over %d KV heads, expected a multiple", a.heads, a.kv_heads);
    }
    op.place = a.kv_group * p_.layers + op.layer;
    const int kv_width = a.stored ? 0 : a.head_dim + (a.latent ? 0 : a.value_dim);
    eviction(op);
    reads("in", op.in);
    slot_type("in", op.in, MR_SLOT_F32);
    const int64_t width = int64_t{a.heads} * a.head_dim + int64_t{a.kv_heads} * kv_width;
    if (op.kind == MR_OP_ROPE_STORE && a.stored && p_.kv_layers[op.place].heads == 0) {
      columns("in", p_.slots[op.in], 0, width);
      return;
    }
    slot_width("in", op.in, width);
    layer_shape(op);
  }

  // The shape of the layer's keys and values: the ROPE_STORE that stores them says it, and the other ops
  // say the same.
  void layer_shape(const Op& op) {
    const mr_attention& a = op.attention;
    const LayerShape found{a.kv_heads, a.head_dim, a.value_dim, a.latent != 0};
    LayerShape& layer = p_.kv_layers[op.place];
    if (op.kind == MR_OP_ROPE_STORE && !a.stored) {
      if (layer.heads > 0 && !p_.both_ways) bad("layer %d is stored a second time", op.layer);
      if (layer.heads == 0) layer = found;
    }
    if (layer.heads == 0) bad("no ROPE_STORE before it has stored layer %d", op.layer);
    if (found != layer) {
      bad("%d KV heads of %d and %d elements%s, expected %d of %d and %d%s as layer %d has them",
          found.heads, found.key, found.value, found.latent ? " (latent)" : "", layer.heads,
          layer.key, layer.value, layer.latent ? " (latent)" : "", op.layer);
    }
    const char* lossy = p_.kv_type == MR_KV_KIVI ? "a KV cache of kivi"
                        : a.heavy > 0            ? "heavy tokens"
                                                 : nullptr;
    if (lossy != nullptr && (a.stored || a.latent || a.value_dim != a.head_dim)) {
      fail(MR_UNSUPPORTED, "%s: found %s, expected keys and values of one size in each layer",
           lossy,
           a.stored   ? "a layer without keys of its own"
           : a.latent ? "latents"
                      : "keys and values of two sizes");
    }
  }

  // Attention to later rows too, of all layers or of none.
  void both_ways(const Op& op) {
    in_range("both_ways", op.attention.both_ways, 0, 1);
    if (!has_heads_) p_.both_ways = op.attention.both_ways != 0;
    has_heads_ = true;
    if (op.attention.both_ways != int{p_.both_ways}) {
      bad("both_ways is %d, expected %d as in the first layer", op.attention.both_ways,
          int{p_.both_ways});
    }
    if (!p_.both_ways) return;
    const char* beside = op.attention.chunked       ? "chunks"
                         : op.attention.sinks > 0   ? "sinks"
                         : op.attention.heavy > 0   ? "heavy tokens"
                         : p_.kv_type == MR_KV_KIVI ? "a KV cache of kivi"
                         : p_.kv_groups > 1         ? "several groups of layers"
                         : op.kind == MR_OP_ATTENTION && op.attention.alibi_slopes != nullptr
                             ? "ALiBi slopes"
                             : nullptr;
    if (beside != nullptr) bad("is of attention both ways with %s, expected none", beside);
  }

  // H2O, of all layers or of none.
  void eviction(const Op& op) {
    constexpr int kMost = 1 << 20;
    in_range("heavy", op.attention.heavy, 0, kMost);
    const int recent = op.attention.heavy > 0 ? op.attention.recent : 0;
    if (op.attention.heavy > 0) in_range("recent", recent, 1, kMost);
    if (!evicts_) {
      p_.heavy = op.attention.heavy;
      p_.recent = recent;
      evicts_ = true;
    }
    if (op.attention.heavy != p_.heavy || recent != p_.recent) {
      bad("keeps %d heavy and %d recent tokens, expected %d and %d as in the first layer",
          op.attention.heavy, recent, p_.heavy, p_.recent);
    }
    if (op.attention.heavy == 0) return;
    if (op.attention.window > 0)
      bad("keeps %d heavy tokens with a window of %d", op.attention.heavy, op.attention.window);
    if (op.kind == MR_OP_ATTENTION && op.attention.alibi_slopes != nullptr)
      bad("keeps %d heavy tokens with ALiBi slopes", op.attention.heavy);
    if (op.kind == MR_OP_ATTENTION && (op.attention.softcap > 0 || op.attention.null_scores >= 0)) {
      fail(MR_UNSUPPORTED, "%d heavy tokens: found %s, expected plain attention",
           op.attention.heavy,
           op.attention.softcap > 0 ? "capped scores" : "scores of a key without a value");
    }
    if (p_.kv_groups > 1) {
      bad("keeps %d heavy tokens with %d groups of layers, expected one", op.attention.heavy,
          p_.kv_groups);
    }
  }

  // The window, and the sinks beside it.
  void window(const Op& op) {
    in_range("window", op.attention.window, 0, 1 << 30);
    in_range("sinks", op.attention.sinks, 0, MR_SLAB_TOKENS);
    if (op.attention.window > 0 && p_.kv_type == MR_KV_KIVI) {
      fail(MR_UNSUPPORTED, "a KV cache of kivi: found a window of %d tokens, expected none",
           op.attention.window);
    }
    in_range("chunked", op.attention.chunked, 0, op.attention.window > 0 ? 1 : 0);
    if (op.attention.sinks == 0) return;
    if (op.attention.latent) {
      fail(MR_UNSUPPORTED, "%d sinks: found latents, expected keys and values", op.attention.sinks);
    }
    if (op.attention.chunked) bad("has %d sinks with chunks", op.attention.sinks);
    if (op.attention.q_scales != nullptr) {
      fail(MR_UNSUPPORTED, "%d sinks: found factors of queries by position, expected none",
           op.attention.sinks);
    }
    if (op.attention.window == 0) bad("has %d sinks without a window", op.attention.sinks);
    if (op.attention.alibi_slopes != nullptr)
      bad("has %d sinks with ALiBi slopes", op.attention.sinks);
    if (p_.kv_groups > 1) {
      bad("has %d sinks and %d groups of layers, expected one", op.attention.sinks, p_.kv_groups);
    }
    const mr_slot& s = op.kind == MR_OP_ATTENTION ? reads("sink_q", op.attention.sink_q)
                                                  : slot("sink_q", op.attention.sink_q);
    const int64_t width = int64_t{op.attention.heads} * op.attention.head_dim;
    if (s.type != MR_SLOT_F32 || s.width != width || op.attention.sink_q == op.in) {
      bad("sink_q slot %d has type %d and width %d, expected F32, %lld and not in",
          op.attention.sink_q, s.type, s.width, static_cast<long long>(width));
    }
    p_.sinks = std::max(p_.sinks, op.attention.sinks);
  }

  void rope_store(Op& op) {
    heads(op);
    if (op.attention.q_norm >= 0) vector_of("q_norm", op.attention.q_norm, op.attention.head_dim);
    if (op.attention.k_norm >= 0) vector_of("k_norm", op.attention.k_norm, op.attention.head_dim);
    finite("eps", op.attention.eps);
    if (op.attention.eps < 0) bad("eps is %g, expected >= 0", op.attention.eps);
    in_range("norm_last", op.attention.norm_last, 0, 1);
    if (op.attention.q_scales != nullptr) {
      in_range("n_q_scales", op.attention.n_q_scales, 1, 1 << 24);
      in_range("q_scale_offset", op.attention.q_scale_offset, 0, 1 << 24);
      in_range("q_scale_tokens", op.attention.q_scale_tokens, 1, 1 << 30);
      op.attention.q_scales = constant("q_scales", op.attention.q_scales, op.attention.n_q_scales);
    }
    in_range("rotary_dim", op.attention.rotary_dim, 0, op.attention.head_dim);
    in_range("rotary_offset", op.attention.rotary_offset, 0,
             op.attention.head_dim - op.attention.rotary_dim);
    if (op.attention.rotary_dim % 2 != 0)
      bad("rotary_dim is %d, expected an even number", op.attention.rotary_dim);
    op.attention.alibi_slopes = nullptr;
    window(op);
    if (op.attention.sinks > 0) writes(op.attention.sink_q);
    if (op.attention.rotary_dim == 0) {
      if (op.attention.sinks > 0)
        bad("has %d sinks without a rotary embedding", op.attention.sinks);
      op.attention.inv_freq = nullptr;
      return;
    }
    in_range("rotary_interleaved", op.attention.rotary_interleaved, 0, 1);
    finite("rotary_scale", op.attention.rotary_scale);
    op.attention.inv_freq =
        constant("inv_freq", op.attention.inv_freq, op.attention.rotary_dim / 2);
  }

  void attention(Op& op) {
    heads(op);
    writes(op.out);
    slot_width("out", op.out, int64_t{op.attention.heads} * op.attention.value_dim);
    if (op.in == op.out) bad("in and out are both slot %d", op.in);
    finite("scale", op.attention.scale);
    finite("softcap", op.attention.softcap);
    if (op.attention.softcap < 0) bad("softcap is %g, expected >= 0", op.attention.softcap);
    op.attention.q_scales = nullptr;
    null_scores(op);
    window(op);
    int& lookback = p_.lookback[op.attention.kv_group];
    lookback =
        std::max(lookback, op.attention.window > 0 ? op.attention.window - 1 : p_.max_positions);
    op.attention.inv_freq = nullptr;
    if (op.attention.alibi_slopes != nullptr) {
      op.attention.alibi_slopes =
          constant("alibi_slopes", op.attention.alibi_slopes, op.attention.heads);
    }
  }

  // Columns [offset, offset + n) of a slot.
  void columns(const char* what, const mr_slot& s, int offset, int64_t n) const {
    in_range(what, offset, 0, s.width);
    if (offset + n > s.width) {
      bad("%s is %d: %lld columns from there reach over the slot's %d", what, offset,
          static_cast<long long>(n), s.width);
    }
  }

  // An op with a state, of rows in the order of their positions.
  const mr_slot& keeps_state(Op& op) {
    constexpr int64_t kMost = int64_t{1} << 32;
    if (stage() != Held::rows) bad("comes after SELECT_ROWS");
    op.state = p_.state;
    p_.state += op.state_floats();
    if (p_.state > kMost)
      bad("a sequence keeps more than %lld numbers", static_cast<long long>(kMost));
    const mr_slot& in = reads("in", op.in);
    slot_type("in", op.in, MR_SLOT_F32);
    slot("out", op.out);
    if (op.in == op.out) bad("in and out are both slot %d", op.in);
    return in;
  }

  void conv(Op& op) {
    const mr_conv& c = op.conv;
    in_range("channels", c.channels, 1, kMaxWidth);
    in_range("kernel", c.kernel, 2, 16);
    const mr_slot& in = keeps_state(op);
    columns("offset", in, c.offset, c.channels);
    if (c.times >= 0) columns("times", in, c.times, c.channels);
    if (c.gate >= 0) columns("gate", in, c.gate, c.channels);
    matrix_of("weight", c.weight, c.channels, c.kernel);
    if (p_.tensors[c.weight].dtype >= MR_BLOCKS) bad("weight (tensor %d) is of blocks", c.weight);
    if (c.bias >= 0) vector_of("bias", c.bias, c.channels);
    if (c.activation != MR_ACT_NONE && c.activation != MR_ACT_SILU) {
      bad("activation is %d, expected %d or %d", c.activation, MR_ACT_NONE, MR_ACT_SILU);
    }
    writes(op.out);
    slot_width("out", op.out, c.channels);
  }

  void recur(Op& op) {
    const mr_recur& u = op.recur;
    in_range("rule", u.rule, MR_RECUR_DELTA, MR_RECUR_RETENTION);
    in_range("heads", u.heads, 1, 1 << 14);
    in_range("key_heads", u.key_heads, 1, u.heads);
    if (u.heads % u.key_heads != 0) {
      bad("%d heads over %d key heads, expected a multiple", u.heads, u.key_heads);
    }
    in_range("keys", u.keys, 1, kMostStateWidth);
    in_range("values", u.values, 1, kMostStateWidth);
    const mr_slot& in = keeps_state(op);
    const bool scan = u.rule == MR_RECUR_SCAN;
    if (scan && u.key_heads != 1) bad("a scan of %d key heads, expected 1", u.key_heads);
    const mr_slot& rates = reads_rates(u) ? reads("rates", u.rates) : in;
    if (reads_rates(u)) {
      slot_type("rates", u.rates, MR_SLOT_F32);
      if (u.rates == op.out) bad("rates and out are both slot %d", op.out);
    }
    columns("q", scan ? rates : in, u.q, int64_t{u.key_heads} * u.keys);
    columns("k", scan ? rates : in, u.k, int64_t{u.key_heads} * u.keys);
    columns("v", in, u.v, int64_t{u.heads} * u.values);
    const mr_slot& gates = reads("gates", u.gates);
    slot_type("gates", u.gates, MR_SLOT_F32);
    const int64_t decays = int64_t{u.heads} * (scan                          ? u.values
                                               : u.rule == MR_RECUR_CHANNELS ? u.keys
                                                                             : 1);
    columns("decay", gates, u.decay, decays);
    vector_of("dt_bias", u.dt_bias, decays);
    if (scan) {
      matrix_of("a_log", u.a_log, decays, u.keys);
      if (p_.tensors[u.a_log].dtype >= MR_BLOCKS) bad("a_log (tensor %d) is of blocks", u.a_log);
      vector_of("skip", u.skip, decays);
    } else {
      vector_of("a_log", u.a_log, u.heads);
    }
    if (erases(u)) {
      columns("rate", rates, u.rate, u.heads);
      finite("rate_scale", u.rate_scale);
    } else if (u.rule == MR_RECUR_SSM) {
      vector_of("skip", u.skip, u.heads);
      if (!(u.least_step >= 0 && u.least_step <= u.most_step)) {
        bad("steps from %g to %g, expected 0 or more", u.least_step, u.most_step);
      }
    }
    if (u.gates == op.out) bad("gates and out are both slot %d", op.out);
    writes(op.out);
    slot_type("out", op.out, MR_SLOT_F32);
    slot_width("out", op.out, int64_t{u.heads} * u.values);
  }

  void gate(Op& op) {
    const mr_gate& g = op.gate;
    const int width = reads("in", op.in).width;
    slot_type("in", op.in, MR_SLOT_F32);
    columns("offset", reads("gates", g.gates), g.offset, width);
    slot_type("gates", g.gates, MR_SLOT_F32);
    in_range("gate activation", g.activation, MR_GATE_SILU, MR_GATE_GELU_TANH);
    in_range("sparse", g.sparse, 0, 1);
    if (g.sparse) finite("cutoff", g.cutoff);
    in_range("first", g.first, 0, 1);
    in_range("group", g.group, 0, width);
    if (g.group > 0) {
      if (width % g.group != 0) bad("in is %d wide, expected groups of %d", width, g.group);
      const int64_t length = tensor("weight", g.weight, 1).dims[0];
      if (length != width) vector_of("weight", g.weight, g.group);
      finite("eps", g.eps);
      if (g.eps < 0) bad("eps is %g, expected >= 0", g.eps);
    }
    if (g.gates == op.out) bad("gates and out are both slot %d", op.out);
    writes(op.out);
    slot_width("out", op.out, width);
  }

  void altup(Op& op) {
    const mr_altup& a = op.altup;
    in_range("step", a.step, MR_ALTUP_PREDICT, MR_ALTUP_MATCH);
    in_range("streams", a.streams, 2, MR_MAX_STREAMS);
    const int width = reads("in", op.in).width;
    const auto floats = [&](const char* what, int index, int64_t expected) {
      reads(what, index);
      slot_type(what, index, MR_SLOT_F32);
      slot_width(what, index, expected);
    };
    for (int i = 0; i < a.streams; i++) floats("stream", op.in + i, width);
    if (a.step == MR_ALTUP_PREDICT) floats("coefs", a.coefs, int64_t{a.streams} * a.streams);
    if (a.step == MR_ALTUP_CORRECT) {
      in_range("active", a.active, 0, a.streams - 1);
      floats("coefs", a.coefs, a.streams);
      floats("x", a.x, width);
    }
    const auto stream = [&](int slot) { return slot >= op.in && slot < op.in + a.streams; };
    if (a.step != MR_ALTUP_MATCH && stream(a.coefs)) bad("coefs is stream slot %d", a.coefs);
    if (a.step == MR_ALTUP_CORRECT && stream(a.x)) bad("x is stream slot %d", a.x);
    if (op.out != op.in) bad("in is slot %d and out is slot %d, expected one", op.in, op.out);
  }

  void all_reduce(Op& op) {
    const int width = reads("in", op.in).width;
    slot_type("in", op.in, MR_SLOT_F32);
    in_range("accumulate", op.all_reduce.accumulate, 0, 1);
    if (op.all_reduce.accumulate) reads("out (accumulated)", op.out);
    if (op.in == op.out) bad("in and out are both slot %d", op.in);
    for (size_t i = p_.ops.size() - 1; i-- > 0 && p_.ops[i].kind != MR_OP_ALL_REDUCE;) {
      if (p_.ops[i].out == reduced_) {
        bad("comes after op %d, which writes slot %d that other ranks may read", p_.ops[i].index,
            reduced_);
      }
    }
    reduced_ = op.in;
    writes(op.out);
    slot_type("out", op.out, MR_SLOT_F32);
    slot_width("out", op.out, width);
  }

  void null_scores(Op& op) {
    if (op.attention.null_scores < 0) return;
    vector_of("null_scores", op.attention.null_scores, op.attention.heads);
    const mr_tensor& t = *p_.tensor(op.attention.null_scores);
    std::vector<float>& values = p_.constants.emplace_back();
    for (int h = 0; h < op.attention.heads; ++h) values.push_back(element(t, h));
    op.null_values = values.data();
  }

  void select_rows(Op& op) {
    const mr_slot& in = slot("in", op.in);
    if (held_[op.in] == Held::outputs) bad("in slot %d has the output rows already", op.in);
    if (held_[op.in] != Held::rows) bad("in slot %d is read before any op wrote it", op.in);
    in_range("pooling", op.select.pooling, MR_POOL_ROW, MR_POOL_MEAN);
    if (op.select.pooling != MR_POOL_ROW && !p_.both_ways) {
      bad("has pooling %d, expected %d without attention both ways", op.select.pooling,
          MR_POOL_ROW);
    }
    if (op.select.pooling == MR_POOL_MEAN) slot_type("in", op.in, MR_SLOT_F32);
    if (p_.select < 0) p_.select = op.index;
    writes(op.out);
    slot_width("out", op.out, in.width);
    slot_type("out", op.out, static_cast<mr_slot_type>(in.type));
    if (op.select.pooling == MR_POOL_MEAN && op.in == op.out)
      bad("in and out are both slot %d", op.in);
  }
};

}  // namespace

void read_program(const mr_program_desc& desc, Program& program) { Reader(program).read(desc); }

const char* op_name(int32_t kind) {
  const Reader::Kind* found = Reader::find(kind);
  return found == nullptr ? "unknown" : found->name;
}

}  // namespace millrace
