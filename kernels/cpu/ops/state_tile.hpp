// The ops with a state, gates and alternating updates, written once over a Target (cpu/ops/row_tile.hpp). What a lane
// computes does not depend on the lanes beside it: instruction sets with fused products share the bits.
#ifndef MILLRACE_CPU_OPS_STATE_TILE_HPP
#define MILLRACE_CPU_OPS_STATE_TILE_HPP

#include "cpu/machine/math_tile.hpp"
#include "cpu/ops/row_tile.hpp"
#include "cpu/ops/states.hpp"

namespace millrace::cpu {
namespace {

template <class T>
struct States {
  using Vector = typename T::Vector;
  static constexpr int kLanes = T::kLanes;

  struct Fused {
    static Vector multiply_add(Vector a, Vector b, Vector c) { return T::fma(a, b, c); }
  };

  static Vector load(const float* p, int n) {
    if (n >= kLanes) return T::load(p);
    float lanes[kLanes] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return T::load(lanes);
  }
  static void store(float* p, Vector x, int n) {
    if (n >= kLanes) return T::store(p, x);
    float lanes[kLanes];
    T::store(lanes, x);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
  }
  static void put(bool f32, void* out, int64_t at, Vector x, int n) {
    if (f32) return store(static_cast<float*>(out) + at, x, n);
    const auto rounded = cpu::to_bf16<kLanes>(x);
    __builtin_memcpy(static_cast<bf16*>(out) + at, &rounded,
                     (n < kLanes ? n : kLanes) * sizeof(bf16));
  }

  static Vector sigmoid(Vector x) {
    return 1.0f / (1.0f + (Vector)Math<kLanes>::template exp<Fused>(-x));
  }

  // ---- CONV

  // kPast: the tokens before a row, or the most of them.
  template <int kPast>
  static void conv(const ConvTask& t) {
    const int past = kPast == kMostPast ? t.kernel - 1 : kPast;
    for (int c = t.begin; c < t.end; c += kLanes) {
      const int n = t.end - c;
      Vector window[kPast], weights[kPast + 1];
      for (int k = 0; k < past; ++k) window[k] = load(t.state + int64_t{k} * t.channels + c, n);
      for (int k = 0; k <= past; ++k) weights[k] = load(t.weights + int64_t{k} * t.channels + c, n);
      const Vector bias = t.bias != nullptr ? load(t.bias + c, n) : Vector{};
      for (int r = 0; r < t.rows; ++r) {
        const float* in = t.in + r * t.in_stride + c;
        Vector x = load(in + t.offset, n);
        if (t.times >= 0) x = x * load(in + t.times, n);
        Vector y = bias;
        for (int k = 0; k < past; ++k) y = T::fma(weights[k], window[k], y);
        y = T::fma(weights[past], x, y);
        for (int k = 0; k + 1 < past; ++k) window[k] = window[k + 1];
        window[past - 1] = x;
        if (t.silu) y = y * sigmoid(y);
        if (t.gate >= 0) y = y * load(in + t.gate, n);
        put(t.out_f32, t.out, r * t.out_stride + c, y, n);
      }
      for (int k = 0; k < past; ++k) store(t.state + int64_t{k} * t.channels + c, window[k], n);
    }
  }

  static constexpr int kMostPast = 15;

  static void conv_rows(const ConvTask& t) {
    switch (t.kernel) {
      case 3:
        return conv<2>(t);
      case 4:
        return conv<3>(t);
      default:
        return conv<kMostPast>(t);
    }
  }

  // ---- RECUR

  // Rows that are prepared together: a block of the state stays in the first-level cache for them.
  struct Prepared {
    float *q, *k;  // [kStateRows][keys]
    float *v, *y;  // [kStateRows][state_row], with zeros after the values
    float *keeps,
        *faded;  // MR_RECUR_CHANNELS: [kStateRows][keys], what a row of the state keeps, and times k
    float keep[kStateRows], by[kStateRows];
  };

  static void unit(const float* in, int n, float scale, float* out) {
    const float times = scale / T::sqrt(Rows<T>::squares(in, n, 0.0f) + 1e-6f);
    for (int i = 0; i < n; ++i) out[i] = in[i] * times;
  }

