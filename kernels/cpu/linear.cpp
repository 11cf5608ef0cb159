#include "linear.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "linear_kernels.hpp"

namespace millrace::cpu {
namespace {

// Panels that a thread takes at a time with many rows: as many as stay in its
// second-level cache while tile after tile of rows meets them.
constexpr int64_t kCachedWeights = 512 << 10;
// Tasks per thread at least, so that the last ones end together.
constexpr int kTasksPerThread = 8;
// Operands below this are packed by the driver alone.
constexpr int64_t kSmallOperand = 32 << 10;

constexpr int kMaxLanes = 16;
// Panels times rows of a tile never exceed the rows of the tallest one.
constexpr int kMaxTileSums = kPanelVectors * kMaxTileRows * kMaxLanes;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

const LinearKernels& kernels_for(Isa isa) {
#if defined(__x86_64__) && defined(MILLRACE_X86_LINEAR)
  switch (isa) {
    case Isa::avx512_bf16:
      return linear_kernels_avx512_bf16();
    case Isa::avx512:
      return linear_kernels_avx512();
    case Isa::avx2:
      return linear_kernels_avx2();
    case Isa::portable:
      break;
  }
#endif
  (void)isa;
  return linear_kernels_portable();
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

int64_t Linear::panel_elements() const { return pairs_ * 2 * kPanelVectors * kernels_.lanes; }

bf16* Linear::panel(int64_t p) const {
  return static_cast<bf16*>(weights_.data()) + p * panel_elements();
}

float* Linear::panel_bias(int64_t p) const {
  if (bias_.size() == 0) return nullptr;
  return static_cast<float*>(bias_.data()) + p * kPanelVectors * kernels_.lanes;
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
  std::unique_ptr<Linear> op(new Linear(spec, kernels_for(isa)));
  const int64_t room = op->pairs_ * 2;  // an odd row's last element stays zero
  std::vector<bf16> rooms(room * pool.size());
  pool.parallel_for(static_cast<int>(op->panels_), [&](int p, int thread) {
    op->pack_panel(spec, p, rooms.data() + thread * room);
  });
  return op;
}

size_t Linear::scratch_bytes(int rows) const { return rows * pairs_ * kernels_.operand_bytes; }

// The rows as tiles: [tiles][pairs][rows of the tile] pairs.
const void* Linear::pack_operand(const bf16* in, const Tiling& tiling, ThreadPool& pool) const {
  if (tiling.rows == 1 && kernels_.raw_row && in_width_ % 2 == 0) return in;
  auto* operand = static_cast<std::byte*>(pool.scratch(scratch_bytes(tiling.rows)));
  const auto pack = [&](int t, int) {
    const int first = tiling.first(t);
    kernels_.pack_operand(in + first * in_width_, tiling.first(t + 1) - first, in_width_,
                          operand + scratch_bytes(first));
  };
  if (tiling.rows * in_width_ > kSmallOperand) {
    pool.parallel_for(tiling.tiles, pack);
  } else {
    for (int t = 0; t < tiling.tiles; ++t) pack(t, 0);
  }
  return operand;
}

// One tile of rows through the panels [p, p + n).
void Linear::run_tile(const void* operand, int first_row, int rows, int64_t p, int n,
                      void* out) const {
  alignas(64) float sums[kMaxTileSums];
  const int64_t panel_sums = int64_t{kPanelVectors} * kernels_.lanes * rows;
  const int out_columns = kernels_.lanes * (gated_ ? 1 : kPanelVectors);
  const size_t out_bytes = out_f32_ ? sizeof(float) : sizeof(bf16);
  const auto* tile_operand = static_cast<const std::byte*>(operand) + scratch_bytes(first_row);
  for (const int64_t end = p + n; p < end;) {
    const int wide = kernels_.wide_panels[rows];
    const bool fits = p + wide <= end;
    (fits ? kernels_.wide
          : kernels_.one)[rows]({tile_operand, panel(p), panel_elements(), pairs_, sums});
    const int done = fits ? wide : 1;
    for (int i = 0; i < done; ++i, ++p) {
      const int64_t column = p * out_columns;
      kernels_.finish({sums + i * panel_sums, panel_bias(p),
                       static_cast<std::byte*>(out) + (first_row * out_width_ + column) * out_bytes,
                       out_width_, rows,
                       static_cast<int>(std::min<int64_t>(out_columns, out_width_ - column)),
                       activation_, gated_, accumulate_, out_f32_});
    }
  }
}

void Linear::run(const bf16* in, int rows, void* out, ThreadPool& pool) const {
  if (rows <= 0) return;
  const Tiling tiling{rows, static_cast<int>(ceil_div(rows, kernels_.max_rows))};
  const void* operand = pack_operand(in, tiling, pool);

  // A task is a chunk of panels times a group of tiles.
  const int64_t wanted = int64_t{kTasksPerThread} * pool.size();
  const int64_t cached = std::max<int64_t>(1, kCachedWeights / (panel_elements() * 2));
  int64_t chunk = std::clamp<int64_t>(panels_ / wanted, 1, 8 * kMaxTilePanels);
  if (tiling.tiles > 1) chunk = std::min(chunk, cached);
  const int64_t chunks = ceil_div(panels_, chunk);
  const int64_t groups = std::clamp<int64_t>(wanted / chunks, 1, tiling.tiles);

  pool.parallel_for(static_cast<int>(chunks * groups), [&](int task, int) {
    const int64_t p = task / groups * chunk, group = task % groups;
    const int n = static_cast<int>(std::min(chunk, panels_ - p));
    const int end = static_cast<int>((group + 1) * tiling.tiles / groups);
    for (int t = static_cast<int>(group * tiling.tiles / groups); t < end; ++t) {
      const int first = tiling.first(t);
      run_tile(operand, first, tiling.first(t + 1) - first, p, n, out);
    }
  });
}

}  // namespace millrace::cpu
