// A linear op with its weights on the device, and what may compute it.
#ifndef MILLRACE_GPU_LINEAR_HPP
#define MILLRACE_GPU_LINEAR_HPP

#include <compare>
#include <tuple>
#include <vector>

#include "exec/program.hpp"
#include "gpu/shapes.hpp"
#include "platform/stream.hpp"

namespace millrace::gpu {

inline auto operator<=>(const Activation& x, const Activation& y) {
  return std::tie(x.kind, x.a, x.b) <=> std::tie(y.kind, y.a, y.b);
}
inline bool operator==(const Activation& x, const Activation& y) { return (x <=> y) == 0; }

// Linear ops that are computed alike: all but the weights.
struct LinearKind {
  mr_dtype type;  // of the operands, MR_F16 or MR_BF16
  int32_t depth, width;
  Activation activation;
  bool gated, accumulate, bias, out_f32;
  int32_t most_rows;

  auto operator<=>(const LinearKind&) const = default;
};
// The kind of an op of experts is that of each of them, for pairs of a row and one of its experts. Their sums
// are another kernel's.
LinearKind linear_kind(const Program& program, const Op& op, mr_dtype type);

// The row of W in a column of packed weights, -1: none. A gated op has `unit` columns of gate
// and the same of up in turn.
int64_t row_of_column(const LinearKind& kind, int64_t column, int unit);

// A sum is cut into slices, one per sub-group of a work-group.
struct Slices {
  int32_t count, steps;  // steps: of a slice
};
// Cuts a sum of `steps` steps: as many slices as fill the device where one row is `tasks`
// work-groups, each of whole groups of steps.
Slices cut_sum(const DeviceHandle& device, int tasks, int steps, int group);

// Weights in blocks: [block of `columns` columns][step along the sum][columns][deep].
struct WeightBlocks {
  const void* data;
  int32_t columns, steps, deep;
};

// Rows sorted by expert, and the tiles that they are cut into.
struct TiledRows {
  int rows, count, tile_rows;  // tile_rows: of a tile, at most
  const void* tiles;           // ExpertTile [count] on the device
};

// Rows as int8 codes of `width` each, and their scales.
struct RowCodes {
  void* codes;
  void* scales;
  int32_t width;
};

// Makes a buffer that several ops use in turn large enough for one more of them.
inline void grow(Stream& stream, Buffer& buffer, size_t bytes) {
  if (bytes > buffer.size()) buffer = stream.allocate(bytes);
}

class Linear {
 public:
  virtual ~Linear() = default;
  // in: [rows][depth] operands; out: [rows][width]. Memory after the rows, up
  // to most_rows, may be read and overwritten.
  virtual void run(Stream& stream, int rows, const void* in, void* out) = 0;
  // Ops of experts have these instead. in, out: [rows], sorted. tile_rows: where each expert has about `rows`.
  virtual int tile_rows(int /*rows*/) const { return 0; }
  virtual void run_tiles(Stream&, const TiledRows&, const void* /*in*/, void* /*out*/) {}
  // Where the op before this one leaves its rows as codes, which run takes from here on instead of
  // making them. All ops of the program are made. Ops without codes have no such place.
  virtual RowCodes take_codes() { return {}; }
  virtual uint64_t bytes() const = 0;
  // The weights, if they lie so and are not gated; else no data.
  virtual WeightBlocks blocks() const { return {}; }
};

}  // namespace millrace::gpu

#endif