  static void prepare(const RecurTask& t, int first, int rows, Prepared& p) {
    for (int r = 0; r < rows; ++r) {
      const int64_t at = (first + r) * t.in_stride;
      const float* decay = t.decay + (first + r) * t.gates_stride;
      float* q = p.q + r * t.keys;
      float* k = p.k + r * t.keys;
      float step = softplus(decay[0] + t.dt_bias[0]);
      if (t.erases()) {
        unit(t.q + at, t.keys, 1.0f / T::sqrt(static_cast<float>(t.keys)), q);
        unit(t.k + at, t.keys, 1.0f, k);
        p.by[r] = t.rate_scale * millrace::sigmoid(t.rate[(first + r) * t.rates_stride]);
      } else {
        const bool ssm = t.rule == MR_RECUR_SSM;
        if (ssm)
          step = step < t.least_step ? t.least_step : step > t.most_step ? t.most_step : step;
        __builtin_memcpy(q, t.q + at, t.keys * sizeof(float));
        __builtin_memcpy(k, t.k + at, t.keys * sizeof(float));
        p.by[r] = ssm ? step : 1;
      }
      p.keep[r] = exponential(-t.a * step);
      for (int j = 0; t.rule == MR_RECUR_CHANNELS && j < t.keys; ++j) {
        const float keep = exponential(-t.a * softplus(decay[j] + t.dt_bias[j]));
        p.keeps[r * t.keys + j] = keep;
        p.faded[r * t.keys + j] = keep * k[j];
      }
      float* v = p.v + r * t.state_row;
      __builtin_memcpy(v, t.v + at, t.values * sizeof(float));
      for (int i = t.values; i < t.state_row; ++i) v[i] = 0;
    }
  }

  // kVectors of a state's values, from `column` on, for some rows one after the other.
  template <int kVectors, bool kChannels>
  static void block(const RecurTask& t, int rows, int column, const Prepared& p) {
    for (int r = 0; r < rows; ++r) {
      const float *q = p.q + r * t.keys, *k = p.k + r * t.keys;
      const float* keeps = kChannels ? p.keeps + r * t.keys : nullptr;
      const float* past = kChannels ? p.faded + r * t.keys : k;
      const float* v = p.v + r * t.state_row + column;
      const Vector keep = T::set1(p.keep[r]), by = T::set1(p.by[r]);
      Vector change[kVectors], sum[kVectors] = {};
      if (t.erases()) {
        const float* state = t.state + column;
        for (int j = 0; j < t.keys; ++j, state += t.state_row) {
          const Vector key = T::set1(past[j]);
          for (int n = 0; n < kVectors; ++n)
            sum[n] = T::fma(key, T::load(state + n * kLanes), sum[n]);
        }
        for (int n = 0; n < kVectors; ++n) {
          change[n] = (T::load(v + n * kLanes) - (kChannels ? sum[n] : sum[n] * keep)) * by;
          sum[n] = Vector{};
        }
      } else {
        const Vector skip = T::set1(t.skip);
        for (int n = 0; n < kVectors; ++n) {
          const Vector x = T::load(v + n * kLanes);
          change[n] = x * by;
          sum[n] = x * skip;
        }
      }
      float* state = t.state + column;
      for (int j = 0; j < t.keys; ++j, state += t.state_row) {
        const Vector key = T::set1(k[j]), query = T::set1(q[j]);
        const Vector kept = kChannels ? T::set1(keeps[j]) : keep;
        for (int n = 0; n < kVectors; ++n) {
          const Vector s = T::fma(key, change[n], T::load(state + n * kLanes) * kept);
          T::store(state + n * kLanes, s);
          sum[n] = T::fma(query, s, sum[n]);
        }
      }
      for (int n = 0; n < kVectors; ++n)
        T::store(p.y + r * t.state_row + column + n * kLanes, sum[n]);
    }
  }

  // Blocks of kVectors from a column on, as many as there are; returns the column after them.
  template <int kVectors>
  static int blocks(const RecurTask& t, int rows, int column, const Prepared& p) {
    for (; column + kVectors * kLanes <= t.state_row; column += kVectors * kLanes) {
      if (t.rule == MR_RECUR_CHANNELS) {
        block<kVectors, true>(t, rows, column, p);
      } else {
        block<kVectors, false>(t, rows, column, p);
      }
    }
    return column;
  }

  static void recur(const RecurTask& t) {
    Prepared p{t.room,
               t.room + kStateRows * t.keys,
               t.room + 2 * kStateRows * t.keys,
               t.room + kStateRows * (2 * t.keys + t.state_row),
               t.room + kStateRows * (2 * t.keys + 2 * t.state_row),
               t.room + kStateRows * (3 * t.keys + 2 * t.state_row),
               {},
               {}};
    for (int first = 0; first < t.rows; first += kStateRows) {
      const int rows = t.rows - first < kStateRows ? t.rows - first : kStateRows;
      prepare(t, first, rows, p);
      int column = 0;
      if constexpr (kLanes == 16) column = blocks<8>(t, rows, column, p);
      if constexpr (kLanes >= 8) column = blocks<4>(t, rows, column, p);
      blocks<1>(t, rows, column, p);
      for (int r = 0; r < rows; ++r) {
        __builtin_memcpy(t.out + (first + r) * t.out_stride, p.y + r * t.state_row,
                         t.values * sizeof(float));
      }
    }
  }

