// Linear ops by tensor cores: products of 16 columns of W by 8 rows of the input, mma.sync.
//
// The operands are exchanged: the instruction's 16 rows are columns of W, its 8 columns are rows of
// the input. So 1 to 8 rows waste no weights, and every number of rows is one instruction.
//
// Along the sum, a step is 32 bytes of an input row: 16 operands, or 32 codes. W lies in tiles of 16
// columns, [block of 16 columns][tile][lane][4 words], in which a lane finds what it holds of the
// instruction (mr::mma_place). A group is two blocks: 32 columns, or of a gated op 16 of gate and
// the same 16 of up.
//
// The sum is cut into slices as elsewhere. few() gives each slice a warp, tile() takes one after the
// other; both add them in ascending order. So a row has the same bits for one row as for a thousand.
//
// A format says how steps are multiplied:
//   Sum, Total   what a step adds to, and what slices are added as
//   kTileSteps   steps of a tile of W
//   kInGroups    whether groups of steps have their scales
//   kSliced      whether the order of slices matters: sums of integers have none
//   columns()    a lane's words of a step
//   row()        a lane's part of a step of an input row, from global memory
//   copy_rows()  begins to copy steps of rows to shared memory
//   y()          a column's result of its total
#ifndef MILLRACE_CUDA_MMA_HPP
#define MILLRACE_CUDA_MMA_HPP

#include "activation.hpp"
#include "ptx.hpp"

namespace mr_mma {

constexpr int kStepBytes = 32;
constexpr int kTileWords = mr::kMmaTileWords;
constexpr int kBlocks = mr::kColumnBlocks;         // of a group
constexpr int kGroup = kBlocks * mr::kMmaColumns;  // columns
static_assert(MR_LANES == 32 && kGroup == MR_LANES);

// A lane's part of a row's step: words t and t + 4 of its eight, t = lane % 4.
struct RowWords {
  uint32_t first, second;
};
MR_INLINE RowWords row_words(const void* step, int lane) {
  const auto* words = static_cast<const uint32_t*>(step) + lane % 4;
  return {words[0], words[4]};
}

// The row of 8 and the column of 16 of a lane's sum i.
MR_INLINE int row_of_sum(int i, int lane) { return lane % 4 * 2 + i % 2; }
MR_INLINE int column_of_sum(int i, int lane) { return i / 2 * 8 + lane / 4; }

template <int n>
struct Count {
  static constexpr int value = n;
};

// The shape of an op, whatever its weights are.
struct Shape {
  int rows, width, groups;  // groups of columns
  int steps, slices, slice_steps;
  mr::Activation activation;
  bool gated, accumulate, bias, out_f32;
};

// Ends kRows rows of a group from `row` on, of which the first `rows` are there: y is what this lane's column has before
// the bias.
template <int kRows>
MR_INLINE void finish(const Shape& s, const float* bias, void* out, int64_t row, int rows,
                      int64_t group, int lane, float (&y)[kRows]) {
  const int64_t column = s.gated ? group * 16 + lane : group * kGroup + lane;
  const bool writes = column < s.width && (!s.gated || lane < 16);
  const int64_t at = row * s.width + column;
  float before[kRows];  // all reads come before the first write, which they would wait for
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    before[m] = s.accumulate && writes && m < rows
                    ? static_cast<const float*>(out)[at + int64_t{m} * s.width]
                    : 0.0f;
  }
  const float b = s.bias ? bias[group * kGroup + lane] : 0.0f;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (s.bias) y[m] += b;
    float value = mr_linear::activate(s.activation, y[m]);
    if (s.gated) {
      const float up = sycl::select_from_group(sycl::sub_group{}, y[m], lane % 16 + 16);
      value *= mr_linear::multiplier(s.activation, up);
    }
    if (s.accumulate) value += before[m];
    if (writes && m < rows) store(out, s.out_f32, at + int64_t{m} * s.width, value);
  }
}

// A lane's scales, bf16, of kCount blocks of columns. They are read as early as weights are.
template <int kCount>
struct Scales {
  uint16_t at[kCount][2];

