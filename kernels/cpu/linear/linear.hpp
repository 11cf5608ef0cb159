// Linear ops: out = act(in . W^T + bias), with the weights packed at load for
// the instruction set that reads them.
#ifndef MILLRACE_CPU_LINEAR_LINEAR_HPP
#define MILLRACE_CPU_LINEAR_LINEAR_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/machine/isa.hpp"
#include "cpu/machine/pages.hpp"
#include "cpu/machine/thread_pool.hpp"
#include "exec/bf16.hpp"
#include "millrace_kernels.h"

namespace millrace {
struct BlockType;
}  // namespace millrace

namespace millrace::cpu {

class BlockPanels;
struct LinearKernels;
struct SpanTile;

inline constexpr int kMaxTileRows = 32;

struct LinearSpec {
  // As mr_part, with the tensors themselves; bias may be null.
  struct Part {
    const mr_tensor* weight;
    const mr_tensor* bias;
    int64_t offset, rows, block, stride;
    int32_t interleaved = 0;
  };
  std::vector<Part> parts;
  int64_t in_width;                // K
  int64_t out_width;               // N, or N/2 where gated
  int activation;                  // mr_activation
  bool gated;                      // two parts of out_width rows: act(gate) * up
  bool accumulate;                 // out += y; out is float
  bool out_f32;                    // else bf16
  int weights = MR_WEIGHTS_16BIT;  // mr_weights, or BlockWeights
  int group = 0;                   // of int4, NF4 and blocks
  float act_a = 0, act_b = 0;      // of the activation
};

// Immutable after pack, but for its prefetch variants. Every output is one sum over K in
// ascending order (of int4, NF4 and blocks: of sums over groups) in one float accumulator, or an
// exact integer, whatever the kernel: so a row's result does not depend, bit for bit, on
// the other rows, their number, or the number of threads.
class Linear {
 public:
  // Rounds the weights to bf16 (nearest even), or quantizes them (exec/quantize.hpp), and
  // lays them out in panels; the biases become floats. The spec is trusted: shapes are checked by the caller.
  // Throws std::bad_alloc.
  static std::unique_ptr<Linear> pack(const LinearSpec& spec, Isa isa, ThreadPool& pool);
  static std::unique_ptr<Linear> pack(const LinearSpec& spec, const LinearKernels& kernels,
                                      ThreadPool& pool);
  // The same for several specs, whose weights lie together, so that small ones are in huge pages too.
  static std::vector<std::unique_ptr<Linear>> pack(std::span<const LinearSpec> specs, Isa isa,
                                                   ThreadPool& pool);
  // What pack made of the same spec and isa: the bytes of packed(), borrowed. nullptr where
  // there are fewer.
  static std::unique_ptr<Linear> borrow(const LinearSpec& spec, Isa isa,
                                        std::span<const std::byte> packed);
  ~Linear();

  // Weights, scales and biases; whole lines.
  std::span<const std::byte> packed() const { return {memory_, bytes_}; }

  // Rows in tiles of nearly equal height.
  struct Tiling {
    int rows, tiles;
    int first(int tile) const { return static_cast<int>(int64_t{rows} * tile / tiles); }
    int height(int tile) const { return first(tile + 1) - first(tile); }
  };
  // Rows as the tiles read them, quantized where the weights are: [tiles][units][rows of the
  // tile], cpu/linear/kernels.hpp.
  struct Operand {
    const void* data;
    const float* scales;    // [rows] of the quantized
    const int32_t* totals;  // [rows] of int8
    Tiling tiling;
  };
  // The most rows that pack_rows requests at once.
  static constexpr int kPackRows = 4;

  // in: [rows, in_width] bf16; out: [rows, out_width] float or bf16, apart from
  // in. Uses the pool's scratch.
  void run(const bf16* in, int rows, void* out, ThreadPool& pool) const;
  // The operand: of an op that reads_like() this one.
  void run(const Operand& in, void* out, ThreadPool& pool) const;

