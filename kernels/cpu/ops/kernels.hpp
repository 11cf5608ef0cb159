// What differs between instruction sets in the ops other than linear. One table
// for each, in cpu/kernels_<isa>.cpp.
#ifndef MILLRACE_CPU_OPS_KERNELS_HPP
#define MILLRACE_CPU_OPS_KERNELS_HPP

#include <cstddef>
#include <cstdint>

#include "cpu/machine/isa.hpp"
#include "cpu/ops/kv_codes.hpp"
#include "cpu/ops/states.hpp"
#include "exec/bf16.hpp"
#include "exec/quantize.hpp"
#include "exec/step_row.hpp"

namespace millrace::cpu {

// A KV head's 16 tokens lie as attention multiplies them, codes as cpu/ops/kv_codes.hpp has them,
// 16 bits so:
//   keys    [key width / 2][16 tokens][2] bf16
//   values  [8][value width][2 tokens] bf16
// Latents are keys only: a block of values is made of them where they are read.

// Attention's arithmetic is fixed by absolute positions, so that it does not
// depend on the company of a row: keys are taken in blocks of kBlockTokens, with
// an online softmax from block to block, and blocks in pieces of kPieceTokens,
// each with a softmax of its own that is merged in order. Keys that a row does
// not see contribute exactly nothing. Sinks, and the bf16 of KIVI, are a piece of their own.
inline constexpr int kBlockTokens = 64;
inline constexpr int kPieceTokens = 1024;

// The largest key or value, and the most queries of a tile.
inline constexpr int kMaxHeadDim = 576;
inline constexpr int kMaxTileQueries = 64;

struct NormRow {
  const float* weight;
  const float* bias;  // or null
  int width;
  float eps;
  bool layer;               // LayerNorm, else RMS
  bool out_f32;             // else bf16
  bool accumulate = false;  // out += y; with out_f32
  bool plain = false;       // no norm: times weight, plus bias
  float scale = 1;          // of what out has then
};

// Heads of one row, side by side.
struct HeadsRow {
  int heads, head_dim;
  const float* norm;  // [head_dim] or null
  float eps;
  int rotary_dim;
  bool interleaved;
  const float* cosine;  // [rotary_dim / 2]
  const float* sine;
  bool norm_last = false;  // after the rotation
  int rotary_offset = 0;   // of the first rotated element
};

// The widths of keys and values.
struct HeadShape {
  int key, value;
  bool latent = false;  // a value is the beginning of its key

  int larger() const { return key > value ? key : value; }
};

// Where the beams of a tile have their past. Tokens before `prompt` are the tile's
// keys and values; after them, token prompt + s of row r is token s of region
// index[r][s]. Only addresses differ from those of other rows, not the arithmetic.
struct BeamRows {
  std::byte* const* regions = nullptr;  // null: no beams
  const int32_t* index;                 // [rows][steps]
  int steps, prompt;
  int shared;         // tokens before it are the same for all rows
  size_t key, value;  // the KV head's blocks inside a slab
};

// Which keys of a sequence a tile has. With KIVI the last ones are bf16, and those before them
// codes.
enum class Recent : uint8_t {
  all,      // without KIVI
  without,  // codes: those before kivi_exact
  only      // bf16: the others
};

// Queries of `heads` heads of one KV head, of `rows` consecutive tokens of one
// sequence, of `rows` beams, or of rows of several sequences that share the keys. Query i is row
// i / heads, head i % heads.
struct AttentionTile {
  const float* q;    // first row, or the step's if there are step_rows; first head
  int64_t q_stride;  // floats between rows
  int rows, heads;
  HeadShape head;
  int position;    // of the first row
  int begin, end;  // positions of the keys that some row sees; shared ones before are left out
  // Whether the state has some keys of the first piece already: those before `begin`.
  bool resumes = false;
  // [rows] of several sequences, which all see [begin, end), or null.
  const StepRow* step_rows = nullptr;
  int window;  // 0: none
  bool chunked;
  bool both_ways = false;  // rows see keys after them too
  float softcap;           // 0: none
  float scale;
  const float* slopes;       // ALiBi, [heads], or null
  const float* null_scores;  // [heads], or null
  const std::byte* keys;     // the KV head's block in the region's first slab
  const std::byte* values;
  size_t slab_bytes;
  BeamRows beams;
  Recent recent = Recent::all;
  // With Recent::only: the sequence's first key and value of the step, those of its rows q_stride
  // apart, and the KV head's blocks in the region's first slab.
  int step_position = 0;
  const float *step_keys = nullptr, *step_values = nullptr;
  const std::byte *recent_keys = nullptr, *recent_values = nullptr;
  // The tile that will follow, whose first slabs are prefetched: bytes from this one's
  // keys (and values) to those of the first slab that the other sees, and how many it sees.
  size_t next = 0;
  int next_slabs = 0;