  // scales: of the blocks' columns.
  MR_INLINE void read(const uint16_t* scales, int lane) {
#pragma unroll
    for (int c = 0; c < kCount; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        at[c][half] = scales[c * mr::kMmaColumns + column_of_sum(2 * half, lane)];
      }
  }
};

// The sums of kN times 8 rows in the two blocks of a group.
template <class T, int kN>
struct Sums {
  T at[kBlocks][kN][4];

  MR_INLINE void clear() {
#pragma unroll
    for (int c = 0; c < kBlocks; ++c)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) at[c][n][i] = 0;
  }
  template <class Other>
  MR_INLINE void add(const Sums<Other, kN>& other) {
#pragma unroll
    for (int c = 0; c < kBlocks; ++c)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) at[c][n][i] += static_cast<T>(other.at[c][n][i]);
  }
  // Adds the sums of a group of steps, each by the scale of its column.
  MR_INLINE void add_scaled(const Sums<int32_t, kN>& other, const Scales<kBlocks>& scales) {
#pragma unroll
    for (int c = 0; c < kBlocks; ++c)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          at[c][n][i] = sycl::fma(static_cast<float>(other.at[c][n][i]),
                                  bf16_to_float(scales.at[c][i / 2]), at[c][n][i]);
        }
  }
  // To memory of [rows][stride].
  MR_INLINE void put(T* out, int stride, int lane) const {
#pragma unroll
    for (int c = 0; c < kBlocks; ++c)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          out[(n * 8 + row_of_sum(i, lane)) * stride + c * mr::kMmaColumns +
              column_of_sum(i, lane)] = at[c][n][i];
        }
  }
};

// What a slice adds up: the sums themselves, or, where groups of steps have scales, those of a group and of all groups
// before it.
template <class F, int kN>
struct Slice {
  Sums<typename F::Sum, kN> sums;
  Sums<typename F::Total, F::kInGroups ? kN : 1> scaled;

  MR_INLINE void clear() {
    sums.clear();
    if constexpr (F::kInGroups) scaled.clear();
  }
  // After the last step of a group.
  MR_INLINE void end_group(const Scales<kBlocks>& scales) {
    if constexpr (F::kInGroups) {
      scaled.add_scaled(sums, scales);
      sums.clear();
    }
  }
  MR_INLINE const auto& total() const {
    if constexpr (F::kInGroups) {
      return scaled;
    } else {
      return sums;
    }
  }
};

#ifdef MR_WGMMA

// The sums of kN times 8 rows in a warp's 16 columns: for each 8 rows as those of mma.sync.
template <class T, int kN>
struct WideSums {
  T at[4 * kN];

  MR_INLINE void clear() {
#pragma unroll
    for (T& x : at) x = 0;
  }
  template <class Other>
  MR_INLINE void add(const WideSums<Other, kN>& other) {
#pragma unroll
    for (int i = 0; i < 4 * kN; ++i) at[i] += static_cast<T>(other.at[i]);
  }
  MR_INLINE void add_scaled(const WideSums<int32_t, kN>& other, const Scales<1>& scales) {
#pragma unroll
    for (int i = 0; i < 4 * kN; ++i) {
      at[i] =
          sycl::fma(static_cast<float>(other.at[i]), bf16_to_float(scales.at[0][i % 4 / 2]), at[i]);
    }
  }
  MR_INLINE void put(T* out, int stride, int lane) const {
#pragma unroll
    for (int i = 0; i < 4 * kN; ++i) {
      out[(i / 4 * 8 + row_of_sum(i % 4, lane)) * stride + column_of_sum(i % 4, lane)] = at[i];
    }
  }
};

template <class F, int kN>
struct WideSlice {
  WideSums<typename F::Sum, kN> sums;
  WideSums<typename F::Total, F::kInGroups ? kN : 1> scaled;

  MR_INLINE void clear() {
    sums.clear();
    if constexpr (F::kInGroups) scaled.clear();
  }
  MR_INLINE void end_group(const Scales<1>& scales) {
    if constexpr (F::kInGroups) {
      scaled.add_scaled(sums, scales);
      sums.clear();
    }
  }
  MR_INLINE const auto& total() const {
    if constexpr (F::kInGroups) {
      return scaled;
    } else {
      return sums;
    }
  }
};

#endif

