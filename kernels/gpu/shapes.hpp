// What host and device say to each other: the scalar arguments of each kernel,
// and the step's tables. Plain numbers only; memory is passed beside them.
#ifndef MILLRACE_GPU_SHAPES_HPP
#define MILLRACE_GPU_SHAPES_HPP

#include <cstdint>

namespace millrace::gpu {

constexpr int kSlabTokens = 16;   // MR_SLAB_TOKENS
constexpr int kDepth = 16;        // products of one block along the sum: one dpas of 16-bit types
constexpr int kColumnBlocks = 2;  // blocks of columns that a sub-group computes
// Queries that a sub-group of attention takes at once: more would not fit into
// the registers of a thread, which are half as many bytes where it has 8 lanes, and hold
// what codes are widened to, too, and with sinks the queries twice. scripts/sycl-isa holds this to be without spills.
constexpr int most_queries(int head_dim, int lanes, int kv_bits, bool sinks) {
  if (lanes == 16) {
    if (head_dim > 128) return 2;
    return head_dim <= (kv_bits == 16 ? 96 : 64) && !sinks ? 8 : 4;
  }
  if (sinks && kv_bits == 16 && head_dim <= 64) return 2;
  const int most = head_dim <= 64 ? 4 : head_dim <= 128 ? 2 : 1;
  return kv_bits == 4 && most > 1 ? most / 2 : most;
}

// The values of a head are cut into parts of at most this many elements, and a work-group computes one part.
constexpr int kMostPart = 256;
constexpr int value_part(int value_dim) { return value_dim < kMostPart ? value_dim : kMostPart; }
constexpr int value_parts(int value_dim) { return (value_dim + kMostPart - 1) / kMostPart; }

// Whether one query fits at all: what int4 is widened to leaves no room on 8 lanes beside the
// sums of a large head.
constexpr bool takes_kv_bits(int head_dim, int lanes, int kv_bits) {
  return lanes != 8 || kv_bits != 4 || head_dim <= 96;
}

// The queries of a step with beams, whose tokens' places take registers too.
constexpr int beam_queries(int most_queries) { return most_queries > 1 ? most_queries / 2 : 1; }

// Weights for NVIDIA's tensor cores (cuda/device/mma.hpp) lie in tiles of 16 columns by 8 words along
// the sum, 32 lanes of 4 words: the place of a word in its tile. A lane's four are its registers of
// the instruction. A word of int4 has eight codes, four words to a step: the low halves of word i's
// bytes are word i of the step, the high ones word i + 4.
constexpr int kMmaColumns = 16, kMmaTileWords = 128;
constexpr int mma_place(int word, int column) {
  return (column % 8 * 4 + word % 4) * 4 + word / 4 * 2 + column / 8;
}

// What a work-group of the kernels for many rows computes: groups of two blocks of columns, by rows
// of warps that take n times 8 rows each; stages of the sum are under way together.
struct MmaTile {
  int groups, warp_rows, n, stages;

  constexpr int rows() const { return warp_rows * n * 8; }
  constexpr int warps() const { return groups * warp_rows; }
};
constexpr MmaTile kLargeTile{4, 2, 4, 3}, kLargeTileInt4{4, 2, 4, 4};
constexpr int kMostFewRows = 64;   // of kernels whose sub-groups take a slice each
constexpr int kMmaStageSteps = 4;  // of a stage: 32 bytes of a row each
// Bytes from row to row of a stage: quads of lanes lie in different banks.
constexpr int kMmaRowStride = 160;
// Bytes of local memory. tile_steps: of a tile of weights.
constexpr int mma_stage_bytes(MmaTile tile, int tile_steps) {
  return tile.rows() * kMmaRowStride +
         tile.groups * kColumnBlocks * kMmaStageSteps / tile_steps * kMmaTileWords * 4;
}
constexpr int mma_local_bytes(MmaTile tile, int tile_steps) {
  const int operands = tile.stages * mma_stage_bytes(tile, tile_steps);
  const int totals = tile.rows() * (tile.groups * kColumnBlocks * kMmaColumns + 4) * 4;
  return operands > totals ? operands : totals;
}

// The same by products of four warps (wgmma): warpgroups of two groups of columns.
struct WideTile {
  int warpgroups, rows, stages;