  // rows_of(first, count, thread) has rows [first, first + count), [count][in_width] bf16;
  // room: operand_room(rows) bytes, 64-byte aligned.
  template <class F>
  Operand pack_rows(int rows, void* room, ThreadPool& pool, F&& rows_of) const {
    const Operand operand = place(tiling(rows, pool.size()), room);
    const auto pack = [&](int i, int thread) {
      pack_task(operand, i, [&](int first, int count) { return rows_of(first, count, thread); });
    };
    for_operand(pool, rows * in_width_, pack_tasks(operand.tiling), pack);
    return operand;
  }
  size_t operand_room(int rows) const;
  // Whether rows are quantized.
  bool takes_codes() const;
  bool reads_like(const Linear& other) const {
    return &kernels_ == &other.kernels_ && in_width_ == other.in_width_ && group_ == other.group_ &&
           std::ranges::equal(order(), other.order());
  }

  // Sets the prefetch variant (cpu/linear/kernels.hpp) of tiles of this many rows. Any gives
  // the same bits.
  bool has_prefetch_variants() const { return blocks_ == nullptr; }
  void set_prefetch_variant(int rows, int variant) {
    variant_of_[rows] = static_cast<uint8_t>(variant);
  }

  const char* name() const;  // of the instructions that multiply
  int64_t in_width() const { return in_width_; }
  int64_t out_width() const { return out_width_; }
  int max_tile_rows() const;

  uint64_t bytes() const { return bytes_; }

 private:
  friend class Experts;  // runs the tasks of several ops together

  // Elements below which the driver alone packs an operand.
  static constexpr int64_t kSmallOperand = 16 << 10;
  template <class F>
  static void for_operand(ThreadPool& pool, int64_t elements, int tasks, F&& pack) {
    if (elements > kSmallOperand) return pool.parallel_for(tasks, pack);
    for (int i = 0; i < tasks; ++i) pack(i, 0);
  }

  // How the work of a run is cut up.
  struct Plan {
    Tiling tiling;
    int64_t chunk, chunks;  // panels of a task, and how many such there are
    int64_t groups;         // of tiles
    // With several tiles:
    bool multi_tile;  // all tiles go through a panel together
    int64_t block;    // units of K at a time
    bool expanded;
    int64_t room;  // floats of a thread: [chunk] blocks, [tiles][chunk] sums
  };
  struct Batch : Operand {
    void* out;
  };

  Linear(const LinearSpec& spec, const LinearKernels& kernels);
  struct Room;
  // Packs into memory, which is zero.
  void fill(const LinearSpec& spec, std::shared_ptr<Pages> memory, size_t at, ThreadPool& pool);
  // A place in the memory that pack fills.
  template <class T>
  T* own(const T* place) {
    return const_cast<T*>(place);
  }
  std::unique_ptr<BlockPanels> block_panels(const LinearSpec& spec) const;
  void pack_panel(const LinearSpec& spec, int64_t p, Room& room);
  void place_pairs(const bf16* row, int64_t p, int column);
  void place_words(const std::byte* row, int64_t p, int column);
  void place_codes(Room& room, int64_t p, int column);
  void place_int8(Room& room, int64_t p, int column);
  void place_int4(Room& room, int64_t p, int column);
  void place_fp8(Room& room, int64_t p, int column);
  void place_nf4(Room& room, int64_t p, int column);
  void place_blocks(const BlockType& type, const uint8_t* row, int64_t p, int column);
  void place_fp8_codes(const uint8_t* codes, int64_t n, std::byte* to, int64_t pair_bytes,
                       int column) const;
  void place_nf4_codes(const uint8_t* codes, int n, std::byte* to, int column) const;

  int columns() const;            // of a panel
  int64_t unit_elements() const;  // of a panel
  int64_t panel_unit_bytes() const;
  int64_t weight_bytes() const;
  int64_t panel_sums(int rows) const;
  const std::byte* panel(int64_t p) const;
  const float* panel_bias(int64_t p) const;
  const float* panel_scales(int64_t p) const;
  std::span<const int32_t> order() const;
  size_t operand_bytes(int64_t rows) const;
  const std::byte* operand_of(const Operand& o, int tile, int64_t unit) const;

