// The weights of a linear op: from the checkpoint's tensors into panels.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "linear.hpp"
#include "linear_kernels.hpp"

namespace millrace::cpu {
namespace {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Half of a core's second-level cache; the operand and the sums pass through the rest.
int64_t cached_bytes() {
  const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return (cache > 0 ? cache : 1 << 20) / 2;
}

size_t element_bytes(int dtype) { return dtype == MR_F32 ? 4 : 2; }

float element(const mr_tensor& t, int64_t i) {
  const auto* bytes = static_cast<const std::byte*>(t.data) + i * element_bytes(t.dtype);
  if (t.dtype == MR_F32) {
    float x;
    std::memcpy(&x, bytes, sizeof x);
    return x;
  }
  uint16_t x;
  std::memcpy(&x, bytes, sizeof x);
  return t.dtype == MR_F16 ? f16_to_float(x) : to_float(x);
}

// One row of a tensor, rounded to bf16.
void copy_row(const mr_tensor& t, int64_t row, int64_t width, bf16* to) {
  if (t.dtype == MR_BF16) {
    std::memcpy(to, static_cast<const bf16*>(t.data) + row * width, width * sizeof(bf16));
    return;
  }
  for (int64_t i = 0; i < width; ++i) to[i] = from_float(element(t, row * width + i));
}

// Where row n of W lies: a part and a row of its tensors.
struct Source {
  const LinearSpec::Part* part;
  int64_t row;
};

Source source_of(const LinearSpec::Part& p, int64_t i) {
  return {&p, p.offset + i / p.block * p.stride + i % p.block};
}

// Row n of the parts one below the other; {null} behind the last.
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

}  // namespace

Linear::Linear(const LinearSpec& spec, const LinearKernels& kernels)
    : kernels_(kernels),
      in_width_(spec.in_width),
      out_width_(spec.out_width),
      pairs_(ceil_div(spec.in_width, 2)),
      panels_(ceil_div(spec.out_width, kernels.lanes * (spec.gated ? 1 : kPanelVectors))),
      cached_bytes_(cached_bytes()),
      activation_(spec.activation),
      gated_(spec.gated),
      accumulate_(spec.accumulate),
      out_f32_(spec.out_f32) {
  const int64_t columns = panels_ * kPanelVectors * kernels.lanes;
  weights_ = Pages(columns * pairs_ * 2 * sizeof(bf16));
  const bool biased = std::any_of(spec.parts.begin(), spec.parts.end(),
                                  [](const LinearSpec::Part& p) { return p.bias != nullptr; });
  if (biased) bias_ = Pages(columns * sizeof(float));
}

void Linear::pack_panel(const LinearSpec& spec, int64_t p, bf16* room) {
  const int lanes = kernels_.lanes, columns = kPanelVectors * lanes;
  for (int c = 0; c < columns; ++c) {
    const Source from = source_of(spec, lanes, p, c / lanes, c % lanes);
    if (from.part == nullptr) continue;  // the pages are zero
    copy_row(*from.part->weight, from.row, in_width_, room);
    bf16* to = panel(p) + c * 2;
    for (int64_t k = 0; k < pairs_; ++k) std::memcpy(to + k * columns * 2, room + k * 2, 4);
    if (from.part->bias) panel_bias(p)[c] = element(*from.part->bias, from.row);
  }
}

std::unique_ptr<Linear> Linear::pack(const LinearSpec& spec, Isa isa, ThreadPool& pool) {
  std::unique_ptr<Linear> op(new Linear(spec, linear_kernels(isa)));
  const int64_t room = op->pairs_ * 2;  // an odd row's last element stays zero
  std::vector<bf16> rooms(room * pool.size());
  pool.parallel_for(static_cast<int>(op->panels_), [&](int p, int thread) {
    op->pack_panel(spec, p, rooms.data() + thread * room);
  });
  return op;
}

}  // namespace millrace::cpu
