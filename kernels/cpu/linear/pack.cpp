// The weights of a linear op: from the checkpoint's tensors into panels.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/linear/block_panels.hpp"
#include "cpu/linear/kernels.hpp"
#include "cpu/linear/linear.hpp"
#include "exec/program.hpp"
#include "exec/quantize.hpp"
#include "exec/tensor.hpp"

namespace millrace::cpu {
namespace {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Half of a core's second-level cache; the operand and the sums pass through the rest.
int64_t cached_bytes() {
  const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return (cache > 0 ? cache : 1 << 20) / 2;
}

// What is below the least normal number is zero to vdpbf16ps, and so to all (cpu/machine/float_mode.hpp).
constexpr bf16 flushed(bf16 x) { return (x & 0x7f80) == 0 ? x & 0x8000 : x; }

// One row of a tensor, rounded to bf16; values: room for it.
void copy_row(const mr_tensor& t, int64_t row, int64_t width, float* values, bf16* to) {
  if (t.dtype == MR_BF16) {
    const auto* from = reinterpret_cast<const bf16*>(row_data(t, row));
    for (int64_t i = 0; i < width; ++i) to[i] = flushed(from[i]);
    return;
  }
  read_row(t, row, values);
  for (int64_t i = 0; i < width; ++i) to[i] = flushed(from_float(values[i]));
}

// Where row n of W lies: a part and a row of its tensors.
struct Source {
  const LinearSpec::Part* part;
  int64_t row;
};

Source source_of(const LinearSpec::Part& p, int64_t i) { return {&p, part_row(p, i)}; }

// Row n of the parts one below the other; {null} after the last.
Source source_of(const std::vector<LinearSpec::Part>& parts, int64_t n) {
  for (const LinearSpec::Part& p : parts) {
    if (n < p.rows) return source_of(p, n);
    n -= p.rows;
  }
  return {};
}

// The row of W in lane `lane` of vector `v` of panel p; {null} in the padding.
Source source_of(const LinearSpec& spec, int lanes, int64_t p, int v, int lane) {
  if (!spec.gated) return source_of(spec.parts, (p * kPanelVectors + v) * lanes + lane);
  const LinearSpec::Part& part = spec.parts[v];
  const int64_t i = p * lanes + lane;
  return i < part.rows ? source_of(part, i) : Source{};
}

int64_t operand_unit_bytes(const LinearSpec& spec, const LinearKernels& kernels) {
  switch (spec.weights) {
    case MR_WEIGHTS_INT4:
      return int4_operand_bytes(spec.group);
    case MR_WEIGHTS_BLOCKS:
      return block_operand_bytes(spec.group);
    case MR_WEIGHTS_NF4:
    case kFp8Blocks:
    case kNf4Blocks:
      return spec.group / 2 * static_cast<int64_t>(kernels.operand_bytes);
    default:
      return static_cast<int64_t>(kernels.operand_bytes);
  }
}

}  // namespace

// Where a thread packs a row of W.
struct Linear::Room {
  std::vector<bf16> pairs;
  std::vector<float> row;
  std::vector<uint8_t> codes;
};

Linear::Linear(const LinearSpec& spec, const LinearKernels& kernels)
    : kernels_(kernels),
      weight_type_(spec.weights),
      group_(spec.group),
      in_width_(spec.in_width),
      out_width_(spec.out_width),
      unit_(kernels.unit > 0 ? kernels.unit : spec.group),
      units_(ceil_div(spec.in_width, unit_)),
      operand_unit_bytes_(operand_unit_bytes(spec, kernels)),
      panels_(ceil_div(spec.out_width, kernels.lanes * (spec.gated ? 1 : kPanelVectors))),
      cached_bytes_(cached_bytes()),
      activation_(spec.activation),
      act_a_(spec.act_a),
      act_b_(spec.act_b),
      gated_(spec.gated),
      accumulate_(spec.accumulate),
      out_f32_(spec.out_f32) {
  const bool of_bytes = weight_type_ == MR_WEIGHTS_INT8 || weight_type_ == MR_WEIGHTS_FP8;
  if (weight_type_ == MR_WEIGHTS_BLOCKS) blocks_ = block_panels(spec);
  unit_bytes_ = panel_unit_bytes();
  const size_t floats = whole_lines(panels_ * columns() * sizeof(float));
  bytes_ = blocks_ ? blocks_->bytes() : whole_lines(panels_ * units_ * unit_bytes_);
  if (of_bytes) scales_at_ = std::exchange(bytes_, bytes_ + floats);
  const bool biased = std::any_of(spec.parts.begin(), spec.parts.end(),
                                  [](const LinearSpec::Part& p) { return p.bias != nullptr; });
  if (biased) bias_at_ = std::exchange(bytes_, bytes_ + floats);
  if (blocks_ && spec.parts[0].weight->order != nullptr) {
    order_at_ = std::exchange(bytes_, bytes_ + whole_lines(in_width_ * sizeof(int32_t)));
  }
}

Linear::~Linear() = default;

int64_t Linear::panel_unit_bytes() const {
  switch (weight_type_) {
    case MR_WEIGHTS_INT8:
    case MR_WEIGHTS_FP8:
      return unit_elements();
    case MR_WEIGHTS_INT4:
    case MR_WEIGHTS_NF4:
      return unit_elements() / 2 + columns() * int64_t{sizeof(bf16)};
    case kFp8Blocks:
      return unit_elements() + columns() * int64_t{sizeof(float)};
    case kNf4Blocks:
      return unit_elements() / 2 + columns() * int64_t{sizeof(float)};
    default:
      return unit_elements() * int64_t{sizeof(bf16)};
  }
}

// The types of the vectors: that of their columns, or one that takes all.
std::unique_ptr<BlockPanels> Linear::block_panels(const LinearSpec& spec) const {
  std::vector<const BlockType*> types;
  for (int64_t vector = 0; vector < panels_ * kPanelVectors; ++vector) {
    const BlockType* type = nullptr;
    for (int lane = 0; lane < kernels_.lanes; ++lane) {
      const Source from =
          source_of(spec, kernels_.lanes, vector / kPanelVectors, vector % kPanelVectors, lane);
      if (from.part == nullptr) continue;
      const BlockType* own = block_type(from.part->weight->dtype);
      type = type == nullptr || type == own ? own : &kMixedBlocks;
    }
    types.push_back(type != nullptr ? type : block_type(spec.parts[0].weight->dtype));
  }
  return std::make_unique<BlockPanels>(std::move(types), kernels_.lanes, in_width_);
}

void Linear::pack_panel(const LinearSpec& spec, int64_t p, Room& room) {
  for (int c = 0; c < columns(); ++c) {
    const Source from = source_of(spec, kernels_.lanes, p, c / kernels_.lanes, c % kernels_.lanes);
    if (from.part == nullptr) continue;  // the pages are zero
    const mr_tensor& weight = *from.part->weight;
    if (weight_type_ >= MR_WEIGHTS_BLOCKS) {
      const BlockType& type = *block_type(weight.dtype);
      const auto* row = reinterpret_cast<const uint8_t*>(row_data(weight, from.row));
      place_blocks(type, row, p, c);
    } else if (weight_type_ == MR_WEIGHTS_16BIT) {
      copy_row(weight, from.row, in_width_, room.row.data(), room.pairs.data());
      place_pairs(room.pairs.data(), p, c);
    } else {
      read_row(weight, from.row, room.row.data());
      place_codes(room, p, c);
    }
    if (from.part->bias) own(panel_bias(p))[c] = element(*from.part->bias, from.row);
  }
}

void Linear::place_pairs(const bf16* row, int64_t p, int column) {
  place_words(reinterpret_cast<const std::byte*>(row), p, column);
}

void Linear::place_blocks(const BlockType& type, const uint8_t* row, int64_t p, int column) {
  const int vector = column / kernels_.lanes, lane = column % kernels_.lanes;
  if (blocks_) {
    return blocks_->pack(type, row, p * kPanelVectors + vector, lane, kernels_.weight_offset,
                         own(memory_));
  }
  Block block;
  for (int64_t k = 0; k < in_width_; k += group_) {
    const int64_t within = k % type.elements;
    if (within == 0) type.read(row + k / type.elements * type.bytes, block);
    const uint8_t* codes = block.codes + within;
    std::byte* to = own(panel(p)) + k / group_ * unit_bytes_;
    if (weight_type_ == kFp8Blocks) {
      place_fp8_codes(codes, group_, to, columns() * 2, column);
    } else {
      place_nf4_codes(codes, group_, to, column);
    }
    std::memcpy(to + unit_bytes_ - (columns() - column) * sizeof(float), &block.scale,
                sizeof(float));
  }
}

void Linear::place_codes(Room& room, int64_t p, int column) {
  switch (weight_type_) {
    case MR_WEIGHTS_INT8:
      return place_int8(room, p, column);
    case MR_WEIGHTS_INT4:
      return place_int4(room, p, column);
    case MR_WEIGHTS_FP8:
      return place_fp8(room, p, column);
    default:
      return place_nf4(room, p, column);
  }
}

void Linear::place_int8(Room& room, int64_t p, int column) {
  auto* codes = reinterpret_cast<int8_t*>(room.codes.data());
  own(panel_scales(p))[column] = quantize_int8(room.row.data(), in_width_, codes);
  for (int64_t k = 0; k < in_width_; ++k) room.codes[k] += kernels_.weight_offset;
  place_words(reinterpret_cast<const std::byte*>(codes), p, column);
}

// Four bytes of each column lie together: a pair of bf16, or four codes.
void Linear::place_words(const std::byte* row, int64_t p, int column) {
  constexpr int kWord = 4;
  std::byte* to = own(panel(p)) + column * kWord;
  const int64_t words = units_ * unit_bytes_ / (columns() * kWord);
  for (int64_t k = 0; k < words; ++k) {
    std::memcpy(to + k * columns() * kWord, row + k * kWord, kWord);
  }
}

void Linear::place_int4(Room& room, int64_t p, int column) {
  for (int64_t unit = 0; unit < units_; ++unit) {
    const int64_t k = unit * group_;
    const auto n = static_cast<int>(std::min<int64_t>(group_, in_width_ - k));
    std::memset(room.codes.data(), 0, group_);
    const bf16 scale = from_float(quantize_int4(room.row.data() + k, n, room.codes.data()));
    std::byte* to = own(panel(p)) + unit * unit_bytes_;
    for (int e = 0; e < group_ / 8; ++e) {
      for (int i = 0; i < 4; ++i) {
        const uint8_t* eight = room.codes.data() + e * 8;
        to[(e * columns() + column) * 4 + i] = std::byte(eight[i] | eight[4 + i] << 4);
      }
    }
    std::memcpy(to + group_ / 2 * columns() + column * sizeof scale, &scale, sizeof scale);
  }
}

void Linear::place_fp8(Room& room, int64_t p, int column) {
  own(panel_scales(p))[column] = quantize_fp8(room.row.data(), in_width_, room.codes.data());
  place_fp8_codes(room.codes.data(), in_width_, own(panel(p)), unit_bytes_, column);
}

// Codes of a column, of which each pair lies that many bytes after the one before.
void Linear::place_fp8_codes(const uint8_t* codes, int64_t n, std::byte* to, int64_t pair_bytes,
                             int column) const {
  const int vector = column / kernels_.lanes, lane = column % kernels_.lanes;
  const int together = kernels_.fp8_columns;
  to += ((lane / together * kPanelVectors + vector) * together + lane % together) * 2;
  for (int64_t k = 0; k < n; ++k) to[k / 2 * pair_bytes + k % 2] = std::byte{codes[k]};
}

void Linear::place_nf4(Room& room, int64_t p, int column) {
  for (int64_t unit = 0; unit < units_; ++unit) {
    const int64_t k = unit * group_;
    const auto n = static_cast<int>(std::min<int64_t>(group_, in_width_ - k));
    const bf16 scale = from_float(quantize_nf4(room.row.data() + k, n, room.codes.data()));
    std::byte* to = own(panel(p)) + unit * unit_bytes_;
    place_nf4_codes(room.codes.data(), n, to, column);
    std::memcpy(to + group_ / 2 * columns() + column * sizeof scale, &scale, sizeof scale);
  }
}

void Linear::place_nf4_codes(const uint8_t* codes, int n, std::byte* to, int column) const {
  constexpr int kWord = 4;  // the bytes of a lane, of four of K
  const int vector = column / kernels_.lanes, lane = column % kernels_.lanes;
  for (int i = 0; i < n; ++i) {
    to[(i / 4 * kernels_.lanes + lane) * kWord + i % 2 * 2 + i / 2 % 2] |=
        std::byte(codes[i] << 4 * vector);
  }
}

std::unique_ptr<Linear> Linear::pack(const LinearSpec& spec, Isa isa, ThreadPool& pool) {
  return pack(spec, linear_kernels(isa, spec.weights), pool);
}

std::unique_ptr<Linear> Linear::pack(const LinearSpec& spec, const LinearKernels& kernels,
                                     ThreadPool& pool) {
  std::unique_ptr<Linear> op(new Linear(spec, kernels));
  op->fill(spec, std::make_shared<Pages>(op->bytes_), 0, pool);
  return op;
}

std::vector<std::unique_ptr<Linear>> Linear::pack(std::span<const LinearSpec> specs, Isa isa,
                                                  ThreadPool& pool) {
  std::vector<std::unique_ptr<Linear>> ops;
  size_t bytes = 0;
  for (const LinearSpec& spec : specs) {
    ops.emplace_back(new Linear(spec, linear_kernels(isa, spec.weights)));
    bytes += ops.back()->bytes_;
  }
  const auto memory = std::make_shared<Pages>(bytes);
  size_t at = 0;
  for (size_t i = 0; i < ops.size(); at += ops[i++]->bytes_) {
    ops[i]->fill(specs[i], memory, at, pool);
  }
  return ops;
}

void Linear::fill(const LinearSpec& spec, std::shared_ptr<Pages> memory, size_t at,
                  ThreadPool& pool) {
  own_ = std::move(memory);
  memory_ = static_cast<const std::byte*>(own_->data()) + at;
  std::ranges::copy_n(spec.parts[0].weight->order, static_cast<int64_t>(order().size()),
                      own(order().data()));
  const size_t width = units_ * unit_;  // what fills up the last unit stays zero
  std::vector<Room> rooms(pool.size());
  for (Room& room : rooms) {
    room.pairs.resize(width);
    room.row.resize(width);
    room.codes.resize(width);
  }
  pool.parallel_for(static_cast<int>(panels_),
                    [&](int p, int thread) { pack_panel(spec, p, rooms[thread]); });
}

std::unique_ptr<Linear> Linear::borrow(const LinearSpec& spec, Isa isa,
                                       std::span<const std::byte> packed) {
  std::unique_ptr<Linear> op(new Linear(spec, linear_kernels(isa, spec.weights)));
  if (packed.size() < op->bytes_) return nullptr;
  op->memory_ = packed.data();
  return op;
}

}  // namespace millrace::cpu
