// The ops with a state, and the gates of their results.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ref/ref.hpp"

namespace millrace::ref {
namespace {

float silu(float x) { return x / (1 + std::exp(-x)); }
float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
float gelu_tanh(float x) {
  return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

float activate(int32_t activation, float x) {
  switch (activation) {
    case MR_GATE_SILU:
      return silu(x);
    case MR_GATE_SIGMOID:
      return sigmoid(x);
    case MR_GATE_GELU_TANH:
      return gelu_tanh(x);
    default:
      return x;
  }
}

// What is not above it is 0 for a sparse gate: mean + cutoff * deviation.
double threshold(const mr_gate& g, const float* gates, int width) {
  double mean = 0, square = 0;
  for (int i = 0; i < width; ++i) mean += gates[i];
  mean /= width;
  for (int i = 0; i < width; ++i) square += (gates[i] - mean) * (gates[i] - mean);
  return mean + g.cutoff * std::sqrt(square / width);
}

// The op's state of a sequence; zeros at its beginning.
float* state_of(const Op& op, const Sequence& s) {
  float* state = reinterpret_cast<float*>(s.head) + op.state;
  if (s.position == 0) std::fill_n(state, op.state_floats(), 0.0f);
  return state;
}

// An element of a tensor of rank 1.
float vector_at(const Context& c, int tensor, int i) {
  return element(*c.program.tensor(tensor), i);
}

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

void scan(const Context& c, const Op& op, const Batch& batch, Slot in, Slot gates, Slot rates,
          Slot out) {
  const mr_recur& u = op.recur;
  const mr_tensor& a_log = *c.program.tensor(u.a_log);
  const int channels = u.heads * u.values;
  for (const Sequence& s : batch.sequences) {
    float* states = state_of(op, s);  // [heads][keys][state_row]
    for (int i = 0; i < s.rows; ++i) {
      const int64_t row = s.first_row + i;
      const float* rate = rates.f32() + row * rates.width;
      for (int ch = 0; ch < channels; ++ch) {
        const double step = softplus(double{gates.f32()[row * gates.width + u.decay + ch]} +
                                     vector_at(c, u.dt_bias, ch));
        const double v = in.f32()[row * in.width + u.v + ch];
        float* state = states + int64_t{ch / u.values} * u.keys * op.state_row() + ch % u.values;
        double sum = vector_at(c, u.skip, ch) * v;
        for (int j = 0; j < u.keys; ++j, state += op.state_row()) {
          const double a = std::exp(double{element(a_log, int64_t{ch} * u.keys + j)});
          *state = static_cast<float>(*state * std::exp(-a * step) + rate[u.k + j] * step * v);
          sum += double{rate[u.q + j]} * *state;
        }
        out.f32()[row * out.width + ch] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace

void RefKernels::conv(const Op& op, const Run& run) {
  const Context& c = context_;
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const mr_conv& v = op.conv;
  const mr_tensor& weight = *c.program.tensor(v.weight);
  const int past = v.kernel - 1;
  for (const Sequence& s : run.batch.sequences) {
    float* state = state_of(op, s);  // [past][channels]
    for (int i = 0; i < s.rows; ++i) {
      const float* row = in.f32() + int64_t{s.first_row + i} * in.width;
      for (int ch = 0; ch < v.channels; ++ch) {
        float x = row[v.offset + ch];
        if (v.times >= 0) x *= row[v.times + ch];
        double sum = v.bias >= 0 ? vector_at(c, v.bias, ch) : 0;
        for (int k = 0; k < past; ++k) {
          sum += double{element(weight, int64_t{ch} * v.kernel + k)} * state[k * v.channels + ch];
        }
        sum += double{element(weight, int64_t{ch} * v.kernel + past)} * x;
        for (int k = 0; k + 1 < past; ++k)
          state[k * v.channels + ch] = state[(k + 1) * v.channels + ch];
        state[(past - 1) * v.channels + ch] = x;
        auto y = static_cast<float>(sum);
        if (v.activation == MR_ACT_SILU) y = silu(y);
        if (v.gate >= 0) y *= row[v.gate + ch];
        out.f32()[int64_t{s.first_row + i} * out.width + ch] = y;
      }
    }
  }
}

void RefKernels::recur(const Op& op, const Run& run) {
  const Context& c = context_;
  const mr_recur& u = op.recur;
  const Slot in = run.slot(op.in), gates = run.slot(u.gates), out = run.slot(op.out);
  const Slot rates = run.slot_if(reads_rates(u), u.rates);
  if (u.rule == MR_RECUR_SCAN) return scan(c, op, run.batch, in, gates, rates, out);
  const bool delta = erases(u), ssm = u.rule == MR_RECUR_SSM;
  const int decays = u.rule == MR_RECUR_CHANNELS ? u.keys : 1;
  const int per_key = u.heads / u.key_heads;
  std::vector<float> q(u.keys), k(u.keys), change(u.values);
  const auto unit = [&](std::vector<float>& x) {
    double square = 0;
    for (const float e : x) square += double{e} * e;
    for (float& e : x) e = static_cast<float>(e / std::sqrt(square + 1e-6));
  };
  for (const Sequence& s : run.batch.sequences) {
    float* states = state_of(op, s);  // [heads][keys][state_row]
    for (int h = 0; h < u.heads; ++h) {
      float* state = states + int64_t{h} * u.keys * op.state_row();
      for (int i = 0; i < s.rows; ++i) {
        const int row = s.first_row + i;
        const float* x = in.f32() + int64_t{row} * in.width;
        const float* g = gates.f32() + int64_t{row} * gates.width;
        const float* v = x + u.v + h * u.values;
        float* y = out.f32() + int64_t{row} * out.width + h * u.values;
        std::copy_n(x + u.q + h / per_key * u.keys, u.keys, q.begin());
        std::copy_n(x + u.k + h / per_key * u.keys, u.keys, k.begin());
        const float rate = delta ? rates.f32()[int64_t{row} * rates.width + u.rate + h] : 0.0f;
        double step = 0, keep = 0;
        for (int j = 0; j < u.keys; ++j) {
          if (j < decays) {
            const int at = h * decays + j;
            const double raw = double{g[u.decay + at]} + vector_at(c, u.dt_bias, at);
            step = softplus(raw);
            if (ssm) step = std::clamp(step, double{u.least_step}, double{u.most_step});
            keep = std::exp(-std::exp(double{vector_at(c, u.a_log, h)}) * step);
          }
          for (int e = 0; e < op.state_row(); ++e) {
            float& kept = state[j * op.state_row() + e];
            kept = static_cast<float>(kept * keep);
          }
        }
        if (delta) {
          unit(q);
          unit(k);
          for (float& e : q) e /= std::sqrt(static_cast<float>(u.keys));
        }
        for (int e = 0; e < u.values; ++e) {
          double old = 0;
          for (int j = 0; delta && j < u.keys; ++j)
            old += double{k[j]} * state[j * op.state_row() + e];
          change[e] = static_cast<float>(delta ? (v[e] - old) * u.rate_scale * sigmoid(rate)
                                         : ssm ? v[e] * step
                                               : v[e]);
        }
        for (int e = 0; e < u.values; ++e) {
          double sum = ssm ? double{vector_at(c, u.skip, h)} * v[e] : 0;
          for (int j = 0; j < u.keys; ++j) {
            float& at = state[j * op.state_row() + e];
            at += k[j] * change[e];
            sum += double{q[j]} * at;
          }
          y[e] = static_cast<float>(sum);
        }
      }
    }
  }
}

void RefKernels::gate(const Op& op, const Run& run) {
  const mr_gate& g = op.gate;
  const Slot in = run.slot(op.in), gates = run.slot(g.gates), out = run.slot(op.out);
  const mr_tensor* weight = g.group > 0 ? context_.program.tensor(g.weight) : nullptr;
  const int group = g.group > 0 ? g.group : in.width;
  std::vector<float> x(in.width), by(in.width);
  for (int r = 0; r < run.rows; ++r) {
    const float* from = in.f32() + int64_t{r} * in.width;
    const float* at = gates.f32() + int64_t{r} * gates.width + g.offset;
    float* to = out.f32() + int64_t{r} * out.width;
    const double least = g.sparse ? threshold(g, at, in.width) : 0;
    for (int i = 0; i < in.width; ++i) {
      const auto above = static_cast<float>(std::max(0.0, at[i] - least));
      by[i] = activate(g.activation, g.sparse ? above : at[i]);
      x[i] = g.first ? from[i] * by[i] : from[i];
    }
    for (int begin = 0; begin < in.width; begin += group) {
      double square = 0;
      for (int i = begin; i < begin + group; ++i) square += double{x[i]} * x[i];
      const double scale = weight != nullptr ? 1 / std::sqrt(square / group + g.eps) : 1;
      for (int i = begin; i < begin + group; ++i) {
        const float times =
            weight == nullptr ? 1 : element(*weight, weight->dims[0] == group ? i - begin : i);
        const auto normed = static_cast<float>(x[i] * scale) * times;
        to[i] = g.first ? normed : normed * by[i];
      }
    }
  }
}

}  // namespace millrace::ref
