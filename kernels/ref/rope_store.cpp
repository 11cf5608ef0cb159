#include <algorithm>
#include <cmath>

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
  const int half = op.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * op.inv_freq[i];
    const float cosine = std::cos(angle) * op.rotary_scale;
    const float sine = std::sin(angle) * op.rotary_scale;
    float& a = op.rotary_interleaved ? x[2 * i] : x[i];
    float& b = op.rotary_interleaved ? x[2 * i + 1] : x[i + half];
    const float rotated = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = rotated;
  }
}

}  // namespace

void rope_store(const Context& c, const Op& op, const Batch& batch, Slot in) {
  const mr_tensor* q_norm = c.program.tensor(op.q_norm);
  const mr_tensor* k_norm = c.program.tensor(op.k_norm);
  const int d = op.head_dim;
  for (const Sequence& s : batch.sequences) {
    for (int i = 0; i < s.rows; ++i) {
      float* q = in.f32() + int64_t{s.first_row + i} * in.width;
      float* k = q + int64_t{op.heads} * d;
      const float* v = k + int64_t{op.kv_heads} * d;
      const int position = s.row_position(i);
      for (int h = 0; h < op.heads; ++h) {
        if (q_norm != nullptr) head_norm(*q_norm, op.eps, q + h * d, d);
        rotate(op, position, q + h * d);
      }
      for (int h = 0; h < op.kv_heads; ++h) {
        if (k_norm != nullptr) head_norm(*k_norm, op.eps, k + h * d, d);
        rotate(op, position, k + h * d);
        std::copy_n(k + h * d, d, kv_row(c.kv, s, i, op.layer, 0, h, position));
        std::copy_n(v + h * d, d, kv_row(c.kv, s, i, op.layer, 1, h, position));
      }
    }
  }
}

}  // namespace millrace::ref