  int queries() const { return rows * heads; }
  const float* query(int i) const {
    const int row = step_rows != nullptr ? step_rows[i / heads].row : i / heads;
    return q + row * q_stride + int64_t{i % heads} * head.key;
  }
  int row_position(int row) const {
    if (step_rows != nullptr) return step_rows[row].position;
    return beams.regions == nullptr ? position + row : position;
  }
  // Slabs of the region that are read where they lie.
  int slabs_in_place() const {
    return beams.regions != nullptr ? beams.prompt / kSlabTokens : (end - 1) / kSlabTokens + 1;
  }
  // First and last of the tile's positions that a row sees.
  int first_visible(int row_position) const {
    int first = window > 0 && row_position >= window ? row_position - window + 1 : 0;
    if (chunked && first > 0) first = row_position - row_position % window;
    if (recent == Recent::only) first = kivi_exact(row_position);
    return first > begin ? first : begin;
  }
  int last_visible(int row_position) const {
    int last = recent == Recent::without ? kivi_exact(row_position) - 1 : row_position;
    if (both_ways) last = window > 0 ? row_position + window - 1 : end - 1;
    return last < end ? last : end - 1;
  }
  int first_piece() const { return begin / kPieceTokens; }
  int end_piece() const { return (end - 1) / kPieceTokens + 1; }
};

// The softmax of queries over some keys: queries [first, ...) of a state of `queries`, which has
// state_floats(value width, queries) floats.
struct AttentionState {
  float* memory;
  int queries, first;
};

struct AttentionKernels {
  size_t (*scratch_bytes)(HeadShape);  // per thread
  size_t (*state_floats)(int value, int queries);
  // The tile's queries over its keys of one piece. Scratch holds the queries
  // after prepare().
  void (*prepare)(const AttentionTile&, void* scratch);
  void (*piece)(const AttentionTile&, int piece, void* scratch, const AttentionState&);
  // total += piece
  void (*merge)(const AttentionTile&, const AttentionState& piece, const AttentionState& total);
  // out: first row, first head; bf16 or float.
  void (*finish)(const AttentionTile&, const AttentionState& total, int64_t out_stride,
                 bool out_f32, void* out);
};

// The names of classes of kernels: one is what gives the same bits. Steps of kX86Fma run with
// results below the least normal number flushed to zero, as its vdpbf16ps does. Tiles of AMX
// add up products of bf16 in another order.
inline constexpr const char* kPortable = "portable";
inline constexpr const char* kX86Fma = "x86-fma";
inline constexpr const char* kAmxBf16 = "amx-bf16";
inline constexpr const char* kAmxAttention = "amx-attention";

struct OpKernels {
  Isa isa;
  const char* numerics;  // the class
  bool flush;            // FloatMode of its steps
  void (*norm)(const NormRow&, const float* in, void* out);
  void (*rotate)(const HeadsRow&, float* heads);  // norm and rotary embedding in place
  void (*to_bf16)(const float* in, int64_t n, bf16* out);
  void (*conv)(const ConvTask&);
  void (*recur)(const RecurTask&);
  void (*scan)(const ScanTask&);
  void (*gate)(const GateRow&, const float* in, const float* gates, void* out,
               float* room);  // room: [width]
  // A row's streams, in place; x: of CORRECT.
  void (*altup)(const AltUpRow&, float* const* streams, const float* coefs, const float* x);
  AttentionKernels bf16_kv, kivi_kv;
  // Adds what bf16_kv's queries gave each key of their attention (cpu/attention/shares.hpp).
  void (*add_shares)(const AttentionTile&, const void* scratch, const AttentionState& total,
                     size_t sums);
};

const OpKernels& op_kernels_portable();
const OpKernels& op_kernels_avx2();
const OpKernels& op_kernels_avx512();
const OpKernels& op_kernels_avx512_bf16();
const OpKernels& op_kernels_amx();
const OpKernels& op_kernels(Isa isa);

// Over codes of 8 or 4 bits; attention_vnni where has_vnni().
const AttentionKernels& attention_portable(int bits);
const AttentionKernels& attention_avx2(int bits);
const AttentionKernels& attention_vnni(int bits);
// For a KV cache of the type, an mr_kv_type.
const AttentionKernels& attention_kernels(const OpKernels&, int32_t kv_type);
// The class of its bits.
const char* attention_numerics(const OpKernels&, int32_t kv_type);

// Queries per tile: as many as keep the sums in the first-level cache. Latents are read by all query
// heads, and each tile makes its blocks of values: more queries share them.
inline int tile_queries(HeadShape head) {
  const int most = 4096 / head.larger();
  return most > kMaxTileQueries || head.latent ? kMaxTileQueries : most;
}

}  // namespace millrace::cpu

#endif