  constexpr int groups() const { return 2 * warpgroups; }
};
constexpr WideTile kWide{1, 128, 4}, kWidest{2, 128, 4};
constexpr WideTile kWideInt4{1, 64, 4}, kWidestInt4{2, 64, 4};
constexpr int wide_stage_bytes(WideTile tile, int tile_steps) {
  return tile.rows * kMmaStageSteps * 32 +
         tile.groups() * kColumnBlocks * kMmaStageSteps / tile_steps * kMmaTileWords * 4;
}
constexpr int wide_local_bytes(WideTile tile, int tile_steps) {
  const int operands = tile.stages * wide_stage_bytes(tile, tile_steps);
  const int totals = tile.rows * (tile.groups() * kColumnBlocks * kMmaColumns + 4) * 4;
  return (operands > totals ? operands : totals) + 1024;  // it begins at a multiple of that
}

constexpr int kNormItems = 128;    // work-items of a norm's row
constexpr int kDrawItems = 256;    // work-items of a row of logits
constexpr int kRowItems = 128;     // work-items of a row that is only copied
constexpr int kHeadsPerGroup = 4;  // sub-groups of a work-group of rope_store

// Elements that ranks have each a part of the sum of, by the addresses of their first ones.
constexpr int kMostRanks = 8;
struct RankSums {
  uint64_t in[kMostRanks];
  int64_t n;
  int32_t ranks, accumulate;
};

// mr_draw.
struct DrawEntry {
  int32_t row, top_k;
  float per_nat;
  int32_t mask;
  uint64_t top_p, least, random;
};
struct DrawShape {
  int32_t classes;
};
constexpr int kDrawLocalWords = 4 * kDrawItems + 8;

// Some rows of an expert, of rows sorted by expert; 0 rows: there is none.
struct ExpertTile {
  int32_t expert, first_row, rows;
};

// Where an expert's weights lie after those of the one before it: words, scales and columns.
struct ExpertStrides {
  int64_t words, scales, columns;
};

// What a linear op ends with: mr_activation, and its a and b.
struct Activation {
  int32_t kind;
  float a, b;
};

// The table is [vocab][width], or, where it is the logits' weights too, as these lie:
// [block of `columns` tokens][step of `deep` elements][columns][deep].
struct EmbedShape {
  int32_t width;
  int32_t columns, steps, deep;                  // of a table in blocks; 0: it has rows
  int32_t table_type, position_type, type_type;  // mr_dtype; -1: absent
  int32_t typed;                                 // rows have types of their own
  int32_t position_offset;
  float scale;
  int32_t out_f32;
  int32_t
      added;  // rows of the table, where its rows are added to out's: others take row 0; 0: they are not
};

// Elements [offset, offset + groups * width) of each row of `stride`, group by group. Weights and
// biases of group g begin at g times these numbers.
struct NormShape {
  int32_t width;
  int32_t stride, offset, groups;
  int32_t group_weights, group_biases;
  int32_t layer_norm, bias, out_f32;
  int32_t accumulate;  // out += y, with out_f32
  float eps;
  int32_t plain;         // the row as it is, times its weight
  float scale;           // of what out has then; 0: 1
  int32_t padded_width;  // of a row of codes, where the norm leaves them; else 0
};

// out[rows][width] from in[rows][depth]; weights [column blocks][depth blocks][8][lanes].
struct LinearShape {
  int32_t rows, depth, width;
  int32_t depth_blocks;
  int32_t slices, slice_blocks;  // the sum is cut into slices, one per sub-group of a work-group
  int32_t tiles;                 // of experts
  ExpertStrides expert;
  Activation activation;
  int32_t gated, accumulate, bias, out_f32;
};

constexpr int kMostOwnRows = 4;     // that our kernels compute over oneDNN's weights
constexpr int kPackedColumns = 64;  // of a block of oneDNN's weights, device/packed.cpp
constexpr int kWidened = 1024;      // operands that a work-group makes floats of, device/packed.cpp

// out[rows][width] from in[rows][depth], or from sums [rows][columns].
struct PackedShape {
  int32_t rows, depth, width;
  int32_t padded_depth, chunk;  // of the weights; of the sum
  int32_t columns;
  Activation activation;
  int32_t gated, accumulate, bias, out_f32;
};

constexpr int kSortItems = 256;  // of the work-group that sorts rows by expert

// mr_route_scores
constexpr int kRouteSoftmax = 0, kRouteSigmoid = 1, kRouteSoftmaxChosen = 2, kRouteSparseMixer = 3;

struct RouteShape {
  int32_t experts, top_k, scores, bias, factors, normalize, groups, top_groups, group_scores;
  float scale, jitter;
};

// A pair is a row and one of its experts.
struct SortShape {
  int32_t pairs, experts, tile_rows, tiles;
};

struct GatherShape {
  int32_t width;
  int32_t sharing;  // pairs that have the same row
  int32_t in_f32, weighs;
};

// Of MR_ROUTED_HEADS: rows [heads][width + tail], and rows sorted by head [heads][rows][width]; on the other side of
// the products `width` is theirs.
struct HeadShape {
  int32_t rows, heads, width, tail;
  int32_t tile_rows;
  int32_t f32;  // the rows that are not sorted
};

struct SumShape {
  int32_t width, top_k;
  int32_t accumulate, weighs, out_f32;
};

// An op's state of a sequence: `first` is its first float in the sequence's first `slabs` slabs.
struct StateShape {
  uint32_t first, slab_floats;
  int32_t slabs;
};

// As mr_conv says; weights are [kernel][channels].
struct ConvShape {
  StateShape state;
  int32_t channels, kernel, offset, times, gate;
  int32_t in_width, bias, silu, out_f32;
};

constexpr int kMostStateKeys = 512;  // of a head, whose state is in local memory

// mr_recur_rule
constexpr int kRecurDelta = 0, kRecurSsm = 1, kRecurChannels = 2, kRecurScan = 3,
              kRecurRetention = 4;

// As mr_recur says.
struct RecurShape {
  StateShape state;
  int32_t rule, heads, key_heads, keys, values, state_row;
  int32_t q, k, v, decay, rate;
  int32_t in_width, gates_width, rates_width;
  float least_step, most_step, rate_scale;
};

// mr_gate_activation
constexpr int kGateSilu = 0, kGateSigmoid = 1, kGateGelu = 3;

// As mr_gate says; without a norm a group is the row. each: a group has weights of its own.
struct GateShape {
  int32_t width, group, gates_width, offset;
  int32_t norm, each, first, activation, sparse, out_f32;
  float eps, cutoff;
};

constexpr int kMostStreams = 8;  // MR_MAX_STREAMS

// mr_altup_step
constexpr int kAltUpPredict = 0, kAltUpMatch = 2;

// As mr_altup says. streams: addresses of rows of `width` floats.
struct AltUpShape {
  uint64_t streams[kMostStreams];
  int32_t step, count, active, width;
};

constexpr int kCodeDepth = 32;   // products of one block of int8 codes along the sum
constexpr int kDepthCodes = 64;  // the depth of weights as codes is padded to a multiple

// out[rows][width] of weights that are codes; device/blocks.hpp says how they lie. From rows of
// codes [rows][padded_depth] (int8, int4), or of operands [rows][depth] (FP8, NF4).
// A step is kCodeDepth of the depth. Where groups of weights have their scales (int4, NF4), a group
// is group_steps of them, and a slice whole groups.
struct CodedShape {
  int32_t rows, width;
  int32_t depth, padded_depth, steps;
  int32_t blocks;  // of columns
  int32_t groups, group_steps;
  int32_t slices, slice_steps;
  int32_t tiles;  // of experts
  ExpertStrides expert;
  Activation activation;
  int32_t gated, accumulate, bias, out_f32;
};

// A sequence's part of a step. Its slabs are entries [slabs, ...) of the slab table, which
// holds addresses.
// The rows of a beam search are all at `position`: tokens before `prompt` are the
// sequence's own, what follows is a response. Row r sees at its response's token
// i that of beam index[r][i], whose slabs begin at entry responses[beam]; index
// [rows][steps] and responses [rows] are places in the table of the beams.
// Sequences that share their first tokens are a group. It has an entry after those of all
// sequences, with the slabs of one of them and the rows of all: at index in the table of the
// beams [rows] pairs of the row of the step and its position. Its first_row is the place of its
// first row among the rows of all groups.
struct SequenceEntry {
  int32_t first_row, rows, position, slabs;
  int32_t prompt;  // kNoPrompt: no beams
  int32_t steps, responses, index;
  int32_t shared;  // tokens that the group shares; 0: in no group
  int32_t states;  // of a member: the place of its first row there
};
constexpr int32_t kNoPrompt = INT32_MAX;

// Keys and values lie in a slab as [layer][K|V][KV head] blocks of 16 tokens, one after the
// other. A token's key or value of a head is, by the bits of an element,
//   16  operands
//    8  int8 codes, then a float32 scale
//    4  for each group of 32 elements 16 bytes, byte i with element i in its low half and element
//       i + 16 in its high one, each plus 8; then a bf16 scale for each group
// in whole words of 4 bytes.
constexpr int kKvGroup = 32;  // MR_KV_GROUP
constexpr int kv_groups(int head_dim) { return (head_dim + kKvGroup - 1) / kKvGroup; }
constexpr int kv_token_bytes(int head_dim, int bits) {
  if (bits == 16) return 2 * head_dim;
  if (bits == 8) return head_dim + 4;
  return (kv_groups(head_dim) * (kKvGroup / 2 + 2) + 3) / 4 * 4;
}

// Where a layer's keys and values lie in a slab.
struct KvShape {
  int64_t keys;    // bytes before the first block of this layer's keys
  int64_t values;  // and of its values
  int32_t kv_heads, head_dim, bits;
};

// stored: keys and values are in the cache already; latent: values are no part of a row.
struct RopeShape {
  KvShape kv;
  int32_t value_dim, in_width;
  int32_t stored, latent;
  int32_t rows, heads;
  int32_t q_norm, k_norm;
  int32_t rotary_dim, rotary_offset, interleaved;
  int32_t sinks, window;
  int32_t norm_last;
  int32_t q_scales, q_scale_offset, q_scale_tokens;  // q_scales: how many; 0: none
  float rotary_scale, eps;
};

// Some queries of one sequence: pairs of row and head, counted row by row over
// the heads of a KV head, from `first` on.
struct AttentionTask {
  int32_t sequence, first;
};

// Attention by mma (cuda/device/attention_mma.cpp).
constexpr int kPieceKeys = 64;       // keys that have a softmax of their own
constexpr int kProductQueries = 16;  // of one product
// A warp of a prompt's tasks keeps the sums of this number of queries in its registers.
constexpr int kPromptWarps = 4;
constexpr int kPromptWarpQueries = 16;
// Sequences with up to this many queries of a KV head are not a prompt's: their tasks have up to
// kProductQueries of them.
constexpr int kMostDecodeQueries = 64;
constexpr int kPromptQueries = kPromptWarps * kPromptWarpQueries;
// A warp of the other tasks takes a piece at a time, whose values it keeps in local memory.
constexpr int decode_warps(int head_dim) { return head_dim <= 64 ? 8 : head_dim <= 128 ? 4 : 3; }
// Tokens lie in local memory in rows of 16-byte chunks, such that lanes that read together read
// from different banks.
constexpr int chunks(int head_dim) { return head_dim / 8; }
constexpr int key_chunks(int head_dim) { return (chunks(head_dim) + 3) / 4 * 4; }
// Values are in parts of 128 elements, one after the other; a row of the last one may be padded.
constexpr int kPartChunks = 16;
constexpr int part_chunks(int head_dim, int part) {
  const int rest = chunks(head_dim) - part * kPartChunks;
  return rest >= kPartChunks || rest % 8 == 0 ? (rest < kPartChunks ? rest : kPartChunks)
                                              : rest | 1;
}
constexpr int value_chunks(int head_dim) {
  const int whole = chunks(head_dim) / kPartChunks;
  return whole * kPartChunks + part_chunks(head_dim, whole);
}
constexpr int prompt_buffers(int head_dim) { return head_dim <= 128 ? 2 : 1; }
// Whether a warp's queries are in local memory too, 2 bytes an element.
constexpr bool keeps_queries(int head_dim) { return head_dim > 128; }
constexpr int prompt_local_bytes(int head_dim) {
  const int piece = kPieceKeys * 16 * (key_chunks(head_dim) + value_chunks(head_dim));
  const int queries = kPromptQueries * key_chunks(head_dim) * 16;
  return prompt_buffers(head_dim) * piece + (keeps_queries(head_dim) ? queries : 0);
}
// Per warp the values, in whose place their sums are put, and of 16 queries maximum and total.
constexpr int decode_local_bytes(int head_dim) {
  return decode_warps(head_dim) * (kPieceKeys * 16 * value_chunks(head_dim) +
                                   kProductQueries * 2 * static_cast<int>(sizeof(float)));
}

// With beams each token has an address of its own.
constexpr int beam_local_bytes(int head_dim) {
  return decode_local_bytes(head_dim) +
         decode_warps(head_dim) * kPieceKeys * static_cast<int>(sizeof(uint64_t));
}

// What a launch computes. The shared keys of groups leave their queries' states in memory, from
// which those of the sequences resume: [row of a group][head of a KV head][KV head][part of the
// values] states.
constexpr int kAllKeys = 0, kSharedKeys = 1, kOwnKeys = 2;
// Floats of a query's state: for each stripe the largest score, the total, and the sums of a part of the
// values, each for all lanes.
constexpr int state_floats(int stripes, int lanes, int padded_part) {
  return stripes * (2 * lanes + padded_part);
}
// Likewise by mma: the largest score, the total, and the sums of values.
constexpr int mma_state_floats(int head_dim) { return 2 + head_dim; }

struct AttentionShape {
  KvShape kv;
  int32_t in_width, heads, window, sinks, alibi, out_f32;
  int32_t chunked, null_scores, both_ways;
  int32_t keys;  // kAllKeys, ...
  float scale, softcap;
};

}  // namespace millrace::gpu

#endif
