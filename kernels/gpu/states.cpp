#include "gpu/states.hpp"

#include <algorithm>

#include "exec/error.hpp"
#include "exec/exponential.hpp"
#include "gpu/weights.hpp"

namespace millrace::gpu {
namespace {

bool is_state_op(const Op& op) {
  return op.kind == MR_OP_CONV || op.kind == MR_OP_RECUR || op.kind == MR_OP_GATE;
}

}  // namespace

bool has_states(const Program& program) {
  return std::any_of(program.ops.begin(), program.ops.end(), is_state_op);
}

StateOps::StateOps(Stream& stream, Target target, const Bundle& bundle, const Program& program,
                   const KvLayout& layout)
    : stream_(stream),
      target_(target),
      conv_(bundle.kernel("mr_conv")),
      recur_(bundle.kernel("mr_recur")),
      gate_(bundle.kernel("mr_gate")),
      program_(program),
      layout_(layout) {
  for (const Op& op : program.ops) {
    if (is_state_op(op)) constants_.emplace(op.index, load(op));
  }
}

StateOps::Constants StateOps::load(const Op& op) const {
  Constants c;
  if (op.kind == MR_OP_CONV) {
    const mr_tensor& weight = *program_.tensor(op.conv.weight);
    std::vector<float> weights(size_t(op.conv.kernel) * op.conv.channels);
    for (int k = 0; k < op.conv.kernel; ++k) {
      for (int ch = 0; ch < op.conv.channels; ++ch) {
        weights[size_t(k) * op.conv.channels + ch] =
            element(weight, int64_t{ch} * op.conv.kernel + k);
      }
    }
    c.weight = stream_.upload(weights);
    c.bias = floats(op.conv.bias);
  } else if (op.kind == MR_OP_RECUR) {
    if (op.recur.keys > kMostStateKeys) {
      fail(
          MR_UNSUPPORTED,
          "op %d (RECUR, layer %d): heads of %d keys, this backend runs up to %d, expected the cpu "
          "backend",
          op.index, op.layer, op.recur.keys, kMostStateKeys);
    }
    c.a = decays(op.recur);
    c.dt_bias = floats(op.recur.dt_bias);
    if (op.recur.rule == MR_RECUR_SSM || op.recur.rule == MR_RECUR_SCAN)
      c.skip = floats(op.recur.skip);
  } else if (op.gate.group > 0) {
    c.weight = floats(op.gate.weight);
  }
  return c;
}

// e^a_log: [heads]; of a scan [heads][keys][values], where the tensor is [heads * values, keys].
Buffer StateOps::decays(const mr_recur& u) const {
  const mr_tensor& a_log = *program_.tensor(u.a_log);
  const int keys = u.rule == MR_RECUR_SCAN ? u.keys : 1;
  const int values = u.rule == MR_RECUR_SCAN ? u.values : 1;
  std::vector<float> a(size_t(u.heads) * keys * values);
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t head = i / values / keys, key = i / values % keys;
    a[i] = exponential(
        element(a_log, static_cast<int64_t>((head * values + i % values) * keys + key)));
  }
  return stream_.upload(a);
}

Buffer StateOps::floats(int tensor) const {
  return upload_floats(stream_, program_.tensor(tensor));
}

StateShape StateOps::state_shape(const Op& op) const {
  return {static_cast<uint32_t>(op.state),
          static_cast<uint32_t>(layout_.slab_bytes / sizeof(float)), layout_.head_slabs};
}

void StateOps::conv(const Op& op, const Run& run, const StepTables& tables) {
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const mr_conv& v = op.conv;
  const Constants& c = constants_.at(op.index);
  const ConvShape shape{state_shape(op),
                        v.channels,
                        v.kernel,
                        v.offset,
                        v.times,
                        v.gate,
                        in.width,
                        v.bias >= 0,
                        v.activation == MR_ACT_SILU,
                        out.type == MR_SLOT_F32};
  const size_t blocks = (size_t(v.channels) + kRowItems - 1) / kRowItems;
  stream_.launch(conv_, run.batch.sequences.size() * blocks, kRowItems, in.data, tables.sequences(),
                 tables.slabs(), c.weight.data(), c.bias.data(), out.data, shape);
}

void StateOps::recur(const Op& op, const Run& run, const StepTables& tables) {
  const mr_recur& u = op.recur;
  const Slot in = run.slot(op.in), gates = run.slot(u.gates), out = run.slot(op.out);
  const Slot rates = run.slot_if(reads_rates(u), u.rates);
  const Constants& c = constants_.at(op.index);
  const RecurShape shape{state_shape(op), u.rule,         u.heads,     u.key_heads, u.keys,
                         u.values,        op.state_row(), u.q,         u.k,         u.v,
                         u.decay,         u.rate,         in.width,    gates.width, rates.width,
                         u.least_step,    u.most_step,    u.rate_scale};
  const size_t blocks = (size_t(u.values) + target_.lanes - 1) / target_.lanes;
  stream_.launch_local(recur_, run.batch.sequences.size() * u.heads * blocks, target_.lanes,
                       size_t(u.keys) * (target_.lanes + (u.rule == MR_RECUR_CHANNELS ? 3 : 2)),
                       shape, in.data, gates.data, reads_rates(u) ? rates.data : gates.data,
                       tables.sequences(), tables.slabs(), c.a.data(), c.dt_bias.data(),
                       c.skip.data(), out.data);
}

void StateOps::gate(const Op& op, const Run& run) {
  const mr_gate& g = op.gate;
  const Slot in = run.slot(op.in), gates = run.slot(g.gates), out = run.slot(op.out);
  const Constants& c = constants_.at(op.index);
  const int group = g.group > 0 ? g.group : in.width;
  const GateShape shape{in.width,    group,
                        gates.width, g.offset,
                        g.group > 0, g.group > 0 && program_.tensor(g.weight)->dims[0] > group,
                        g.first,     g.activation,
                        g.sparse,    out.type == MR_SLOT_F32,
                        g.eps,       g.cutoff};
  stream_.launch(gate_, size_t(run.rows) * (in.width / group), kNormItems, in.data, gates.data,
                 c.weight.data(), out.data, shape);
}

uint64_t StateOps::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [op, c] : constants_) {
    for (const Buffer* b : {&c.weight, &c.bias, &c.a, &c.dt_bias, &c.skip}) bytes += b->size();
  }
  return bytes;
}

}  // namespace millrace::gpu
