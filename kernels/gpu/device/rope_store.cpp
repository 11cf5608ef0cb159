// Per-head norm and rotary embedding of q and k in place, in either order; k and v to the KV
// cache, as operands or codes, in one pass over the QKV slot. A sub-group per head of a row.
//
// Rotation: RoFormer, arXiv:2104.09864, equation 34.
#include "quantize.hpp"

namespace mr_rope {

// Puts a head's key or value into the cache (shapes.hpp).
MR_INLINE void keep(const sycl::sub_group& sub_group, int bits, const float* x, int d,
                    uint8_t* token) {
  const int lane = sub_group.get_local_linear_id();
  if (bits == 16) {
    auto* operands = reinterpret_cast<operand*>(token);
    for (int i = lane; i < d; i += MR_LANES) operands[i] = to_operand(x[i]);
  } else if (bits == 8) {
    const float scale = quantize_int8(sub_group, x, d, reinterpret_cast<int8_t*>(token));
    if (lane == 0) *reinterpret_cast<float*>(token + d) = scale;
  } else {
    quantize_int4(sub_group, x, d, token,
                  reinterpret_cast<uint16_t*>(token + mr::kv_groups(d) * mr::kKvGroup / 2));
  }
}

}  // namespace mr_rope

MR_KERNEL mr_rope_store(float* qkv, const int32_t* positions, const int32_t* row_sequence,
                        const mr::SequenceEntry* sequences, const uint64_t* slabs,
                        const int32_t* beams, const float* q_norm, const float* k_norm,
                        const float* inv_freq, const float* q_scales, float* sink_q,
                        mr::RopeShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const auto sub_group = item.get_sub_group();
  const int lane = sub_group.get_local_linear_id();
  const int d = s.kv.head_dim;
  const int per_row = s.heads + (s.stored ? 0 : s.latent ? s.kv.kv_heads : 2 * s.kv.kv_heads);
  const int64_t task = item.get_group(0) * int64_t{mr::kHeadsPerGroup} + sub_group_index(item);
  if (task >= int64_t{s.rows} * per_row) return;
  const int64_t row = task / per_row;
  const int head = task % per_row;
  const bool is_q = head < s.heads, is_v = head >= s.heads + s.kv.kv_heads;
  const int width = is_v ? s.value_dim : d;
  const int values = (s.heads + s.kv.kv_heads) * d;  // where they begin in a row
  float* x = qkv + row * s.in_width +
             (is_v ? values + (head - s.heads - s.kv.kv_heads) * width : head * d);
  const int position = positions[row];

  uint8_t* cache = nullptr;
  if (!is_q) {
    const mr::SequenceEntry sequence = sequences[row_sequence[row]];
    const int kv_head = (head - s.heads) % s.kv.kv_heads;
    const int bytes = mr::kv_token_bytes(width, s.kv.bits);
    const uint64_t token =
        kv_token(bytes, {slabs, beams}, sequence, row - sequence.first_row, position);
    cache = kv_memory(token) + (is_v ? s.kv.values : s.kv.keys) +
            int64_t{kv_head} * mr::kSlabTokens * bytes;
  }
  if (is_v) return mr_rope::keep(sub_group, s.kv.bits, x, width, cache);

  const bool has_norm = is_q ? s.q_norm : s.k_norm;
  const bool normed = has_norm && !s.norm_last;
  const float* weight = is_q ? q_norm : k_norm;
  const auto norm_scale = [&](const float* of) {
    float square = 0;
    for (int i = lane; i < d; i += MR_LANES) square = sycl::fma(of[i], of[i], square);
    square = sycl::reduce_over_group(sub_group, square, sycl::plus<float>());
    return 1 / sycl::sqrt(square / static_cast<float>(d) + s.eps);
  };
  const float scale = normed ? norm_scale(x) : 1.0f;
  const auto value = [&](int i) { return normed ? x[i] * scale * weight[i] : x[i]; };
  const int half = s.rotary_dim / 2;
  const auto rotate = [&](int at, float* to) {
    for (int i = lane; i < half; i += MR_LANES) {
      const int first = s.rotary_offset + (s.interleaved ? 2 * i : i);
      const int second = first + (s.interleaved ? 1 : half);
      const float angle = static_cast<float>(at) * inv_freq[i];
      const float cosine = sycl::cos(angle) * s.rotary_scale;
      const float sine = sycl::sin(angle) * s.rotary_scale;
      const float a = value(first), b = value(second);
      to[first] = a * cosine - b * sine;
      to[second] = b * cosine + a * sine;
    }
    // The elements before and after the rotated ones.
    for (int i = lane; i < d - s.rotary_dim; i += MR_LANES) {
      const int at = i < s.rotary_offset ? i : i + s.rotary_dim;
      to[at] = value(at);
    }
  };
  // What follows the rotation.
  const auto end = [&](float* of, float factor) {
    const bool last = has_norm && s.norm_last;
    if (!last && factor == 1.0f) return;
    sycl::group_barrier(sub_group);  // a lane has rotated other lanes' elements
    const float by = last ? norm_scale(of) : 1.0f;
    for (int i = lane; i < d; i += MR_LANES) {
      of[i] = (last ? of[i] * by * weight[i] : of[i]) * factor;
    }
  };
  if (is_q && s.sinks > 0) {  // the same query at another position, before it is overwritten
    const int most = s.sinks + s.window - 1;
    float* sinks = sink_q + (row * s.heads + head) * d;
    rotate(position < most ? position : most, sinks);
    end(sinks, 1.0f);
  }
  rotate(position, x);
  float factor = 1;
  if (is_q && s.q_scales > 0) {
    const int number = (position + s.q_scale_offset) / s.q_scale_tokens;
    factor = q_scales[number < s.q_scales ? number : s.q_scales - 1];
  }
  end(x, factor);
  if (is_q) return;
  sycl::group_barrier(sub_group);  // a lane's elements are other lanes' codes
  mr_rope::keep(sub_group, s.kv.bits, x, d, cache);
}
