#include "linear.hpp"

#include <algorithm>

#include "linear_kernels.hpp"

namespace millrace::cpu {
namespace {

constexpr int kMaxLanes = 16;
// Panels times rows of a tile never exceed the rows of the tallest one.
constexpr int kMaxTileSums = kPanelVectors * kMaxTileRows * kMaxLanes;
// Tasks per thread at least, so that the last ones end together.
constexpr int kTasksPerThread = 8;
// Operands below this are packed by the driver alone.
constexpr int64_t kSmallOperand = 32 << 10;
// Tiles that make it worth while to expand the weights.
constexpr int kExpandedTiles = 3;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

const LinearKernels& linear_kernels(Isa isa) {
#if defined(__x86_64__)
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

int64_t Linear::panel_elements() const { return pairs_ * 2 * kPanelVectors * kernels_.lanes; }

bf16* Linear::panel(int64_t p) const {
  return static_cast<bf16*>(weights_.data()) + p * panel_elements();
}

float* Linear::panel_bias(int64_t p) const {
  if (bias_.size() == 0) return nullptr;
  return static_cast<float*>(bias_.data()) + p * kPanelVectors * kernels_.lanes;
}

size_t Linear::operand_bytes(int rows) const { return rows * pairs_ * kernels_.operand_bytes; }

// The rows as tiles: [tiles][pairs][rows of the tile] pairs.
const void* Linear::pack_operand(const bf16* in, Tiling tiling, std::byte* room,
                                 ThreadPool& pool) const {
  if (tiling.rows == 1 && kernels_.raw_row && in_width_ % 2 == 0) return in;
  const auto pack = [&](int t, int) {
    const int first = tiling.first(t);
    kernels_.pack_operand(in + first * in_width_, tiling.first(t + 1) - first, in_width_,
                          room + operand_bytes(first));
  };
  if (tiling.rows * in_width_ > kSmallOperand) {
    pool.parallel_for(tiling.tiles, pack);
  } else {
    for (int t = 0; t < tiling.tiles; ++t) pack(t, 0);
  }
  return room;
}

void Linear::finish(const Batch& b, int tile, int64_t p, const float* sums) const {
  const int first = b.tiling.first(tile);
  const int columns = kernels_.lanes * (gated_ ? 1 : kPanelVectors);
  const int64_t column = p * columns;
  const size_t out_bytes = out_f32_ ? sizeof(float) : sizeof(bf16);
  kernels_.finish({sums, panel_bias(p),
                   static_cast<std::byte*>(b.out) + (first * out_width_ + column) * out_bytes,
                   out_width_, b.tiling.first(tile + 1) - first,
                   static_cast<int>(std::min<int64_t>(columns, out_width_ - column)), activation_,
                   gated_, accumulate_, out_f32_});
}

// One tile of rows through the panels [p, end), several of them at a time.
void Linear::run_tile(const Batch& b, int tile, int64_t p, int64_t end) const {
  alignas(64) float sums[kMaxTileSums];
  const int first = b.tiling.first(tile), rows = b.tiling.first(tile + 1) - first;
  const auto* operand = static_cast<const std::byte*>(b.operand) + operand_bytes(first);
  while (p < end) {
    const bool fits = p + kernels_.wide_panels[rows] <= end;
    const int panels = fits ? kernels_.wide_panels[rows] : 1;
    const TileKernel kernel = (fits ? kernels_.wide : kernels_.one)[rows];
    kernel({operand, panel(p), panel_elements(), pairs_, sums});
    for (int i = 0; i < panels; ++i, ++p) {
      finish(b, tile, p, sums + i * kPanelVectors * kernels_.lanes * rows);
    }
  }
}

// Tiles of rows through the panels [p, end), which are made floats in `room` first.
void Linear::run_expanded(const Batch& b, int tile, int last_tile, int64_t p, int64_t end,
                          float* room) const {
  alignas(64) float sums[kMaxTileSums];
  kernels_.expand(panel(p), (end - p) * panel_elements(), room);
  for (; tile < last_tile; ++tile) {
    const int first = b.tiling.first(tile), rows = b.tiling.first(tile + 1) - first;
    const auto* operand = static_cast<const std::byte*>(b.operand) + operand_bytes(first);
    for (int64_t q = p; q < end; ++q) {
      kernels_.expanded[rows](
          {operand, room + (q - p) * panel_elements(), panel_elements(), pairs_, sums});
      finish(b, tile, q, sums);
    }
  }
}

// A task is a chunk of panels times a group of tiles: chunks that stay in a
// core's own cache while tile after tile meets them, groups where that alone
// makes too few tasks.
Linear::Plan Linear::plan(int rows, int threads) const {
  Plan plan{};
  plan.tiling = {rows, static_cast<int>(ceil_div(rows, kernels_.max_rows))};
  const int64_t wanted = int64_t{kTasksPerThread} * threads;
  plan.chunk = std::clamp<int64_t>(panels_ / wanted, 1, 8 * kMaxTilePanels);
  plan.expanded = kernels_.expand != nullptr && plan.tiling.tiles >= kExpandedTiles;
  if (plan.tiling.tiles > 1) {
    const int64_t bytes = panel_elements() * (plan.expanded ? sizeof(float) : sizeof(bf16));
    plan.chunk = std::clamp<int64_t>(cached_bytes_ / bytes, 1, plan.chunk);
  }
  plan.chunks = ceil_div(panels_, plan.chunk);
  const int most = plan.expanded ? plan.tiling.tiles / kExpandedTiles : plan.tiling.tiles;
  plan.groups = std::clamp<int64_t>(wanted / plan.chunks, 1, most);
  return plan;
}

void Linear::run(const bf16* in, int rows, void* out, ThreadPool& pool) const {
  if (rows <= 0) return;
  const Plan plan = this->plan(rows, pool.size());
  // The scratch: each thread's floats, then the operand.
  const int64_t room = plan.expanded ? plan.chunk * panel_elements() : 0;
  const size_t rooms = room * pool.size() * sizeof(float);
  auto* scratch = static_cast<std::byte*>(pool.scratch(rooms + operand_bytes(rows)));
  const Batch batch{pack_operand(in, plan.tiling, scratch + rooms, pool), plan.tiling, out};

  pool.parallel_for(static_cast<int>(plan.chunks * plan.groups), [&](int task, int thread) {
    const int64_t p = task / plan.groups * plan.chunk, group = task % plan.groups;
    const int64_t end = std::min(p + plan.chunk, panels_);
    const int tile = static_cast<int>(group * plan.tiling.tiles / plan.groups);
    const int last = static_cast<int>((group + 1) * plan.tiling.tiles / plan.groups);
    if (plan.expanded) {
      run_expanded(batch, tile, last, p, end, reinterpret_cast<float*>(scratch) + thread * room);
    } else {
      for (int t = tile; t < last; ++t) run_tile(batch, t, p, end);
    }
  });
}

}  // namespace millrace::cpu
