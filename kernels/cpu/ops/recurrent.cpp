#include <algorithm>
#include <array>

#include "cpu/ops/ops.hpp"
#include "exec/tensor.hpp"

namespace millrace::cpu {
namespace {

// The op's state of a sequence.
float* state_of(const Op& op, const Sequence& s) {
  return reinterpret_cast<float*>(s.head) + op.state;
}

}  // namespace

Conv::Conv(const Context& c, const Op& op) : bias(floats(c.program.tensor(op.conv.bias))) {
  const mr_tensor& weight = *c.program.tensor(op.conv.weight);
  for (int k = 0; k < op.conv.kernel; ++k) {
    for (int ch = 0; ch < op.conv.channels; ++ch)
      weights.push_back(element(weight, int64_t{ch} * op.conv.kernel + k));
  }
}

void CpuOps::conv(const Op& op, const Run& run) {
  const FloatScope mode(mode_);
  const Context& c = context_;
  const Conv& kept = *kept_[op.index].conv;
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  constexpr int kChannels = 256;  // of a task
  const mr_conv& v = op.conv;
  const int parts = (v.channels + kChannels - 1) / kChannels;
  const auto sequences = static_cast<int>(run.batch.sequences.size());
  c.pool.parallel_for(sequences * parts, [&](int task, int) {
    const Sequence& s = run.batch.sequences[task / parts];
    const int begin = task % parts * kChannels, end = std::min(v.channels, begin + kChannels);
    float* state = state_of(op, s);
    for (int k = 0; s.position == 0 && k < v.kernel - 1; ++k)
      std::fill(state + int64_t{k} * v.channels + begin, state + int64_t{k} * v.channels + end,
                0.0f);
    c.kernels.conv(
        {kept.weights.data(), kept.bias.empty() ? nullptr : kept.bias.data(), v.channels, v.kernel,
         v.offset, v.times, v.gate, v.activation == MR_ACT_SILU, out.type == MR_SLOT_F32, begin,
         end, s.rows, in.f32() + int64_t{s.first_row} * in.width, in.width, state,
         static_cast<std::byte*>(out.data) + int64_t{s.first_row} * out.width * out.element_bytes,
         out.width});
  });
}

Recur::Recur(const Context& c, const Op& op)
    : a(floats(c.program.tensor(op.recur.a_log))),
      dt_bias(floats(c.program.tensor(op.recur.dt_bias))),
      skip(floats(c.program.tensor(op.recur.skip))) {
  for (float& x : a) x = exponential(x);
  if (op.recur.rule != MR_RECUR_SCAN) return;
  const mr_recur& u = op.recur;
  const mr_tensor& a_log = *c.program.tensor(u.a_log);  // [heads * values][keys]
  a.assign(int64_t{u.heads} * u.keys * op.state_row(), 0);
  for (int h = 0; h < u.heads; ++h) {
    for (int v = 0; v < u.values; ++v) {
      for (int j = 0; j < u.keys; ++j) {
        a[(int64_t{h} * u.keys + j) * op.state_row() + v] =
            exponential(element(a_log, (int64_t{h} * u.values + v) * u.keys + j));
      }
    }
  }
}

void CpuOps::recur(const Op& op, const Run& run) {
  const FloatScope mode(mode_);
  const Context& c = context_;
  const Recur& kept = *kept_[op.index].recur;
  const mr_recur& u = op.recur;
  const Slot in = run.slot(op.in), gates = run.slot(u.gates), out = run.slot(op.out);
  const Slot rates = run.slot_if(reads_rates(u), u.rates);
  const int per_key = u.heads / u.key_heads, state_row = op.state_row();
  const auto sequences = static_cast<int>(run.batch.sequences.size());
  const int64_t room = RecurTask::room_floats(u.keys, state_row);
  auto* rooms = static_cast<float*>(c.pool.scratch(c.pool.size() * room * sizeof(float)));
  c.pool.parallel_for(sequences * u.heads, [&](int task, int thread) {
    const Sequence& s = run.batch.sequences[task / u.heads];
    const int h = task % u.heads;
    float* state = state_of(op, s) + int64_t{h} * u.keys * state_row;
    if (s.position == 0) std::fill_n(state, u.keys * state_row, 0.0f);
    const float* row = in.f32() + int64_t{s.first_row} * in.width;
    const float* gate = gates.f32() + int64_t{s.first_row} * gates.width;
    const float* rate = reads_rates(u) ? rates.f32() + int64_t{s.first_row} * rates.width : nullptr;
    if (u.rule == MR_RECUR_SCAN) {
      c.kernels.scan({u.keys, u.values, state_row, kept.a.data() + int64_t{h} * u.keys * state_row,
                      kept.dt_bias.data() + h * u.values, kept.skip.data() + h * u.values, s.rows,
                      rate + u.q, rate + u.k, rates.width, row + u.v + h * u.values, in.width,
                      gate + u.decay + h * u.values, gates.width, state,
                      out.f32() + int64_t{s.first_row} * out.width + h * u.values, out.width});
      return;
    }
    const int decays = u.rule == MR_RECUR_CHANNELS ? u.keys : 1;
    c.kernels.recur({u.rule,
                     u.keys,
                     u.values,
                     state_row,
                     kept.a[h],
                     kept.dt_bias.data() + h * decays,
                     u.rule == MR_RECUR_SSM ? kept.skip[h] : 0.0f,
                     u.least_step,
                     u.most_step,
                     u.rate_scale,
                     s.rows,
                     row + u.q + h / per_key * u.keys,
                     row + u.k + h / per_key * u.keys,
                     row + u.v + h * u.values,
                     in.width,
                     gate + u.decay + h * decays,
                     rate == nullptr ? nullptr : rate + u.rate + h,
                     gates.width,
                     rates.width,
                     state,
                     out.f32() + int64_t{s.first_row} * out.width + h * u.values,
                     out.width,
                     rooms + thread * room});
  });
}

void CpuOps::altup(const Op& op, const Run& run) {
  const FloatScope mode(mode_);
  const Context& c = context_;
  const mr_altup& a = op.altup;
  const Slot coefs = run.slot_if(a.step != MR_ALTUP_MATCH, a.coefs);
  const Slot x = run.slot_if(a.step == MR_ALTUP_CORRECT, a.x);
  const int width = run.slot(op.in).width;
  const AltUpRow row{a.step, a.streams, a.active, width};
  for_rows(c.pool, run.rows, width * a.streams, [&](int r, int) {
    std::array<float*, MR_MAX_STREAMS> s{};
    for (int j = 0; j < a.streams; ++j) s[j] = run.slot(op.in + j).f32() + int64_t{r} * width;
    c.kernels.altup(row, s.data(),
                    a.step == MR_ALTUP_MATCH ? nullptr : coefs.f32() + int64_t{r} * coefs.width,
                    a.step == MR_ALTUP_CORRECT ? x.f32() + int64_t{r} * width : nullptr);
  });
}

Gate::Gate(const Context& c, const Op& op)
    : weight(floats(op.gate.group > 0 ? c.program.tensor(op.gate.weight) : nullptr)),
      row{c.program.slots[op.in].width,
          op.gate.group,
          weight.empty() ? nullptr : weight.data(),
          static_cast<int>(weight.size()) != op.gate.group,
          op.gate.first != 0,
          op.gate.activation,
          c.program.slots[op.out].type == MR_SLOT_F32,
          op.gate.eps,
          op.gate.sparse != 0,
          op.gate.cutoff} {}

void CpuOps::gate(const Op& op, const Run& run) {
  const FloatScope mode(mode_);
  const Context& c = context_;
  const Gate& kept = *kept_[op.index].gate;
  const Slot in = run.slot(op.in), gates = run.slot(op.gate.gates), out = run.slot(op.out);
  auto* rooms =
      static_cast<float*>(c.pool.scratch(size_t(c.pool.size()) * in.width * sizeof(float)));
  for_rows(c.pool, run.rows, in.width, [&](int r, int thread) {
    c.kernels.gate(kept.row, in.f32() + int64_t{r} * in.width,
                   gates.f32() + int64_t{r} * gates.width + op.gate.offset,
                   static_cast<std::byte*>(out.data) + int64_t{r} * out.width * out.element_bytes,
                   rooms + int64_t{thread} * in.width);
  });
}

}  // namespace millrace::cpu