// Ends a tile of rows by groups from its totals in shared memory, [rows][stride].
template <int kGroups, int kWarps, class F, class Total>
MR_INLINE void finish_tile(const F& f, const Total* totals, int stride, const float* bias,
                           void* out, int64_t first_row, int rows, int64_t first_group,
                           int groups) {
  constexpr int kAtOnce = 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
  for (int i = warp; i < (rows + kAtOnce - 1) / kAtOnce * kGroups; i += kWarps) {
    const int m = i / kGroups * kAtOnce, g = i % kGroups;
    if (g >= groups) continue;
    const int64_t group = first_group + g;
    float y[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int row = m + k < rows ? m + k : m;
      y[k] = f.y(totals[row * stride + g * kGroup + lane], first_row + row, group * kGroup + lane);
    }
    finish(f.shape, bias, out, first_row + m, rows - m, group, lane, y);
  }
}

// Whether a step is the last one of those that share scales.
template <class F>
MR_INLINE bool ends_group(const F& f, int step) {
  return F::kInGroups && ((step + 1) % f.group_steps_of() == 0 || step + 1 == f.shape.steps);
}

// Up to 8 * kN rows of a group: a warp for each slice, weights and rows from global memory.
// Shared memory: [slices][8 * kN][32] totals.
// kAheadSteps: whose loads are under way together.
template <class F, int kN, int kAheadSteps = 4>
MR_INLINE void few(const F& f, const uint32_t* weights, const float* bias, void* out, void* local) {
  using Total = typename F::Total;
  constexpr int kRows = 8 * kN, kAhead = kAheadSteps / F::kTileSteps;
  const Shape& s = f.shape;
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
  const int64_t row_tiles = (s.rows + kRows - 1) / kRows;
  const int64_t first_row = blockIdx.x % row_tiles * kRows, group = blockIdx.x / row_tiles;
  const int rows = static_cast<int>(s.rows - first_row < kRows ? s.rows - first_row : kRows);
  const int tiles = (s.steps + F::kTileSteps - 1) / F::kTileSteps;

  int64_t row[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int mine = n * 8 + lane / 4;
    row[n] = first_row + (mine < rows ? mine : 0);
  }
  Slice<F, kN> mine;
  mine.clear();
  const int begin = slice * s.slice_steps;
  const int end = begin + s.slice_steps < s.steps ? begin + s.slice_steps : s.steps;
  const uint32_t* w =
      weights + (group * kBlocks * tiles + begin / F::kTileSteps) * kTileWords + lane * 4;
  const auto some = [&](int step, auto count) __attribute__((always_inline)) {
    constexpr int kTiles = decltype(count)::value;
    Scales<kBlocks> scales[kTiles * F::kTileSteps];
    mr_ptx::Words4 a[kTiles][kBlocks];
    RowWords b[kTiles * F::kTileSteps][kN];
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int c = 0; c < kBlocks; ++c) {
        a[i][c] = mr_ptx::load_once(w + (int64_t{c} * tiles + i) * kTileWords);
      }
#pragma unroll
    for (int i = 0; i < kTiles * F::kTileSteps; ++i) {
      if (ends_group(f, step + i)) scales[i].read(f.scales_of(group, step + i), lane);
    }
    if (step == begin) mr_ptx::wait_for_previous();  // weights are nobody's output
#pragma unroll
    for (int i = 0; i < kTiles * F::kTileSteps; ++i)
#pragma unroll
      for (int n = 0; n < kN; ++n) b[i][n] = f.row(row[n], step + i, lane);
#pragma unroll
    for (int i = 0; i < kTiles * F::kTileSteps; ++i) {
#pragma unroll
      for (int c = 0; c < kBlocks; ++c) {
        uint32_t columns[4];
        F::columns(a[i / F::kTileSteps][c].at, i % F::kTileSteps, columns);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          mr_ptx::multiply(mine.sums.at[c][n], columns, b[i][n].first, b[i][n].second);
        }
      }
      if (ends_group(f, step + i)) mine.end_group(scales[i]);
    }
    w += kTiles * kTileWords;
  };
  mr_ptx::start_next();
  int step = begin;
  for (; step + kAhead * F::kTileSteps <= end; step += kAhead * F::kTileSteps) {
    some(step, Count<kAhead>{});
  }
