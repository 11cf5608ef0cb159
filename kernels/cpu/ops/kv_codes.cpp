#include "cpu/ops/kv_codes.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/ops/kernels.hpp"
#include "exec/quantize.hpp"

namespace millrace::cpu {
namespace {

// The codes of a head in groups of int4, each plus 8; elements after its end are zero, 8.
void quantize_groups(const float* head, int head_dim, int token, std::byte* scales,
                     uint8_t* codes) {
  auto* const bits = reinterpret_cast<bf16*>(scales);
  for (int g = 0; g * kKvGroup < head_dim; ++g, codes += kKvGroup) {
    const int size = std::min(kKvGroup, head_dim - g * kKvGroup);
    std::fill_n(codes, kKvGroup, uint8_t{8});
    const float scale = quantize_int4(head + g * kKvGroup, size, codes);
    bits[g * kSlabTokens + token] = from_float(scale);  // exact: it is a bf16
  }
}

}  // namespace

void store_int8_key(const float* head, int head_dim, int token, std::byte* block) {
  int8_t codes[kMaxHeadDim];
  const float scale = quantize_int8(head, head_dim, codes);
  std::memcpy(block + KvCodes<8>{head_dim}.scales() + sizeof scale * token, &scale, sizeof scale);
  auto* const words = reinterpret_cast<uint8_t*>(block) + 4 * token;
  for (int i = 0; i < head_dim; ++i) {
    words[i / 4 * 4 * kSlabTokens + i % 4] = static_cast<uint8_t>(codes[i] + 128);
  }
}

void store_int8_value(const float* head, int head_dim, int token, std::byte* block) {
  int8_t codes[kMaxHeadDim];
  const float scale = quantize_int8(head, head_dim, codes);
  std::memcpy(block + KvCodes<8>{head_dim}.scales() + sizeof scale * token, &scale, sizeof scale);
  auto* const words = reinterpret_cast<int8_t*>(block) + token / 4 * head_dim * 4 + token % 4;
  for (int i = 0; i < head_dim; ++i) words[4 * i] = codes[i];
}

void store_int4_key(const float* head, int head_dim, int token, std::byte* block) {
  uint8_t codes[kMaxHeadDim];
  const KvCodes<4> layout{head_dim};
  quantize_groups(head, head_dim, token, block + layout.scales(), codes);
  auto* const words = reinterpret_cast<uint8_t*>(block) + 4 * token;
  for (int w = 0; w < layout.key_words(); ++w) {
    for (int i = 0; i < 4; ++i) {
      words[w * 4 * kSlabTokens + i] =
          static_cast<uint8_t>(codes[8 * w + i] | codes[8 * w + 4 + i] << 4);
    }
  }
}

void store_int4_value(const float* head, int head_dim, int token, std::byte* block) {
  uint8_t codes[kMaxHeadDim];
  const KvCodes<4> layout{head_dim};
  quantize_groups(head, head_dim, token, block + layout.scales(), codes);
  auto* const words =
      reinterpret_cast<uint8_t*>(block) + token / 4 * layout.value_words() * 4 + token % 4;
  for (int w = 0; w < layout.value_words(); ++w) {
    const uint8_t* low = codes + w / kHalfGroup * kKvGroup + w % kHalfGroup;
    words[4 * w] = static_cast<uint8_t>(low[0] | low[kHalfGroup] << 4);
  }
}

}  // namespace millrace::cpu
