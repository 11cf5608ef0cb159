#include "cpu/linear/linear.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/linear/block_panels.hpp"
#include "cpu/linear/kernels.hpp"
#include "cpu/ops/kernels.hpp"
#include "exec/program.hpp"

namespace millrace::cpu {
namespace {

constexpr int kMaxLanes = 16;
// Panels times rows of a tile never exceed the rows of the tallest one.
constexpr int kMaxTileSums = kPanelVectors * kMaxTileRows * kMaxLanes;
// Tasks per thread at least, so that the last ones end together.
constexpr int kTasksPerThread = 8;
// Bytes of a tile's operand that stay in the first-level cache beside the weights.
constexpr int64_t kBlockOperand = 40 << 10;

// Bytes of a tile's operand in a block of K of tiles of AMX: a panel's block, as long, stays in the first-level cache beside it.
constexpr int64_t kPanelOperand = 16 << 10;
constexpr int64_t kLine = 64;

// Up to this many rows the op is memory-bound: all tiles go through a panel together, in blocks
// that stay in the first-level cache, so that memory is read once for all of them.
constexpr int kMultiTileRows = 28;
constexpr int64_t kMultiTileBlock = 16 << 10;  // bytes of a panel
// Tiles that a span of blocks meets at most, for the room of their sums.
constexpr int64_t kSpanTiles = 32;
constexpr int kLeastGroup = 16;

// From kOwnRows rows per core, or up to kSmallWeights bytes of weights, a core keeps the same rows
// from op to op: its rows are in its own cache, which is worth reading all weights.
constexpr int kOwnRows = 64;
constexpr int64_t kSmallWeights = 4 << 20;  // bytes

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The bytes of the scales and totals of rows, in whole lines.
constexpr size_t row_bytes(int64_t rows) { return ceil_div(rows * 8, 64) * 64; }

}  // namespace

const char* Linear::name() const { return kernels_.name; }

bool Linear::takes_codes() const { return quantizes_rows(weight_type_); }

int Linear::max_tile_rows() const { return kernels_.max_rows; }

int Linear::columns() const { return kPanelVectors * kernels_.lanes; }

int64_t Linear::unit_elements() const { return unit_ * columns(); }

int64_t Linear::expanded_floats(const Plan& plan) const {
  if (!plan.expanded) return 0;
  const int64_t scales = kernels_.unit == 0 ? columns() : 0;  // of a group
  return plan.block * (unit_elements() + scales);
}

int64_t Linear::weight_bytes() const { return panels_ * units_ * unit_bytes_; }

// A panel's span as bytes, with its scales and minimums, in floats.
int64_t Linear::span_floats() const {
  constexpr int kGroups = kSpan / kLeastGroup;
  return kPanelVectors * int64_t{kernels_.lanes} * (kSpan / 4 + 2 * kGroups);
}

// Of K, filled up to whole groups.
int64_t Linear::span_width() const { return units_ * group_; }

int64_t Linear::panel_sums(int rows) const { return int64_t{columns()} * rows; }

const std::byte* Linear::panel(int64_t p) const { return memory_ + p * units_ * unit_bytes_; }

const float* Linear::panel_bias(int64_t p) const {
  if (bias_at_ == 0) return nullptr;
  return reinterpret_cast<const float*>(memory_ + bias_at_) + p * columns();
}

const float* Linear::panel_scales(int64_t p) const {
  if (scales_at_ == 0) return nullptr;
  return reinterpret_cast<const float*>(memory_ + scales_at_) + p * columns();
}

std::span<const int32_t> Linear::order() const {
  if (order_at_ == 0) return {};
  return {reinterpret_cast<const int32_t*>(memory_ + order_at_), static_cast<size_t>(in_width_)};
}

size_t Linear::operand_bytes(int64_t rows) const { return rows * units_ * operand_unit_bytes_; }

// The operand of a tile from a unit of K.
const std::byte* Linear::operand_of(const Operand& o, int tile, int64_t unit) const {
  return static_cast<const std::byte*>(o.data) + operand_bytes(o.tiling.first(tile)) +
         unit * o.tiling.height(tile) * operand_unit_bytes_;
}

size_t Linear::operand_room(int rows) const { return row_bytes(rows) + operand_bytes(rows); }

// The scale and total of each row lie before the tiles.
Linear::Operand Linear::place(Tiling tiling, void* room) const {
  auto* const scales = static_cast<float*>(room);
  return {static_cast<std::byte*>(room) + row_bytes(tiling.rows), scales,
          reinterpret_cast<int32_t*>(scales + tiling.rows), tiling};
}

void Linear::pack_part(const Operand& to, int tile, int first, int count, const bf16* rows) const {
  thread_local std::vector<bf16> gathered;
  if (const auto from = order(); !from.empty()) {
    gathered.resize(count * in_width_);
    for (int r = 0; r < count; ++r) {
      const bf16* const row = rows + r * in_width_;
      bf16* const own = gathered.data() + r * in_width_;
      for (int64_t k = 0; k < in_width_; ++k) own[k] = row[from[k]];
    }
    rows = gathered.data();
  }
  kernels_.pack_operand(
      {rows, first - to.tiling.first(tile), count, to.tiling.height(tile), in_width_, units_,
       group_, const_cast<float*>(to.scales) + first, const_cast<int32_t*>(to.totals) + first},
      const_cast<std::byte*>(operand_of(to, tile, 0)));
}

void Linear::finish(const Batch& b, int tile, int64_t p, const float* sums) const {
  const int first = b.tiling.first(tile);
  const int columns = kernels_.lanes * (gated_ ? 1 : kPanelVectors);
  const int64_t column = p * columns;
  const size_t out_bytes = out_f32_ ? sizeof(float) : sizeof(bf16);
  kernels_.finish({sums, b.scales + first, b.totals + first, panel_scales(p), panel_bias(p),
                   static_cast<std::byte*>(b.out) + (first * out_width_ + column) * out_bytes,
                   out_width_, b.tiling.height(tile),
                   static_cast<int>(std::min<int64_t>(columns, out_width_ - column)), activation_,
                   act_a_, act_b_, gated_, accumulate_, out_f32_});
}

// Prefetches the lines that finish() will write; the products hide the latency.
void Linear::fetch_out(const Batch& b, int tile, int64_t p) const {
  const int columns = kernels_.lanes * (gated_ ? 1 : kPanelVectors);
  const int64_t element = out_f32_ ? sizeof(float) : sizeof(bf16);
  const auto* out = static_cast<const std::byte*>(b.out) + p * columns * element;
  for (int row = b.tiling.first(tile); row < b.tiling.first(tile + 1); ++row) {
    for (int64_t at = 0; at < columns * element; at += 64) {
      __builtin_prefetch(out + row * out_width_ * element + at, 1, 2);
    }
  }
}

// One tile of rows through the panels [p, end), several of them at a time.
void Linear::run_tile(const Batch& b, int tile, int64_t p, int64_t end) const {
  const int rows = b.tiling.height(tile);
  const std::byte* operand = operand_of(b, tile, 0);
  const PrefetchVariant& chosen = kernels_.prefetch_variants[variant_of_[rows]];
  while (p < end) {
    const bool fits = p + chosen.panels[rows] <= end;
    const PrefetchVariant& variant = fits ? chosen : kernels_.prefetch_variants[kOnePanel];
    const int panels = variant.panels[rows];
    alignas(64) float sums[kMaxTileSums];
    variant.kernel[rows]({operand, panel(p), units_ * unit_bytes_, units_, group_, true, sums,
                          nullptr, nullptr, variant.distance});
    for (int i = 0; i < panels; ++i, ++p) finish(b, tile, p, sums + i * panel_sums(rows));
  }
}

// A few tiles of rows through the panels [p, end), block by block: the weights of the next
// block are prefetched all the time, not by the first tile alone.
void Linear::run_multi_tile(const Batch& b, const Plan& plan, int64_t p, int64_t end,
                            float* sums) const {
  const int64_t tile_sums = panel_sums(kernels_.max_rows);
  for (; p < end; ++p) {
    for (int64_t k = 0; k < units_; k += plan.block) {
      const int64_t units = std::min(plan.block, units_ - k);
      const std::byte* const packed = panel(p) + k * unit_bytes_;
      const int64_t half = units * unit_bytes_ / 2;
      for (int t = 0; t < b.tiling.tiles; ++t) {
        const int rows = b.tiling.height(t);
        const std::byte* operand = operand_of(b, t, k);
        float* const to = sums + t * tile_sums;
        // The next block follows this one: each of two tiles prefetches a half. The others
        // prefetch what is already there.
        const std::byte* const next = t < 2 ? packed + (2 + t) * half : packed;
        kernels_.block[rows]({operand, packed, 0, units, group_, k == 0, to, nullptr, next});
        if (k + units == units_) finish(b, t, p, to);
      }
    }
  }
}

// Tiles of rows through the panels [p, end), block by block of K: the block of a
// tile's operand stays in the first-level cache while it goes through the panels,
// the block of the panels in the second-level cache while the tiles go by.
void Linear::run_blocks(const Batch& b, const Plan& plan, int tile, int last_tile, int64_t p,
                        int64_t end, float* room) const {
  const int64_t tile_sums = panel_sums(kernels_.max_rows);
  const int64_t expanded = expanded_floats(plan);
  float* const sums = room + plan.chunk * expanded;
  for (int64_t k = 0; k < units_; k += plan.block) {
    const int64_t units = std::min(plan.block, units_ - k);
    for (int t = tile; t < last_tile; ++t) {
      const int rows = b.tiling.height(t);
      const std::byte* operand = operand_of(b, t, k);
      for (int64_t q = p; q < end; ++q) {
        float* const to = sums + ((t - tile) * (end - p) + (q - p)) * tile_sums;
        const std::byte* const packed = panel(q) + k * unit_bytes_;
        float* const wide = room + (q - p) * expanded;
        if (k + units == units_) fetch_out(b, t, q);
        if (!plan.expanded) {
          kernels_.prefetch_variants[kOnePanel].kernel[rows](
              {operand, packed, 0, units, group_, k == 0, to, nullptr});
        } else if (t == tile) {
          kernels_.expanding[rows]({operand, packed, 0, units, group_, k == 0, to, wide});
        } else {
          kernels_.expanded[rows]({operand, wide, 0, units, group_, k == 0, to, nullptr});
        }
        if (k + units == units_) finish(b, t, q, to);
      }
    }
  }
}

// Tiles of rows through the panels [p, end), block by block of K: a panel's block stays in the first-level cache while the tiles meet
// it, their operand in the second-level cache, and the next panel's block comes from memory meanwhile.
void Linear::run_panels(const Batch& b, const Plan& plan, int tile, int last_tile, int64_t p,
                        int64_t end, float* sums) const {
  const int64_t tile_sums = panel_sums(kernels_.max_rows);
  const int64_t lines = unit_bytes_ / kLine;
  const int share = static_cast<int>(ceil_div(lines, last_tile - tile));
  int configured = 0;
  for (int64_t k = 0; k < units_; k += plan.block) {
    const int64_t units = std::min(plan.block, units_ - k);
    const bool first = k == 0, last = k + units == units_;
    for (int64_t q = p; q < end; ++q) {
      const std::byte* const packed = panel(q) + k * unit_bytes_;
      const std::byte* const next =
          q + 1 < end ? packed + units_ * unit_bytes_
                      : (last ? panel(end) : panel(p) + (k + units) * unit_bytes_);
      for (int t = tile; t < last_tile; ++t) {
        const int rows = b.tiling.height(t);
        if (rows != configured) kernels_.configure(configured = rows, group_);
        float* const to =
            first && last ? sums : sums + ((t - tile) * (end - p) + (q - p)) * tile_sums;
        // Some tiles fetch the whole block among them, the rest nothing.
        const auto fetched = static_cast<int64_t>(t - tile) * share;
        const int own = static_cast<int>(std::clamp<int64_t>(lines - fetched, 0, share));
        kernels_.block[rows]({operand_of(b, t, k), packed, 0, units, group_, first, to, nullptr,
                              next + fetched * units * kLine, own});
        if (last) finish(b, t, q, to);
      }
    }
  }
  kernels_.release();
}

// Tiles of rows through the panels [p, end), vector by vector: one comes from memory for the first tile, and from the second-level
// cache for the others.
void Linear::run_vectors(const Batch& b, int tile, int last_tile, int64_t p, int64_t end,
                         float* sums) const {
  const int64_t tile_sums = panel_sums(kernels_.max_rows);
  for (; p < end; ++p) {
    for (int v = 0; v < kPanelVectors; ++v) {
      const int64_t vector = p * kPanelVectors + v;
      const BlockType& type = blocks_->type(vector);
      const auto* span = reinterpret_cast<const uint8_t*>(memory_) + blocks_->at(vector, 0);
      BlockRowsKernel kernel = nullptr;
      int found = 0;  // the rows of the kernel
      for (int t = tile; t < last_tile; ++t) {
        const int rows = b.tiling.height(t);
        if (rows != found) kernel = kernels_.block_rows(type, group_, found = rows);
        float* const to = sums + (t - tile) * tile_sums;
        kernel({&type, operand_of(b, t, 0), span, in_width_, to + v * rows * kernels_.lanes,
                t == tile});
        if (v + 1 == kPanelVectors) finish(b, t, p, to);
      }
    }
  }
}

// Whether rows meet panels span by span.
bool Linear::by_spans(const Tiling& tiling) const {
  return kernels_.span_rows > 0 && tiling.rows >= kernels_.span_rows;
}

// Where a vector's span of a panel begins. The vectors of int4 lie together: each stands for half of the bytes.
const std::byte* Linear::span_of(int64_t p, int64_t k, int vector) const {
  if (blocks_) return memory_ + blocks_->at(p * kPanelVectors + vector, k);
  return panel(p) + k / group_ * unit_bytes_ + vector * (kSpan / group_ * unit_bytes_ / 2);
}

// The bytes of a whole span of one of a panel's vectors, of any type.
int64_t Linear::span_size(int64_t p) const {
  if (blocks_) return blocks_->at(p * kPanelVectors, kSpan) - blocks_->at(p * kPanelVectors, 0);
  return kSpan / group_ * unit_bytes_ / 2;
}

// Makes bytes of a panel's span from k on, in room.
SpanTile Linear::expand(int64_t p, int64_t k, int elements, float* room) const {
  const int lanes = kernels_.lanes;
  const int64_t code_floats = int64_t{lanes} * (kSpan / 4),
                scale_floats = int64_t{lanes} * (kSpan / kLeastGroup);
  float* const scales = room + kPanelVectors * code_floats;
  SpanTile span{};
  span.groups = elements / group_;
  span.fresh = k == 0;
  Int4Expand int4{reinterpret_cast<const uint8_t*>(span_of(p, k, 0)), span.groups, group_, {}, {}};
  for (int v = 0; v < kPanelVectors; ++v) {
    auto* const codes = reinterpret_cast<uint8_t*>(room + v * code_floats);
    float* const own_scales = scales + v * scale_floats;
    span.codes[v] = int4.codes[v] = codes;
    span.scales[v] = int4.scales[v] = own_scales;
    if (!blocks_) continue;
    float* const minimums =
        blocks_->minimums() ? scales + (kPanelVectors + v) * scale_floats : nullptr;
    span.minimums[v] = minimums;
    kernels_.expand({&blocks_->type(p * kPanelVectors + v),
                     reinterpret_cast<const uint8_t*>(span_of(p, k, v)), elements, group_, codes,
                     own_scales, minimums});
  }
  if (!blocks_) kernels_.expand_int4(int4);
  return span;
}

// Tiles of rows through the panels [p, end), span by span: a span becomes bytes that stay in the first-level cache while all
// tiles meet them. The sums of all tiles wait in the second-level cache.
void Linear::run_spans(const Batch& b, int tile, int last_tile, int64_t p, int64_t end,
                       float* room) const {
  const int64_t tile_sums = panel_sums(kernels_.max_rows), width = span_width();
  const bool minimums = blocks_ && blocks_->minimums();
  float* const sums = room + span_floats();
  const int halves = b.tiling.height(tile) > kernels_.max_rows / 2 ? 2 : 1;
  int configured = 0;
  for (; p < end; ++p) {
    for (int64_t k = 0; k < width; k += kSpan) {
      const auto elements = static_cast<int>(std::min<int64_t>(kSpan, width - k));
      SpanTile span = expand(p, k, elements, room);
      // Each tile fetches a share of the next span from memory.
      const bool ends = k + elements == width;
      const int64_t next_panel = std::min(ends ? p + 1 : p, end - 1),
                    begin = ends ? 0 : k + elements;
      const int64_t steps = int64_t{span.groups} * halves * (last_tile - tile);
      span.next_lines = static_cast<int>(ceil_div(span_size(next_panel) / kLine, steps));
      const int64_t share = int64_t{halves} * span.groups * span.next_lines * kLine;
      for (int v = 0; v < kPanelVectors; ++v) span.next_span[v] = span_of(next_panel, begin, v);
      span.next_operand = operand_of(b, tile, k / group_);
      for (int t = tile; t < last_tile; ++t) {
        const bool last = t + 1 == last_tile;
        const int rows = b.tiling.height(t), next = last ? tile : t + 1;
        const int64_t next_k = last ? begin : k;
        if (rows != configured) kernels_.configure(configured = rows, group_);
        span.operand = span.next_operand;
        span.sums = sums + (t - tile) * tile_sums;
        span.next_operand = operand_of(b, next, next_k / group_);
        span.next_sums = sums + (next - tile) * tile_sums;
        if (ends) fetch_out(b, t, p);
        kernels_.span_tile(group_, minimums, rows)(span);
        if (ends) finish(b, t, p, span.sums);
        for (const std::byte*& from : span.next_span) from += share;
      }
    }
  }
  kernels_.release();
}

// The same for all ops that read alike: one may have packed the operand of another.
Linear::Tiling Linear::tiling(int rows, int threads) const {
  const auto tiles = static_cast<int>(ceil_div(rows, kernels_.max_rows));
  // As many for each thread; lower ones multiply as fast, but for AMX.
  const bool shared = rows > kMultiTileRows && tiles >= threads && kernels_.configure == nullptr;
  return {rows, shared ? static_cast<int>(ceil_div(tiles, threads) * threads) : tiles};
}

// A task is a chunk of panels times a group of tiles: chunks as large as a core's
// own cache allows, groups where the chunks alone are too few tasks.
Linear::Plan Linear::plan(int rows, int threads) const {
  Plan plan{};
  plan.tiling = tiling(rows, threads);
  const int64_t wanted = int64_t{kTasksPerThread} * threads;
  plan.chunk = std::clamp<int64_t>(panels_ / wanted, 1, 8 * kMaxTilePanels);
  if (by_spans(plan.tiling) || blocks_) {
    // Groups of tiles whose operand a core keeps while panels go by.
    const int64_t kept = std::clamp<int64_t>(
        cached_bytes_ / static_cast<int64_t>(operand_bytes(kernels_.max_rows)), 1, kSpanTiles);
    plan.chunks = ceil_div(panels_, plan.chunk);
    plan.groups = ceil_div(plan.tiling.tiles, kept);
    if (plan.groups > 1) {
      plan.groups = std::min<int64_t>(ceil_div(plan.groups, threads) * threads, plan.tiling.tiles);
    }
    plan.room = (by_spans(plan.tiling) ? span_floats() : 0) +
                ceil_div(plan.tiling.tiles, plan.groups) * panel_sums(kernels_.max_rows);
    return plan;
  }
  if (plan.tiling.tiles == 1) {
    plan.chunks = ceil_div(panels_, plan.chunk);
    plan.groups = 1;
    return plan;
  }
  plan.multi_tile = plan.tiling.tiles <= kernels_.multi_tile_limit &&
                    (rows <= kMultiTileRows || weight_bytes() > kSmallWeights);
  if (plan.multi_tile) {
    plan.block = ceil_div(kMultiTileBlock, unit_bytes_);
    plan.chunks = ceil_div(panels_, plan.chunk);
    plan.groups = 1;
    plan.room = plan.tiling.tiles * panel_sums(kernels_.max_rows);
    return plan;
  }
  if (kernels_.configure != nullptr) {
    plan_panels(plan, threads);
    return plan;
  }
  plan.expanded = kernels_.expanded[1] != nullptr;
  const int64_t most = kBlockOperand / (kernels_.max_rows * operand_unit_bytes_);
  plan.block = ceil_div(units_, ceil_div(units_, most));
  const int64_t expanded = expanded_floats(plan);
  const int64_t panel_bytes =
      (plan.expanded ? expanded * sizeof(float) : plan.block * unit_bytes_) +
      plan.tiling.tiles * panel_sums(kernels_.max_rows) * sizeof(float);
  plan.chunk = std::clamp<int64_t>(cached_bytes_ / panel_bytes, 1, plan.chunk);
  plan.chunks = ceil_div(panels_, plan.chunk);
  plan.groups = wanted / plan.chunks;
  if (rows >= kOwnRows * threads || weight_bytes() <= kSmallWeights) {
    plan.groups = std::max<int64_t>(plan.groups, threads);
  }
  plan.groups = std::clamp<int64_t>(plan.groups, 1, plan.tiling.tiles / 2);
  plan.room = plan.chunk *
              (expanded + ceil_div(plan.tiling.tiles, plan.groups) * panel_sums(kernels_.max_rows));
  return plan;
}

// Groups of tiles whose operand a core keeps while panels go by.
void Linear::plan_panels(Plan& plan, int threads) const {
  const int64_t unit = kernels_.max_rows * operand_unit_bytes_;
  plan.block = ceil_div(units_, ceil_div(units_, kPanelOperand / unit));
  const int64_t kept = std::max<int64_t>(1, cached_bytes_ / (plan.block * unit));
  plan.groups = ceil_div(plan.tiling.tiles, kept);
  if (plan.groups > 1 || weight_bytes() <= kSmallWeights) {
    plan.groups = ceil_div(plan.groups, threads) * threads;
  }
  plan.groups = std::min<int64_t>(plan.groups, plan.tiling.tiles);
  const int64_t tiles = ceil_div(plan.tiling.tiles, plan.groups);
  const int64_t sums = tiles * panel_sums(kernels_.max_rows);  // floats of a panel
  plan.chunk = std::max<int64_t>(1, panels_ * plan.groups / (kTasksPerThread * threads));
  if (plan.block < units_) {
    const int64_t most = cached_bytes_ / 2 / static_cast<int64_t>(sums * sizeof(float));
    plan.chunk = std::clamp<int64_t>(most, 1, plan.chunk);
  }
  plan.chunks = ceil_div(panels_, plan.chunk);
  plan.room = plan.block < units_ ? plan.chunk * sums : panel_sums(kernels_.max_rows);
}

// The scratch: each thread's room, then the operand.
void Linear::run(const bf16* in, int rows, void* out, ThreadPool& pool) const {
  if (rows <= 0) return;
  const Plan plan = this->plan(rows, pool.size());
  const size_t rooms = room_bytes(plan, pool.size());
  auto* scratch = static_cast<std::byte*>(pool.scratch(rooms + operand_room(rows)));
  if (rows == 1 && kernels_.raw_row && in_width_ % unit_ == 0) {
    return multiply({{in, nullptr, nullptr, plan.tiling}, out}, plan, scratch, pool);
  }
  const Operand operand = pack_rows(rows, scratch + rooms, pool,
                                    [&](int first, int, int) { return in + first * in_width_; });
  multiply({operand, out}, plan, scratch, pool);
}

void Linear::run(const Operand& in, void* out, ThreadPool& pool) const {
  const Plan plan = this->plan(in.tiling.rows, pool.size());
  auto* scratch = static_cast<std::byte*>(pool.scratch(room_bytes(plan, pool.size())));
  multiply({in, out}, plan, scratch, pool);
}

size_t Linear::room_bytes(const Plan& plan, int threads) {
  return ceil_div(plan.room * threads * sizeof(float), 64) * 64;
}

void Linear::multiply(const Batch& batch, const Plan& plan, std::byte* rooms,
                      ThreadPool& pool) const {
  pool.parallel_for(tasks(plan), [&](int task, int thread) {
    run_task(batch, plan, task, reinterpret_cast<float*>(rooms) + thread * plan.room);
  });
}

void Linear::run_task(const Batch& batch, const Plan& plan, int task, float* room) const {
  const int64_t p = task % plan.chunks * plan.chunk, group = task / plan.chunks;
  const int64_t end = std::min(p + plan.chunk, panels_);
  const int tile = static_cast<int>(group * plan.tiling.tiles / plan.groups);
  const int last = static_cast<int>((group + 1) * plan.tiling.tiles / plan.groups);
  if (by_spans(plan.tiling)) return run_spans(batch, tile, last, p, end, room);
  if (blocks_) return run_vectors(batch, tile, last, p, end, room);
  if (plan.tiling.tiles == 1) return run_tile(batch, 0, p, end);
  if (plan.multi_tile) return run_multi_tile(batch, plan, p, end, room);
  if (kernels_.configure != nullptr) return run_panels(batch, plan, tile, last, p, end, room);
  run_blocks(batch, plan, tile, last, p, end, room);
}

}  // namespace millrace::cpu