#pragma unroll 1
  for (; step < end; step += F::kTileSteps) some(step, Count<1>{});

  auto* slices = static_cast<Total*>(local);
  mine.total().put(slices + slice * kRows * kGroup, kGroup, lane);
  __syncthreads();
#pragma unroll 1
  for (int m = slice; m < rows; m += s.slices) {
    Total total = 0;
#pragma unroll 4
    for (int i = 0; i < s.slices; ++i) total += slices[(i * kRows + m) * kGroup + lane];
    float y[1] = {f.y(total, first_row + m, group * kGroup + lane)};
    finish(s, bias, out, first_row + m, 1, group, lane, y);
  }
}

// A tile of many rows: a warp for each group of columns and 8 * n rows. Both operands go through
// shared memory, in stages.
constexpr int kStageSteps = mr::kMmaStageSteps, kRowStride = mr::kMmaRowStride;

template <class F, mr::MmaTile kTile>
MR_INLINE void tile(const F& f, const uint32_t* weights, const float* bias, void* out,
                    void* local) {
  using Total = typename F::Total;
  constexpr int kWarpGroups = kTile.groups, kN = kTile.n, kStages = kTile.stages;
  constexpr int kThreads = 32 * kTile.warps(), kRows = kTile.rows();
  constexpr int kStageTiles = kStageSteps / F::kTileSteps;
  constexpr int kRowBytes = kRows * kRowStride;
  constexpr int kStageBytes = mr::mma_stage_bytes(kTile, F::kTileSteps);
  constexpr int kOutStride = kWarpGroups * kGroup + 4;  // rows lie in different banks

  const Shape& s = f.shape;
  auto* shared = static_cast<uint8_t*>(local);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_group = warp % kWarpGroups, warp_rows = warp / kWarpGroups * 8 * kN;
  // Row tiles run fastest: neighbors read the same weights.
  const int64_t row_tiles = (s.rows + kRows - 1) / kRows;
  const int64_t first_row = blockIdx.x % row_tiles * kRows;
  const int64_t first_group = blockIdx.x / row_tiles * kWarpGroups;
  const int rows = static_cast<int>(s.rows - first_row < kRows ? s.rows - first_row : kRows);
  const int groups =
      static_cast<int>(s.groups - first_group < kWarpGroups ? s.groups - first_group : kWarpGroups);
  const int tiles = (s.steps + F::kTileSteps - 1) / F::kTileSteps;
  const int stages = (s.steps + kStageSteps - 1) / kStageSteps;

  const auto fill = [&](int stage) __attribute__((always_inline)) {
    uint8_t* to = shared + stage % kStages * kStageBytes;
    f.template copy_rows<kThreads, kRows>(
        to, first_row, rows, stage, [](int row, int chunk) __attribute__((always_inline)) {
          return row * kRowStride + chunk * 16;
        });
    uint8_t* weights_to = to + kRowBytes;
    constexpr int kBlockChunks = kStageTiles * kTileWords / 4;  // of 16 bytes
    constexpr int kChunks = kWarpGroups * kBlocks * kBlockChunks;
#pragma unroll
    for (int first = 0; first < kChunks; first += kThreads) {
      const int i = first + threadIdx.x;
      if (kChunks % kThreads != 0 && i >= kChunks) break;
      const int block = i / kBlockChunks, chunk = i % kBlockChunks;
      const int tile = stage * kStageTiles + chunk / (kTileWords / 4);
      const bool there = tile < tiles && block < groups * kBlocks;
      const int64_t at = there ? ((first_group * kBlocks + block) * tiles + tile) * kTileWords +
                                     chunk % (kTileWords / 4) * 4
                               : 0;
      mr_ptx::copy16(weights_to + i * 16, weights + at, there);
    }
  };
  mr_ptx::start_next();
  mr_ptx::wait_for_previous();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < stages) fill(stage);
    mr_ptx::commit_copies();
  }

  Slice<F, kN> mine;
  mine.clear();
  Sums<Total, F::kSliced ? kN : 1> total;
  total.clear();
  int in_slice = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    mr_ptx::wait_copies<kStages - 2>();
    __syncthreads();
    if (stage + kStages - 1 < stages) fill(stage + kStages - 1);
    mr_ptx::commit_copies();

    Scales<kBlocks> scales[kStageSteps];
    const int64_t group = first_group + (warp_group < groups ? warp_group : 0);
