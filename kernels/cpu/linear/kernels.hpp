// What differs between instruction sets in a linear op. One table for each, in
// linear_<isa>.cpp.
#ifndef MILLRACE_CPU_LINEAR_KERNELS_HPP
#define MILLRACE_CPU_LINEAR_KERNELS_HPP

#include <cstddef>
#include <cstdint>

#include "cpu/linear/block_panels.hpp"
#include "cpu/linear/linear.hpp"
#include "cpu/machine/isa.hpp"
#include "exec/bf16.hpp"

namespace millrace::cpu {

// A panel is the weights of two vectors of columns (output features), unit by unit of
// K. It is read from memory in one run. A unit is
//   16 bit  a pair of K:     [2 vectors][lanes][2] bf16
//   FP8     a pair of K:     [lanes / fp8_columns][2 vectors][fp8_columns][2] codes
//   int8    four of K:       [2 vectors][lanes][4] codes, plus weight_offset
//   AMX     sixteen of those
//   int4    a group of K:    [group / 8][2 vectors][lanes][4] bytes, in which the low
//                            half is of the first four of eight and the high half of
//                            the others; then [2 vectors][lanes] bf16 scales
//   NF4     a group of K:    [group / 4][lanes][2] of [2 pairs] bytes, in which the low half is
//                            of the first vector; then the scales
// FP8 and NF4 of blocks (exec/blocks.hpp) are groups of K of the same units, and then [2 vectors][lanes] float scales.
// The vectors of a panel of blocks lie one after the other (cpu/linear/block_panels.hpp).
inline constexpr int kPanelVectors = 2;
inline constexpr int kMaxTilePanels = 4;

// Prefetch distances: bytes ahead of its reading at which a tile fetches weights to the
// first-level cache. The long one is for weights from memory.
inline constexpr int kPrefetchDistance = 512, kLongPrefetchDistance = 2048;

// The operand of a unit of int4 is the rows' codes, [group / 4][rows][4] int8, then for each row
// minus the weights' offset of 8 times their sum, [rows] int32. This is the size of a row's.
constexpr int64_t int4_operand_bytes(int group) { return group + int64_t{sizeof(int32_t)}; }

// The operand of a group of blocks is the rows' codes, as of int4, then three numbers of each row:
// [rows] int32, [rows] float, [rows] float (cpu/linear/blocks.hpp). This is the size of a row's.
constexpr int64_t block_operand_bytes(int group) {
  return group + int64_t{sizeof(int32_t)} + 2 * int64_t{sizeof(float)};
}

// A block of rows times panels over a range of K. The sums are added to, so
// that one range may follow another.
struct Tile {
  const void* operand;   // [units][rows] operands of a unit each
  const void* weights;   // of the first panel: as above, or expanded
  int64_t panel_stride;  // bytes between the panels
  int64_t units;
  int group;        // of int4, NF4 and blocks
  bool fresh;       // sums begin at zero, whatever they hold
  float* sums;      // [panels][2 vectors][rows][lanes]; int32 of int8
  float* expanded;  // for an expanding kernel: room for its weights
  // For a kernel of a block: what it prefetches from memory, half as fast as it reads weights.
  const std::byte* next_block = nullptr;
  int next_lines = 0;  // of next_block for each unit, between LinearKernels::configure and release
  int prefetch_distance = kPrefetchDistance;  // bytes
};
using TileKernel = void (*)(const Tile&);

// A span of a vector of blocks, and where it becomes bytes.
struct BlockExpand {
  const BlockType* type;
  const uint8_t* span;
  int elements;     // of K
  int group;        // of the op
  uint8_t* codes;   // [elements / 4][lanes][4]
  float* scales;    // [elements / group][lanes]
  float* minimums;  // likewise; null where no vector of the op has any
};

// The same of a panel of int4, whose vectors lie together.
struct Int4Expand {
  const uint8_t* units;
  int count, group;
  uint8_t* codes[kPanelVectors];
  float* scales[kPanelVectors];
};

// A tile of rows times a panel's span.
struct SpanTile {
  const void* operand;
  const uint8_t* codes[kPanelVectors];  // each as of BlockExpand
  const float* scales[kPanelVectors];
  const float* minimums[kPanelVectors];
  int groups;
  bool fresh;   // sums begin at zero, whatever they hold
  float* sums;  // [2 vectors][rows][lanes]
  // What the next tile meets: it is fetched to the first-level cache,
  const void* next_operand;
  const float* next_sums;
  // and a share of the next span from memory, that many lines with each group.
  const std::byte* next_span[kPanelVectors];
  int next_lines;
};
using SpanTileKernel = void (*)(const SpanTile&);

// A tile's rows times a vector of blocks, whose codes become bytes in registers.
struct BlockRows {
  const BlockType* type;
  const void* operand;
  const uint8_t* span;  // the first one
  int64_t width;        // of K
  float* sums;          // [rows][lanes]
  bool fetch;           // the vector comes from memory
};
using BlockRowsKernel = void (*)(const BlockRows&);

// Rows that become part of a tile's operand. Those of int8 and int4 are quantized: x =
// scale * code, the largest magnitude is 127.
struct OperandRows {
  const bf16* in;    // [count][width]
  int first, count;  // of the tile's rows
  int rows;          // of the tile
  int64_t width;     // filled up with zeros to whole units
  int64_t units;
  int group;        // of int4, NF4 and blocks
  float* scales;    // [count] of the quantized, written
  int32_t* totals;  // [count] of int8, written: the sum of a row's codes
};

// What becomes of the sums of a tile's panel.
struct Finish {
  const float* sums;           // [2 vectors][rows][lanes]
  const float* row_scales;     // [rows] of the quantized
  const int32_t* row_totals;   // [rows] of int8
  const float* column_scales;  // [2 vectors][lanes] of int8 and FP8
  const float* bias;           // [2 vectors][lanes] or null
  void* out;                   // first row and column of the panel, float or bf16
  int64_t out_stride;
  int rows;
  int columns;  // valid ones, at most 2 * lanes (gated: lanes)
  int activation;
  float act_a, act_b;
  bool gated, accumulate, out_f32;
};

// A way for one tile of rows to read the panels: how many of them side by side, who
// prefetches them, and how far ahead. All give the same bits; which is fastest depends on
// the processor's own prefetcher, so the fastest is found by measurement.
struct PrefetchVariant {
  TileKernel kernel[kMaxTileRows + 1];  // [rows]
  int panels[kMaxTileRows + 1];         // [rows]: of a call
  int distance;                         // prefetch distance of its tiles, bytes
  // For cpu/linear/measure.hpp: a sum over bytes (a multiple of kReadStep) that are read in the
  // order in which a one-row tile reads weights.
  uint64_t (*read)(const void* data, size_t bytes, int distance);
};
// One panel and four, with the processor prefetching or the tile, and one panel with a short
// prefetch distance: docs/decisions/linear-ops.md says which is the fastest where.
inline constexpr int kPrefetchVariants = 5;
inline constexpr int kOnePanel = 0;  // the variant that takes any number of panels

struct LinearKernels {
  const char* name;      // of the instructions that multiply
  int lanes;             // floats in a vector
  int max_rows;          // of a tile, at most kMaxTileRows
  int unit;              // elements of K; 0: a group
  int fp8_columns;       // of a vector that lie together
  int weight_offset;     // of int8: 128 where the codes are kept unsigned
  size_t operand_bytes;  // of a unit of a row; of NF4: of a pair
  bool raw_row;          // a row of bf16 of whole units is a one-row operand as it is
  PrefetchVariant prefetch_variants[kPrefetchVariants];
  TileKernel block[kMaxTileRows + 1];  // [rows]: one panel, and prefetches the next block
  // Up to this many tiles go through a panel together, block by block, where weights come from
  // memory. With more it is faster to keep them in the second-level cache, or expanded there.
  int multi_tile_limit;
  // Where these are set, more tiles than one go panel by panel through what a core keeps of their operand, and
  // `block` and tiles of spans run between configure(rows of the tile, group of the op) and release().
  void (*configure)(int rows, int group);
  void (*release)();
  // Where products of bf16 are those of floats, the weights of many rows are made floats by
  // the first tile that meets them, and the scales of their groups. Null where they are not.
  TileKernel expanding[kMaxTileRows + 1];                   // [rows]: one panel, and expands it
  TileKernel expanded[kMaxTileRows + 1];                    // [rows]: one expanded panel
  void (*pack_operand)(const OperandRows&, void* operand);  // [units][rows] operands
  // That many rows of blocks and of int4, and more, meet panels span by span, in tiles of AMX. 0: none.
  int span_rows;
  SpanTileKernel (*span_tile)(int group, bool minimums, int rows);
  void (*expand)(const BlockExpand&);  // of blocks; expand_int4 of int4
  void (*expand_int4)(const Int4Expand&);
  // The kernel of a tile of rows that meets no spans, for blocks of an op with groups of that size. Spans give the same bits.
  BlockRowsKernel (*block_rows)(const BlockType&, int group, int rows);
  void (*finish)(const Finish&);
  // For cpu/linear/measure.hpp: that many rounds of products in registers alone; returns the
  // operations of a thread.
  double (*products)(int64_t rounds);
};

inline constexpr size_t kReadStep = 4096;

// weights: mr_weights, or BlockWeights.
const LinearKernels& linear_kernels(Isa isa, int weights);
// The class of their bits (cpu/ops/kernels.hpp). Products of integers are exact, so that those of AMX
// tiles are of kX86Fma too.
const char* linear_numerics(Isa isa, int weights);

const LinearKernels& linear_kernels_portable();
const LinearKernels& linear_kernels_avx2();
const LinearKernels& linear_kernels_avx512();
const LinearKernels& linear_kernels_avx512_bf16();
const LinearKernels& linear_kernels_amx();
const LinearKernels& linear_int8_portable();
const LinearKernels& linear_int8_avx2();
const LinearKernels& linear_int8_avx_vnni();
const LinearKernels& linear_int8_vnni();
const LinearKernels& linear_int8_amx();
const LinearKernels& linear_int4_portable();
const LinearKernels& linear_int4_avx2();
const LinearKernels& linear_int4_avx_vnni();
const LinearKernels& linear_int4_vnni();
const LinearKernels& linear_int4_amx();
const LinearKernels& linear_blocks_portable();
const LinearKernels& linear_blocks_avx2();
const LinearKernels& linear_blocks_avx_vnni();
const LinearKernels& linear_blocks_vnni();
const LinearKernels& linear_blocks_amx();
const LinearKernels& linear_fp8_portable();
const LinearKernels& linear_fp8_avx2();
const LinearKernels& linear_fp8_avx512();
const LinearKernels& linear_fp8_avx512_bf16();
const LinearKernels& linear_nf4_portable();
const LinearKernels& linear_nf4_avx2();
const LinearKernels& linear_nf4_avx512();
const LinearKernels& linear_nf4_avx512_bf16();
const LinearKernels& linear_fp8_blocks_portable();
const LinearKernels& linear_fp8_blocks_avx2();
const LinearKernels& linear_fp8_blocks_avx512();
const LinearKernels& linear_fp8_blocks_avx512_bf16();
const LinearKernels& linear_nf4_blocks_portable();
const LinearKernels& linear_nf4_blocks_avx2();
const LinearKernels& linear_nf4_blocks_avx512();
const LinearKernels& linear_nf4_blocks_avx512_bf16();

}  // namespace millrace::cpu

#endif
