#include <algorithm>
#include <cmath>

#include "exec/angle.hpp"
#include "exec/quantize.hpp"
#include "ref/ref.hpp"

namespace millrace::ref {
namespace {

void head_norm(const mr_tensor& weight, float eps, float* x, int n) {
  double square = 0;
  for (int i = 0; i < n; ++i) square += double{x[i]} * x[i];
  const double scale = 1 / std::sqrt(square / n + eps);
  for (int i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] * scale) * element(weight, i);
}

// Rotates pairs of a head by position * inv_freq (RoFormer, arXiv:2104.09864,
// equation 34).
void rotate(const Op& op, int position, float* x) {
  const int half = op.attention.rotary_dim / 2;
  x += op.attention.rotary_offset;
  for (int i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * op.attention.inv_freq[i];
    const SineCosine at = sine_cosine(angle);
    const float cosine = at.cosine * op.attention.rotary_scale,
                sine = at.sine * op.attention.rotary_scale;
    float& a = op.attention.rotary_interleaved ? x[2 * i] : x[i];
    float& b = op.attention.rotary_interleaved ? x[2 * i + 1] : x[i + half];
    const float rotated = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = rotated;
  }
}

// Norms a head, if the op has a norm there and it is its turn.
void head_norm(const Op& op, const mr_tensor* weight, bool last, float* x) {
  if (weight == nullptr || last != (op.attention.norm_last != 0)) return;
  head_norm(*weight, op.attention.eps, x, op.attention.head_dim);
}

// What is left of a head's n elements by the codes that the cache keeps.
void round_trip(int32_t type, float* x, int n) {
  uint8_t codes[MR_KV_GROUP];
  if (type == MR_KV_KIVI) {
    for (int i = 0; i < n; ++i) x[i] = cpu::rounded(x[i]);
  } else if (type == MR_KV_INT8) {
    std::vector<int8_t> all(n);
    const float scale = quantize_int8(x, n, all.data());
    for (int i = 0; i < n; ++i) x[i] = scale * static_cast<float>(all[i]);
  } else if (type == MR_KV_INT4) {
    for (int group = 0; group < n; group += MR_KV_GROUP, x += MR_KV_GROUP) {
      const int size = std::min(MR_KV_GROUP, n - group);
      const float scale = quantize_int4(x, size, codes);
      for (int i = 0; i < size; ++i) x[i] = scale * static_cast<float>(codes[i] - 8);
    }
  }
}

// Codes the MR_KIVI_TOKENS tokens that are whole with the sequence's rows.
void code_groups(const Context& c, const Op& op, const Sequence& s) {
  const int d = op.attention.head_dim;
  uint8_t codes[std::max(MR_KIVI_TOKENS, MR_KV_GROUP)];
  std::vector<float> x(MR_KIVI_TOKENS * d);
  for (int first = s.position / MR_KIVI_TOKENS * MR_KIVI_TOKENS;
       first + MR_KIVI_TOKENS <= s.position + s.rows; first += MR_KIVI_TOKENS) {
    for (int h = 0; h < op.attention.kv_heads; ++h) {
      for (int value = 0; value < 2; ++value) {
        const auto row = [&](int i) { return kv_row(c.kv, s, 0, op.place, value, h, first + i); };
        for (int i = 0; i < MR_KIVI_TOKENS; ++i) std::copy_n(row(i), d, &x[i * d]);
        if (value == 0) {
          for (int k = 0; k < d; ++k) {
            const Kivi q = quantize_kivi(&x[k], MR_KIVI_TOKENS, d, codes);
            for (int i = 0; i < MR_KIVI_TOKENS; ++i) {
              coded_row(row(i), d)[k] = q.zero + q.scale * static_cast<float>(codes[i]);
            }
          }
          continue;
        }
        for (int i = 0; i < MR_KIVI_TOKENS; ++i) {
          for (int g = 0; g < d; g += MR_KV_GROUP) {
            const int n = std::min(MR_KV_GROUP, d - g);
            const Kivi q = quantize_kivi(&x[i * d + g], n, 1, codes);
            for (int k = 0; k < n; ++k) {
              coded_row(row(i), d)[g + k] = q.zero + q.scale * static_cast<float>(codes[k]);
            }
          }
        }
      }
    }
  }
}

}  // namespace

void RefKernels::rope_store(const Op& op, const Run& run) {
  const Context& c = context_;
  const Slot in = run.slot(op.in);
  const Slot sink_q = run.slot_if(op.attention.sinks > 0, op.attention.sink_q);
  const mr_tensor* q_norm = c.program.tensor(op.attention.q_norm);
  const mr_tensor* k_norm = c.program.tensor(op.attention.k_norm);
  const int d = op.attention.head_dim, values = op.attention.value_dim;
  const int kept_parts = op.attention.latent ? 1 : 2;
  for (const Sequence& s : run.batch.sequences) {
    for (int i = 0; i < s.rows; ++i) {
      float* q = in.f32() + int64_t{s.first_row + i} * in.width;
      float* k = q + int64_t{op.attention.heads} * d;
      const float* v = k + int64_t{op.attention.kv_heads} * d;
      const int position = s.row_position(i);
      for (int h = 0; h < op.attention.heads; ++h) {
        head_norm(op, q_norm, false, q + h * d);
        if (op.attention.sinks > 0) {
          float* sinks = sink_q.f32() + int64_t{s.first_row + i} * sink_q.width + h * d;
          std::copy_n(q + h * d, d, sinks);
          rotate(op, op.sink_position(position), sinks);
          head_norm(op, q_norm, true, sinks);
        }
        rotate(op, position, q + h * d);
        head_norm(op, q_norm, true, q + h * d);
        for (int k = 0; k < d; ++k) q[h * d + k] *= op.q_scale(position);
      }
      if (op.attention.stored) continue;
      for (int h = 0; h < op.attention.kv_heads; ++h) {
        head_norm(op, k_norm, false, k + h * d);
        rotate(op, position, k + h * d);
        head_norm(op, k_norm, true, k + h * d);
        if (op.attention.heavy > 0) continue;  // attention stores them
        for (int value = 0; value < kept_parts; ++value) {
          float* kept = kv_row(c.kv, s, i, op.place, value, h, position);
          const int width = value == 0 ? d : values;
          std::copy_n((value == 0 ? k : v) + h * width, width, kept);
          round_trip(c.kv.type, kept, width);
        }
      }
    }
    if (c.kv.type == MR_KV_KIVI) code_groups(c, op, s);
  }
}

}  // namespace millrace::ref