#pragma unroll
    for (int i = 0; i < kStageSteps; ++i) {
      const int step = stage * kStageSteps + i;
      if (step < s.steps && ends_group(f, step)) scales[i].read(f.scales_of(group, step), lane);
    }
    const uint8_t* from = shared + stage % kStages * kStageBytes;
    const uint8_t* b_from = from + (warp_rows + lane / 4) * kRowStride;
    const uint8_t* a_from =
        from + kRowBytes + (warp_group * kBlocks * kStageTiles * kTileWords + lane * 4) * 4;
#pragma unroll
    for (int i = 0; i < kStageSteps; ++i) {
      const int step = stage * kStageSteps + i;
      if (step >= s.steps) break;
      uint32_t a[kBlocks][4];
#pragma unroll
      for (int c = 0; c < kBlocks; ++c) {
        const auto words = *reinterpret_cast<const mr_ptx::Words4*>(
            a_from + (c * kStageTiles + i / F::kTileSteps) * kTileWords * 4);
        F::columns(words.at, i % F::kTileSteps, a[c]);
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const RowWords b = row_words(b_from + n * 8 * kRowStride + i * kStepBytes, lane);
#pragma unroll
        for (int c = 0; c < kBlocks; ++c)
          mr_ptx::multiply(mine.sums.at[c][n], a[c], b.first, b.second);
      }
      if (ends_group(f, step)) mine.end_group(scales[i]);
      if constexpr (F::kSliced) {
        if (++in_slice == s.slice_steps || step + 1 == s.steps) {
          total.add(mine.total());
          mine.clear();
          in_slice = 0;
        }
      }
    }
  }
  mr_ptx::wait_copies<0>();
  __syncthreads();

  auto* totals = reinterpret_cast<Total*>(shared);
  Total* put_at = totals + warp_rows * kOutStride + warp_group * kGroup;
  if constexpr (F::kSliced) {
    total.put(put_at, kOutStride, lane);
  } else {
    mine.total().put(put_at, kOutStride, lane);
  }
  __syncthreads();
  finish_tile<kWarpGroups, kThreads / 32>(f, totals, kOutStride, bias, out, first_row, rows,
                                          first_group, groups);
}

#ifdef MR_WGMMA