  // The parts of an operand that are packed apart, each of kPackRows rows of a tile.
  int pack_tasks(Tiling tiling) const {
    return tiling.tiles * ((max_tile_rows() + kPackRows - 1) / kPackRows);
  }
  template <class F>
  void pack_task(const Operand& operand, int task, F&& rows_of) const {
    const int parts = pack_tasks({0, 1}), tile = task / parts;
    const int first = operand.tiling.first(tile) + task % parts * kPackRows;
    const int count = std::min(kPackRows, operand.tiling.first(tile + 1) - first);
    if (count > 0) pack_part(operand, tile, first, count, rows_of(first, count));
  }

  Plan plan(int rows, int threads) const;
  int64_t expanded_floats(const Plan& plan) const;  // of a panel's block; 0: it is not expanded
  static int tasks(const Plan& plan) { return static_cast<int>(plan.chunks * plan.groups); }
  void run_task(const Batch& batch, const Plan& plan, int task, float* room) const;
  static size_t room_bytes(const Plan& plan, int threads);
  Tiling tiling(int rows, int threads) const;
  Operand place(Tiling tiling, void* room) const;
  void pack_part(const Operand& to, int tile, int first, int count, const bf16* rows) const;
  void multiply(const Batch& batch, const Plan& plan, std::byte* rooms, ThreadPool& pool) const;
  void run_tile(const Batch& b, int tile, int64_t p, int64_t end) const;
  void run_multi_tile(const Batch& b, const Plan& plan, int64_t p, int64_t end, float* sums) const;
  void run_blocks(const Batch& b, const Plan& plan, int tile, int last_tile, int64_t p, int64_t end,
                  float* room) const;
  void run_panels(const Batch& b, const Plan& plan, int tile, int last_tile, int64_t p, int64_t end,
                  float* sums) const;
  void plan_panels(Plan& plan, int threads) const;
  void run_vectors(const Batch& b, int tile, int last_tile, int64_t p, int64_t end,
                   float* sums) const;
  bool by_spans(const Tiling& tiling) const;
  int64_t span_width() const;
  const std::byte* span_of(int64_t p, int64_t k, int vector) const;
  int64_t span_size(int64_t p) const;
  SpanTile expand(int64_t p, int64_t k, int elements, float* room) const;
  void run_spans(const Batch& b, int tile, int last_tile, int64_t p, int64_t end,
                 float* room) const;
  int64_t span_floats() const;
  void fetch_out(const Batch& b, int tile, int64_t p) const;
  void finish(const Batch& b, int tile, int64_t p, const float* sums) const;

  const LinearKernels& kernels_;
  const int weight_type_, group_;
  int64_t in_width_, out_width_;
  int64_t unit_;                             // elements of K, the last one filled up with zeros
  int64_t units_;                            // of K
  int64_t unit_bytes_, operand_unit_bytes_;  // of a panel, of a row
  int64_t panels_;
  int64_t cached_bytes_;  // of weights that a core keeps while rows stream past
  std::array<uint8_t, kMaxTileRows + 1> variant_of_{};
  std::unique_ptr<BlockPanels> blocks_;  // of blocks, else null
  int activation_;
  float act_a_, act_b_;
  bool gated_, accumulate_, out_f32_;
  // In the memory: [panels][units], see cpu/linear/kernels.hpp; [panels][2 * lanes] float scales
  // of int8 and FP8; [panels][2 * lanes] float biases; [in_width] the elements of a row that blocks meet. 0: there are none.
  size_t scales_at_ = 0, bias_at_ = 0, order_at_ = 0, bytes_ = 0;
  std::shared_ptr<Pages> own_;  // null where the memory is borrowed
  const std::byte* memory_ = nullptr;
};

}  // namespace millrace::cpu

#endif
