// Ops with a state (CONV, RECUR), and gates. A sequence's state is float32, in the slabs before those of its tokens.
//
// Its rows run one after the other, each by the same arithmetic: the same bits in any steps.
#include "common.hpp"

namespace mr_states {

MR_INLINE float sigmoid(float x) { return 1 / (1 + sycl::exp(-x)); }
MR_INLINE float silu(float x) { return x / (1 + sycl::exp(-x)); }

// mr_gate_activation.
MR_INLINE float gate(int activation, float x) {
  switch (activation) {
    case mr::kGateSilu:
      return silu(x);
    case mr::kGateSigmoid:
      return sigmoid(x);
    case mr::kGateGelu:
      return 0.5f * x * (1 + sycl::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    default:
      return x;
  }
}

// An op's state of a sequence.
struct State {
  const uint64_t* slabs;
  mr::StateShape shape;
  bool empty;  // the sequence begins

  MR_INLINE State(const uint64_t* slabs, const mr::SequenceEntry& sequence,
                  const mr::StateShape& shape)
      : slabs(slabs + sequence.slabs - shape.slabs), shape(shape), empty(sequence.position == 0) {}

  MR_INLINE float* at(uint32_t i) const {
    const uint32_t place = shape.first + i;
    auto* slab = reinterpret_cast<float*>(kv_memory(slabs[place / shape.slab_floats]));
    return slab + place % shape.slab_floats;
  }
  MR_INLINE float read(uint32_t i) const { return empty ? 0.0f : *at(i); }
};

}  // namespace mr_states

// out[r][c] = act(bias[c] + sum over k of weights[k][c] * x[r - kernel + 1 + k][c]), as mr_conv says.
// A work-item per channel of a sequence.
MR_KERNEL mr_conv(const float* in, const mr::SequenceEntry* sequences, const uint64_t* slabs,
                  const float* weights, const float* bias, void* out, mr::ConvShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int blocks = (s.channels + mr::kRowItems - 1) / mr::kRowItems;
  const mr::SequenceEntry sequence = sequences[item.get_group(0) / blocks];
  const int channel =
      static_cast<int>(item.get_group(0) % blocks * mr::kRowItems + item.get_local_id(0));
  if (channel >= s.channels) return;
  const mr_states::State state(slabs, sequence, s.state);
  const int past = s.kernel - 1;
  const auto row_of = [&](int i) { return in + int64_t{sequence.first_row + i} * s.in_width; };
  const auto x = [&](int i) {
    if (i < 0) return state.read((past + i) * s.channels + channel);
    const float* row = row_of(i);
    return s.times >= 0 ? row[s.offset + channel] * row[s.times + channel]
                        : row[s.offset + channel];
  };
  for (int i = 0; i < sequence.rows; ++i) {
    float sum = s.bias ? bias[channel] : 0.0f;
    for (int k = 0; k < s.kernel; ++k) {
      sum = sycl::fma(weights[k * s.channels + channel], x(i - past + k), sum);
    }
    if (s.silu) sum = mr_states::silu(sum);
    if (s.gate >= 0) sum *= row_of(i)[s.gate + channel];
    store(out, s.out_f32, int64_t{sequence.first_row + i} * s.channels + channel, sum);
  }
  // In ascending order: what an element becomes lies after it.
  for (int k = 0; k < past; ++k) {
    *state.at(k * s.channels + channel) = x(sequence.rows - past + k);
  }
}

// As mr_recur says. A sub-group per MR_LANES values of a head of a sequence: a lane has a column of the state, which
// lies in local memory while the rows run, [keys][MR_LANES], then a row's query and key, and the decays of its channels.
MR_KERNEL mr_recur(const float* in, const float* gates, const float* rates,
                   const mr::SequenceEntry* sequences, const uint64_t* slabs, const float* a,
                   const float* dt_bias, const float* skip, float* out,
                   sycl::local_accessor<float, 1> local, mr::RecurShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto sub_group = item.get_sub_group();
  const int lane = sub_group.get_local_linear_id();
  const int blocks = (s.values + MR_LANES - 1) / MR_LANES;
  const int64_t task = item.get_group(0) / blocks;
  const int column = static_cast<int>(item.get_group(0) % blocks) * MR_LANES + lane;
  const int head = static_cast<int>(task % s.heads);
  const mr::SequenceEntry sequence = sequences[task / s.heads];
  const bool there = column < s.values;
  const mr_states::State state(slabs, sequence, s.state);
  const uint32_t base = static_cast<uint32_t>(head) * s.keys * s.state_row + column;

  float* const memory = local.get_multi_ptr<sycl::access::decorated::no>().get();
  float* const mine = memory + lane;
  float* const q = memory + s.keys * MR_LANES;
  float* const k = q + s.keys;
  float* const kept = k + s.keys;
  const bool scan = s.rule == mr::kRecurScan, channels = s.rule == mr::kRecurChannels;
  const bool delta = channels || s.rule == mr::kRecurDelta;
  const int value = there ? column : 0, channel = head * s.values + value;
  for (int j = 0; j < s.keys; ++j) {
    mine[j * MR_LANES] = there ? state.read(base + j * s.state_row) : 0.0f;
  }
  const int key_head = scan ? 0 : head / (s.heads / s.key_heads) * s.keys;
  for (int i = 0; i < sequence.rows; ++i) {
    const int64_t row = sequence.first_row + i;
    const float* x = in + row * s.in_width;
    const float* g = gates + row * s.gates_width;
    const float* qk = scan ? rates + row * s.rates_width : x;
    sycl::group_barrier(sub_group);  // all have read the query and key of the row before
    float q_square = 0, k_square = 0;
    for (int j = lane; j < s.keys; j += MR_LANES) {
      q[j] = qk[s.q + key_head + j];
      k[j] = qk[s.k + key_head + j];
      q_square = sycl::fma(q[j], q[j], q_square);
      k_square = sycl::fma(k[j], k[j], k_square);
    }
    if (delta) {
      constexpr float kLeast = 1e-6f;
      q_square = sycl::reduce_over_group(sub_group, q_square, sycl::plus<float>());
      k_square = sycl::reduce_over_group(sub_group, k_square, sycl::plus<float>());
      const float q_by =
          1 / (sycl::sqrt(q_square + kLeast) * sycl::sqrt(static_cast<float>(s.keys)));
      const float k_by = 1 / sycl::sqrt(k_square + kLeast);
      for (int j = lane; j < s.keys; j += MR_LANES) {
        q[j] *= q_by;
        k[j] *= k_by;
      }
    }
    const auto step_of = [&](int at) {
      const float raw = g[s.decay + at] + dt_bias[at];
      return raw > 20 ? raw : sycl::log1p(sycl::exp(raw));
    };
    for (int j = lane; channels && j < s.keys; j += MR_LANES) {
      kept[j] = sycl::exp(-a[head] * step_of(head * s.keys + j));
    }
    sycl::group_barrier(sub_group);

    float step = channels ? 0.0f : step_of(scan ? channel : head);
    if (s.rule == mr::kRecurSsm) {
      step = step < s.least_step ? s.least_step : step > s.most_step ? s.most_step : step;
    }
    const float all = scan || channels ? 0.0f : sycl::exp(-a[head] * step);
    // The decay of key j of this lane's value.
    const auto keep = [&](int j) {
      if (scan) return sycl::exp(-a[(int64_t{head} * s.keys + j) * s.values + value] * step);
      return channels ? kept[j] : all;
    };
    const float v = there ? x[s.v + head * s.values + column] : 0.0f;
    const bool retention = s.rule == mr::kRecurRetention;
    float change = retention ? v : v * step, sum = 0;
    if (delta) {
      float old = 0;
      for (int j = 0; j < s.keys; ++j) old = sycl::fma(k[j], mine[j * MR_LANES] * keep(j), old);
      change =
          (v - old) * s.rate_scale * mr_states::sigmoid(rates[row * s.rates_width + s.rate + head]);
    } else if (!retention) {
      sum = skip[scan ? channel : head] * v;
    }
    for (int j = 0; j < s.keys; ++j) {
      const float next = sycl::fma(k[j], change, mine[j * MR_LANES] * keep(j));
      mine[j * MR_LANES] = next;
      sum = sycl::fma(q[j], next, sum);
    }
    if (there) out[(row * s.heads + head) * s.values + column] = sum;
  }
  for (int j = 0; there && j < s.keys; ++j) *state.at(base + j * s.state_row) = mine[j * MR_LANES];
}

// out[r] = in[r] * act(gates[r]), normed before or after, as mr_gate says. A work-group per group of a row. An item
// reads only what it writes itself, so that in and out may be one slot.
MR_KERNEL mr_gate(const float* in, const float* gates, const float* weight, void* out,
                  mr::GateShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int groups = s.width / s.group, part = static_cast<int>(item.get_group(0) % groups);
  const int64_t row = item.get_group(0) / groups;
  const int64_t first = row * s.width + part * s.group;
  const float* all = gates + row * s.gates_width + s.offset;
  float least = 0;
  if (s.sparse) {
    const auto width = static_cast<float>(s.width);
    const auto group = item.get_group();
    float mean = 0, square = 0;
    for (int i = item.get_local_id(0); i < s.width; i += mr::kNormItems) mean += all[i];
    mean = sycl::reduce_over_group(group, mean, sycl::plus<float>()) / width;
    for (int i = item.get_local_id(0); i < s.width; i += mr::kNormItems) {
      square = sycl::fma(all[i] - mean, all[i] - mean, square);
    }
    square = sycl::reduce_over_group(group, square, sycl::plus<float>());
    least = mean + s.cutoff * sycl::sqrt(square / width);
  }
  const float* at = all + part * s.group;
  const auto by = [&](int i) {
    const float above = at[i] - least;
    return mr_states::gate(s.activation, s.sparse && above < 0 ? 0.0f : above);
  };
  const auto value = [&](int i) { return s.first ? in[first + i] * by(i) : in[first + i]; };
  if (s.each) weight += part * s.group;
  float scale = 1;
  if (s.norm) {
    float square = 0;
    for (int i = item.get_local_id(0); i < s.group; i += mr::kNormItems) {
      const float x = value(i);
      square = sycl::fma(x, x, square);
    }
    square = sycl::reduce_over_group(item.get_group(), square, sycl::plus<float>());
    scale = 1 / sycl::sqrt(square / static_cast<float>(s.group) + s.eps);
  }
  for (int i = item.get_local_id(0); i < s.group; i += mr::kNormItems) {
    float y = value(i);
    if (s.norm) y = y * scale * weight[i];
    if (!s.first) y *= by(i);
    store(out, s.out_f32, first + i, y);
  }
}