// The same as tile() for Hopper, by products of four warps (wgmma): each warp holds 16 columns of W, and all read kRows
// rows from shared memory. An element's sum is that of mma.sync, bit for bit.
template <class F, mr::WideTile kTile>
MR_INLINE void wide(const F& f, const uint32_t* weights, const float* bias, void* out,
                    void* local) {
  using Total = typename F::Total;
  constexpr int kRows = kTile.rows, kStages = kTile.stages;
  constexpr int kThreads = 128 * kTile.warpgroups, kGroups = kTile.groups(), kN = kRows / 8;
  constexpr int kRowBytes =
      kRows * kStageSteps * kStepBytes;  // rows of 128 bytes, whose chunks are exchanged
  constexpr int kStageTiles = kStageSteps / F::kTileSteps;
  constexpr int kStageBytes = mr::wide_stage_bytes(kTile, F::kTileSteps);
  constexpr int kOutStride = kGroups * kGroup + 4;

  const Shape& s = f.shape;
  auto* shared = static_cast<uint8_t*>(local);
  shared += (1024 - mr_ptx::shared_address(shared) % 1024) % 1024;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row_tiles = (s.rows + kRows - 1) / kRows;
  const int64_t first_row = blockIdx.x % row_tiles * kRows;
  const int64_t first_group = blockIdx.x / row_tiles * kGroups;
  const int rows = static_cast<int>(s.rows - first_row < kRows ? s.rows - first_row : kRows);
  const int groups =
      static_cast<int>(s.groups - first_group < kGroups ? s.groups - first_group : kGroups);
  const int tiles = (s.steps + F::kTileSteps - 1) / F::kTileSteps;
  const int stages = (s.steps + kStageSteps - 1) / kStageSteps;
  // Warps after the last group compute the first one again.
  const int64_t group = first_group + (warp / kBlocks < groups ? warp / kBlocks : 0);
  const uint32_t* w = weights + (group * kBlocks + warp % kBlocks) * tiles * kTileWords + lane * 4;

  // A lane copies its own words, and so needs no barrier for them.
  const auto fill_columns = [&](int stage) __attribute__((always_inline)) {
    uint8_t* to = shared + stage % kStages * kStageBytes + kRowBytes +
                  (warp * kStageTiles * kTileWords + lane * 4) * 4;
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      const int tile = stage * kStageTiles + i;
      mr_ptx::copy16(to + i * kTileWords * 4, w + (tile < tiles ? tile * kTileWords : 0),
                     tile < tiles);
    }
  };
  const auto fill_rows = [&](int stage) __attribute__((always_inline)) {
    f.template copy_rows<kThreads, kRows>(
        shared + stage % kStages * kStageBytes, first_row, rows, stage,
        [](int row, int chunk)
            __attribute__((always_inline)) { return row * 128 + (chunk ^ row % 8) * 16; });
  };
  mr_ptx::start_next();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < stages) fill_columns(stage);
  }
  mr_ptx::wait_for_previous();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < stages) fill_rows(stage);
    mr_ptx::commit_copies();
  }

  WideSlice<F, kN> mine;
  mine.clear();
  WideSums<Total, F::kSliced ? kN : 1> total;
  total.clear();
  int in_slice = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    mr_ptx::wait_copies<kStages - 2>();
    mr_ptx::show_products_copies();
    __syncthreads();
    if (stage + kStages - 1 < stages) {
      fill_columns(stage + kStages - 1);
      fill_rows(stage + kStages - 1);
    }
    mr_ptx::commit_copies();

    const uint8_t* from = shared + stage % kStages * kStageBytes;
    Scales<1> scales[kStageSteps];
#pragma unroll
    for (int i = 0; i < kStageSteps; ++i) {
      const int step = stage * kStageSteps + i;
      if (step < s.steps && ends_group(f, step)) {
        scales[i].read(f.scales_of(group, step) + warp % kBlocks * mr::kMmaColumns, lane);
      }
    }
    const uint8_t* columns_from =
        from + kRowBytes + (warp * kStageTiles * kTileWords + lane * 4) * 4;
    uint32_t a[kStageSteps][4];
#pragma unroll
    for (int i = 0; i < kStageSteps; ++i) {
      const auto words = *reinterpret_cast<const mr_ptx::Words4*>(
          columns_from + i / F::kTileSteps * kTileWords * 4);
      F::columns(words.at, i % F::kTileSteps, a[i]);
    }
    mr_ptx::begin_products();
#pragma unroll
    for (int i = 0; i < kStageSteps; ++i) {
      const int step = stage * kStageSteps + i;
      if (step >= s.steps) break;
      mr_ptx::multiply_rows(mine.sums.at, a[i], from + i * kStepBytes);
      const bool group_ends = ends_group(f, step);
      const bool slice_ends = F::kSliced && (in_slice + 1 == s.slice_steps || step + 1 == s.steps);
      ++in_slice;
      if (!group_ends && !slice_ends) continue;
      mr_ptx::end_products();
      if (group_ends) mine.end_group(scales[i]);
      if (slice_ends) {
        if constexpr (F::kSliced) {
          total.add(mine.total());
          mine.clear();
        }
        in_slice = 0;
      }
      mr_ptx::begin_products();
    }
    mr_ptx::end_products();
  }
  mr_ptx::wait_copies<0>();
  __syncthreads();

  auto* totals = reinterpret_cast<Total*>(shared);
  Total* put_at = totals + warp * mr::kMmaColumns;
  if constexpr (F::kSliced) {
    total.put(put_at, kOutStride, lane);
  } else {
    mine.total().put(put_at, kOutStride, lane);
  }
  __syncthreads();
  finish_tile<kGroups, kThreads / 32>(f, totals, kOutStride, bias, out, first_row, rows,
                                      first_group, groups);
}

#endif

}  // namespace mr_mma

#endif
