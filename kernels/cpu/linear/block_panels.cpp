#include "cpu/linear/block_panels.hpp"

#include <cstring>
#include <utility>

#include "cpu/machine/pages.hpp"
#include "exec/bf16.hpp"

namespace millrace::cpu {
namespace {

template <class T>
void store(T value, uint8_t* to) {
  std::memcpy(to, &value, sizeof value);
}

// As a float, or as the 16 bits that it was in the file.
void store_scale(BlockScales scales, float x, uint8_t* to) {
  if (scales == BlockScales::floats) return store(x, to);
  store(scales == BlockScales::bfloat ? from_float(x) : f16_from_float(x), to);
}

}  // namespace

BlockPanels::BlockPanels(std::vector<const BlockType*> types, int lanes, int64_t width)
    : types_(std::move(types)), lanes_(lanes), width_(width) {
  for (const BlockType* type : types_) {
    at_.push_back(bytes_);
    const int64_t vector =
        width / kSpan * span_bytes(*type, lanes, kSpan) + span_bytes(*type, lanes, width % kSpan);
    bytes_ += whole_lines(vector);
    minimums_ = minimums_ || type->minimums;
  }
}

void BlockPanels::pack(const BlockType& from, const uint8_t* row, int64_t vector, int lane,
                       int weight_offset, std::byte* memory) const {
  Block block;
  for (int64_t k = 0; k < width_; k += from.elements, row += from.bytes) {
    from.read(row, block);
    const auto elements = static_cast<int>(std::min<int64_t>(kSpan, width_ - k / kSpan * kSpan));
    place(from, block, static_cast<int>(k % kSpan), elements, *types_[vector], lane, weight_offset,
          reinterpret_cast<uint8_t*>(memory) + at(vector, k / kSpan * kSpan));
  }
}

// The block begins with element `first` of a span of that many elements.
void BlockPanels::place(const BlockType& from, const Block& block, int first, int elements,
                        const BlockType& to, int lane, int weight_offset, uint8_t* span) const {
  const int line = 4 * lanes_;  // bytes of a quad of each column
  for (int i = 0; i < from.elements; ++i) {
    const int e = first + i, quad = e % kSpanUnit / 4;
    uint8_t* unit = span + e / kSpanUnit * to.bits * line + 4 * lane + e % 4;
    const uint8_t code = block.codes[i];
    switch (to.bits) {
      case 8:
        unit[quad * line] = static_cast<uint8_t>(from.value(code) + weight_offset);
        break;
      case 4:
      case 5:
      case 6:
        unit[quad % 4 * line] |= (code & 15) << (quad / 4 * 4);
        if (to.bits == 5) unit[4 * line] |= code >> 4 << quad;
        if (to.bits == 6) unit[(4 + quad / 4) * line] |= code >> 4 << (quad % 4 * 2);
        break;
      default:
        unit[quad / 4 * line] |= (code & 3) << (quad % 4 * 2);
        if (to.bits == 3) unit[2 * line] |= code >> 2 << quad;
    }
  }
  const int size = scale_size(to.scales);
  const int64_t bytes = scale_bytes(to, lanes_, elements);
  uint8_t* const scales = span + code_bytes(to, lanes_, elements);
  uint8_t* const minimums = scales + bytes;
  const bool bytes_alone = in_bytes(to.scales);
  for (int e = first; e < first + from.elements; e += to.group) {
    const int g = (e - first) / from.group;
    const int64_t at = (e / to.group * int64_t{lanes_} + lane) * size;
    if (bytes_alone) {
      scales[at] = static_cast<uint8_t>(block.scales[g]);
      if (to.minimums) minimums[at] = block.minimums[g];
      continue;
    }
    store_scale(to.scales, from.scale(block, g), scales + at);
    if (!to.minimums) continue;
    if (to.scales == BlockScales::zeros) {
      minimums[at / size] = block.minimums[g];
      continue;
    }
    store_scale(to.scales, from.minimums ? block.minimum * block.minimums[g] : 0, minimums + at);
  }
  if (!bytes_alone) return;
  uint8_t* const numbers = scales + (to.minimums ? 2 : 1) * bytes;
  store(block.scale, numbers + lane * sizeof(float));
  if (to.minimums) store(block.minimum, numbers + (lanes_ + lane) * sizeof(float));
}

}  // namespace millrace::cpu