  static void scan(const ScanTask& t) {
    for (int c = 0; c < t.values; c += kLanes) {
      const int n = t.values - c;
      const Vector skip = load(t.skip + c, n);
      for (int r = 0; r < t.rows; ++r) {
        const float* decay = t.decay + r * t.gates_stride + c;
        float steps[kLanes] = {};
        for (int i = 0; i < kLanes && i < n; ++i) steps[i] = softplus(decay[i] + t.dt_bias[c + i]);
        const Vector step = T::load(steps), v = load(t.v + r * t.in_stride + c, n);
        const Vector change = step * v;
        Vector sum = skip * v;
        const float *q = t.q + r * t.rates_stride, *k = t.k + r * t.rates_stride;
        for (int j = 0; j < t.keys; ++j) {
          float* state = t.state + int64_t{j} * t.state_row + c;
          const Vector keep = (Vector)Math<kLanes>::template exp<Fused>(
              -T::load(t.a + int64_t{j} * t.state_row + c) * step);
          const Vector s = T::fma(T::set1(k[j]), change, T::load(state) * keep);
          T::store(state, s);
          sum = T::fma(T::set1(q[j]), s, sum);
        }
        store(t.out + r * t.out_stride + c, sum, n);
      }
    }
  }

  // ---- GATE

  static void gate(const GateRow& row, const float* in, const float* gates, void* out,
                   float* room) {
    const int width = row.width;
    const float least = row.sparse ? threshold(row, gates) : 0.0f;
    if (row.first) {
      for (int i = 0; i < width; i += kLanes)
        store(room + i, load(in + i, width - i) * gated(row, gates, least, i, width - i),
              width - i);
      in = room;
    }
    const int group = row.weight != nullptr ? row.group : width;
    for (int begin = 0; begin < width; begin += group) {
      float scale = 1;
      if (row.weight != nullptr) {
        scale =
            1.0f / T::sqrt(Rows<T>::squares(in + begin, group, 0.0f) / static_cast<float>(group) +
                           row.eps);
      }
      for (int i = 0; i < group; i += kLanes) {
        const int n = group - i, at = begin + i;
        Vector x = load(in + at, n);
        if (row.weight != nullptr)
          x = x * T::set1(scale) * load(row.weight + (row.each ? at : i), n);
        if (!row.first) x = x * gated(row, gates, least, at, n);
        put(row.out_f32, out, at, x, n);
      }
    }
  }

  static float threshold(const GateRow& row, const float* gates) {
    const float mean = Rows<T>::mean(gates, row.width);
    const float variance = Rows<T>::squares(gates, row.width, mean) / static_cast<float>(row.width);
    return mean + row.cutoff * T::sqrt(variance);
  }

  static Vector gated(const GateRow& row, const float* gates, float least, int at, int n) {
    Vector x = load(gates + at, n);
    if (row.sparse) x = T::max(x - T::set1(least), Vector{});
    switch (row.activation) {
      case MR_GATE_SILU:
        return x * sigmoid(x);
      case MR_GATE_SIGMOID:
        return sigmoid(x);
      case MR_GATE_GELU_TANH:
        return (Vector)Math<kLanes>::template activate<Fused>(x, MR_ACT_GELU_TANH);
      default:
        return x;
    }
  }

  // ---- ALTUP

  static void altup(const AltUpRow& row, float* const* streams, const float* coefs,
                    const float* x) {
    switch (row.step) {
      case MR_ALTUP_PREDICT:
        return predict(row, streams, coefs);
      case MR_ALTUP_CORRECT:
        return correct(row, streams, coefs, x);
      default:
        return match(row, streams);
    }
  }

  static void predict(const AltUpRow& row, float* const* streams, const float* coefs) {
    const int n = row.streams;
    for (int i = 0; i < row.width; i += kLanes) {
      const int rest = row.width - i;
      Vector before[MR_MAX_STREAMS];
      for (int j = 0; j < n; ++j) before[j] = load(streams[j] + i, rest);
      for (int j = 0; j < n; ++j) {
        Vector sum = before[j];
        for (int k = 0; k < n; ++k) sum = T::fma(T::set1(coefs[j * n + k]), before[k], sum);
        store(streams[j] + i, sum, rest);
      }
    }
  }

  static void correct(const AltUpRow& row, float* const* streams, const float* coefs,
                      const float* x) {
    for (int i = 0; i < row.width; i += kLanes) {
      const int rest = row.width - i;
      const Vector change = load(x + i, rest) - load(streams[row.active] + i, rest);
      for (int j = 0; j < row.streams; ++j) {
        const Vector s = load(streams[j] + i, rest);
        store(streams[j] + i, T::fma(T::set1(1.0f + coefs[j]), change, s), rest);
      }
    }
  }

  static void match(const AltUpRow& row, float* const* streams) {
    const auto mean_square = [&](const float* s) {
      return Rows<T>::squares(s, row.width, 0.0f) / static_cast<float>(row.width);
    };
    const float target = T::sqrt(mean_square(streams[0]));
    for (int j = 1; j < row.streams; ++j) {
      const float square = mean_square(streams[j]);
      const Vector factor = T::set1(target / T::sqrt(square > 1e-5f ? square : 1e-5f));
      for (int i = 0; i < row.width; i += kLanes)
        store(streams[j] + i, load(streams[j] + i, row.width - i) * factor, row.width - i);
    }
  }
};

}  // namespace
}  // namespace millrace::cpu

#endif
