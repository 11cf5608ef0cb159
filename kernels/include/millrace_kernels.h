/* Millrace kernels: the C ABI between the Go pipeline and a compute backend.
 *
 * A backend ("ref", "cpu", later "sycl") is one table of functions, mr_backend.
 * The static ones are millrace_backend_ref() and millrace_backend_cpu(); a
 * shared library exports millrace_backend(). The host checks abi_version first.
 *
 * Rules: fixed-width integers; int32 status, 0 is success; the message goes
 * into the caller's mr_error; no C++ exception leaves; memory that the backend
 * allocates is freed by the backend. A program and its regions are driven by
 * one thread at a time. Nothing is ever dlclose'd.
 */
#ifndef MILLRACE_KERNELS_H
#define MILLRACE_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MR_ABI_VERSION 24
#define MR_SLAB_TOKENS 16 /* tokens per KV slab: the step of the segment KV cache */

typedef enum mr_status {
  MR_OK = 0,
  MR_INVALID = 1, /* the caller's fault: message names found and expected */
  MR_NO_MEMORY = 2,
  MR_UNSUPPORTED = 3, /* valid, but not on this backend or machine */
  MR_DEVICE = 4       /* the device failed; the program must be reloaded */
} mr_status;

typedef struct mr_error {
  int32_t status;
  char message[508];
} mr_error;

/* MR_BLOCKS + n: each row in the blocks of GGUF's type n (ggml_type in ggml.h), from 128 on of our own. Tables and weights of
 * linear ops may be of blocks; exec/blocks.cpp lists the types. */
typedef enum mr_dtype { MR_F32 = 0, MR_F16 = 1, MR_BF16 = 2, MR_BLOCKS = 256 } mr_dtype;

/* A weight as it lies in the checkpoint: row-major, borrowed. It must stay
 * mapped until program_unload. Weights of linear ops may be columns of a matrix. */
typedef struct mr_tensor {
  const void* data;
  int32_t dtype; /* mr_dtype, or MR_BLOCKS and a type */
  int32_t rank;  /* 1 or 2 */
  int64_t dims[2];
  int64_t row_bytes; /* from one row of a matrix to the next; 0: those of dims[1] */
  /* [dims[1]], for weights in blocks: element i of each row is that of column order[i]. NULL: i. All parts of an op
   * of MR_WEIGHTS_BLOCKS, or of an expert, have one order. */
  const int32_t* order;
} mr_tensor;

/* ---- The op program ------------------------------------------------------
 * A flat list of fused ops over slots. A slot is a [rows, width] matrix, one
 * row per token of the step; after SELECT_ROWS, one row per output.
 */
typedef enum mr_slot_type {
  MR_SLOT_F32 = 0,    /* residual stream, QKV, logits */
  MR_SLOT_OPERAND = 1 /* feeds a linear op: the backend keeps it in the type of its products */
} mr_slot_type;

typedef struct mr_slot {
  int32_t type; /* mr_slot_type */
  int32_t width;
} mr_slot;

typedef enum mr_op_kind {
  MR_OP_EMBED = 1, /* out[r] = scale*table[token[r]] (+ positions[position[r] + position_offset])
                          * (+ types[type[r]]), or out[r] += it;
                          * out is of either slot type; one of the two tables may be absent (OPT adds
                          * the positions after a projection of the table) */
  MR_OP_NORM = 2,  /* out[r] = norm(in[r]) * weight + bias, or out[r] += it; in == out is allowed */
  MR_OP_LINEAR = 3, /* out[r] = act(in[r] . W^T + b), see below; an F32 `in` (post-norm models) is
                          * rounded to the operand type first */
  MR_OP_ROPE_STORE =
      4, /* per-head norm and rotary embedding of q and k in place in `in`; k and v to the KV cache */
  MR_OP_ATTENTION =
      5, /* out[r] = softmax(scale * q[r] . K^T + mask) . V over the row's own sequence */
  MR_OP_SELECT_ROWS = 6, /* out[i] = in[output_rows[i]], or by mr_select another row of the output's
                          * sequence, or their mean; ops after the first one run on the outputs'
                          * rows, and what they read of before is selected too */
  MR_OP_ROUTE = 7,  /* out[r][j] = (expert, its weight), of the top_k experts by the logits in[r] */
  MR_OP_CONV = 8,   /* a convolution over the last rows of the sequence, channel by channel */
  MR_OP_RECUR = 9,  /* out[r] = the sequence's state, which row r changes, at a query */
  MR_OP_GATE = 10,  /* out[r] = in[r] * act(a row beside it), normed before or after */
  MR_OP_ALTUP = 11, /* a step of alternating updates, in place in the slots in, in + 1, ... */
  MR_OP_ALL_REDUCE = 12 /* out[r] = the sum of in[r] over all ranks, or out[r] += it */
} mr_op_kind;

/* What becomes of the logits of a row's experts. */
typedef enum mr_route_scores {
  MR_ROUTE_SOFTMAX = 0,        /* over all experts */
  MR_ROUTE_SIGMOID = 1,        /* of each */
  MR_ROUTE_SOFTMAX_CHOSEN = 2, /* over the chosen ones, which the logits themselves choose */
  /* Over those that were not chosen before a choice and are near its logit m: whose
   * (m - logit) / max(|logit|, m) is up to twice the jitter (SparseMixer, arXiv:2409.12136) */
  MR_ROUTE_SPARSE_MIXER = 3
} mr_route_scores;

/* The rows of a linear op that has experts. */
typedef enum mr_routed {
  MR_ROUTED_NONE = 0,
  MR_ROUTED_EACH = 1, /* out[r][j] = y of the row's expert j: out is [rows, top_k x N] */
  MR_ROUTED_SUM =
      2, /* in is [rows, top_k x in_width], out[r] = sum of weight x y over the row's experts */
  /* Every row meets all of them, each with a part of it: in is [rows, experts x (in_width + tail)] and F32 where
   * there is a tail, out[r][e] = y of expert e for the first in_width elements of in[r][e], then its tail. */
  MR_ROUTED_HEADS = 3
} mr_routed;

typedef enum mr_norm_kind {
  MR_NORM_RMS = 0,
  MR_NORM_LAYER = 1,
  MR_NORM_NONE = 2 /* the row as it is: times weight, plus bias */
} mr_norm_kind;

typedef enum mr_activation {
  MR_ACT_NONE = 0,
  MR_ACT_SILU = 1,
  MR_ACT_GELU_TANH = 2, /* 0.5x(1+tanh(sqrt(2/pi)(x+0.044715x^3))) */
  MR_ACT_GELU_ERF = 3,
  MR_ACT_RELU = 4,
  MR_ACT_RELU2 = 5,   /* relu(x)^2 */
  MR_ACT_XIELU = 6,   /* x/2 + a x^2 for x > 0, x/2 + b (e^x - 1 - x) else (arXiv:2411.13010) */
  MR_ACT_CLAMP = 7,   /* x within -a to a */
  MR_ACT_SOFTCAP = 8, /* a tanh(x / a) */
  /* In gated ops, y = g sigmoid(b g) * (u + 1), with g the gate up to a, and u within -a to a
   * (gpt-oss) */
  MR_ACT_SWIGLU = 9
} mr_activation;

/* How a linear op keeps its weights. Those of integers are multiplied with the rows of
 * `in` quantized to int8, each by its own scale, largest magnitude / 127 (W8A8, W4A8);
 * sums of the codes' products are exact integers. Those of FP8 and NF4 are multiplied with
 * the rows as they are. */
typedef enum mr_weights {
  MR_WEIGHTS_16BIT = 0, /* the type of the backend's operands */
  MR_WEIGHTS_INT8 = 1,  /* a scale for each output row */
  MR_WEIGHTS_INT4 = 2,  /* a bf16 scale for each `group` elements of an output row */
  MR_WEIGHTS_FP8 = 3,   /* e4m3fn; a scale for each output row, largest magnitude / 448 */
  MR_WEIGHTS_NF4 = 4,   /* one of 16 levels, -1 to 1; a bf16 scale for each `group` elements of an
                         * output row, their largest magnitude */
  /* All parts are of blocks (MR_BLOCKS), whose codes and scales are kept at their own precision. A row of
   * `in` is as it is for FP8 and NF4, and for others quantized to int8 in groups of its elements, each by its own
   * scale: of 16 where a part's type has such, else of 32. MR_UNSUPPORTED where the device lacks keeps_blocks. */
  MR_WEIGHTS_BLOCKS = 5
} mr_weights;

/* How the KV cache keeps an element. Codes are made when a token is stored, of its keys
 * and of its values in each KV head: each element is scale * code. */
typedef enum mr_kv_type {
  MR_KV_AUTO = 0, /* a float, of the type that the backend has chosen: mr_dtype + 1 */
  MR_KV_F32 = 1,
  MR_KV_F16 = 2,
  MR_KV_BF16 = 3,
  MR_KV_INT8 = 4, /* -127 to 127; a float32 scale for the head, largest magnitude / 127 */
  MR_KV_INT4 = 5, /* -8 to 7; a bf16 scale for each MR_KV_GROUP elements of the head */
  /* Codes 0 to 3 of zero + scale * code, both bf16 (KIVI, arXiv:2402.02750): of keys for each
   * element of the head over MR_KIVI_TOKENS tokens, of values for each token over MR_KV_GROUP
   * elements. They are made of bf16 when the last token of the MR_KIVI_TOKENS is stored. The last
   * MR_KIVI_TOKENS tokens that a row sees, and those after the last whole MR_KIVI_TOKENS before
   * them, are bf16 for it: the row at position p sees as codes those before
   * (p + 1 - MR_KIVI_TOKENS) / MR_KIVI_TOKENS * MR_KIVI_TOKENS. Without windows, beams, and rows
   * that are computed a second time with other tokens. */
  MR_KV_KIVI = 6
} mr_kv_type;

#define MR_KV_GROUP 32
#define MR_KIVI_TOKENS 32
#define MR_H2O_TOKENS 64 /* tokens from one eviction of H2O to the next */

/* Rows of a linear op's weight, taken from a checkpoint tensor: output row i
 * of the part is tensor row  offset + (i / block) * stride + i % block.
 * block == rows for a plain slice; BLOOM's fused [head][q|k|v][head_dim] is
 * block = head_dim, stride = 3*head_dim. Where the halves of a block are
 * interleaved (GGUF's q and k), the tensor has row j of the first half at 2j
 * and of the second at 2j + 1, in place of i % block. The bias (a rank-1
 * tensor) is taken by the same rule. */
typedef struct mr_part {
  int32_t weight; /* index of a [any, in_width] tensor */
  int32_t bias;   /* index of an [any] tensor, or -1 */
  int64_t offset, rows, block, stride;
  int32_t interleaved; /* 1: block is even, and rows is whole blocks */
  int32_t reserved;
} mr_part;

#define MR_MAX_PARTS 3

/* EMBED. table: [vocab, width], or -1; positions: [any, width], or -1; types: [1 or 2, width], or -1.
 * A row's type is 1 from mr_sequence.second on, else 0; with types of one row all have that.
 * With accumulate = 1, out is an F32 slot to whose rows those of a table alone are added. That table may have
 * fewer rows than the vocabulary: tokens beyond them take row 0 (Gemma 3n). MR_UNSUPPORTED where the backend
 * lacks types or accumulate. */
typedef struct mr_embed {
  int32_t table, positions;
  int32_t position_offset;
  float scale;
  int32_t accumulate;
  int32_t types;
} mr_embed;

/* NORM. weight: [width], or -1 (all are 1); bias: [width], or -1.
 *
 * With width above 0, in and out are the same slot, and of its rows only the elements [offset, offset
 * + width) are normed, each of `groups` equal groups by itself. weight and bias are [width], or of
 * one group, or -1. MR_UNSUPPORTED where the backend has none of this. */
typedef struct mr_norm {
  int32_t weight, bias;
  int32_t kind; /* mr_norm_kind */
  float eps;
  int32_t accumulate; /* 1: out += norm, out is an F32 slot */
  int32_t offset, width, groups;
  float
      scale; /* of what out, an F32 slot, has then; 0: 1. MR_UNSUPPORTED where the backend lacks it */
} mr_norm;

/* LINEAR. The parts one below the other are W [N, in_width].
 *   gated = 0: y = act(W x + b), N = out width
 *   gated = 1: two parts of equal rows, gate and up: y = act(gate) * up, N = 2 * out width
 *   accumulate = 1: out += y (residual), out is an F32 slot
 *
 * With experts (routed), expert_parts are those of one op after the other, [experts] or, gated,
 * [experts][gate, up], of equal rows; n_parts is 0. An expert's sums do not depend on the rows that
 * meet it. MR_UNSUPPORTED where the backend has none of this. */
typedef struct mr_linear {
  mr_part parts[MR_MAX_PARTS];
  const mr_part* expert_parts; /* copied at load */
  int32_t n_parts;
  int32_t activation; /* mr_activation */
  float act_a, act_b; /* a and b of the activation */
  int32_t gated;
  int32_t accumulate;
  int32_t weights; /* mr_weights */
  int32_t group;   /* of MR_WEIGHTS_INT4: 32, 64 or 128; of _NF4: 64; else 0 */
  int32_t routed;  /* mr_routed */
  int32_t experts, top_k;
  int32_t route;     /* the slot of a ROUTE of the same experts and top_k */
  int32_t weighs_in; /* 1: an expert's weight is a factor of what EACH reads, and none of SUM's y */
  int32_t tail;      /* of HEADS: elements that follow y as they are; out is F32 then */
} mr_linear;

/* ROPE_STORE and ATTENTION of a layer. Its keys and values have a shape of their own: kv_heads heads
 * of keys of head_dim and values of value_dim elements, all three as its ROPE_STORE has them that
 * stores it. The slot `in` is [heads x head_dim | kv_heads x head_dim | kv_heads x value_dim], queries,
 * keys and values. ATTENTION writes [heads x value_dim]. */
typedef struct mr_attention {
  const float* inv_freq; /* [rotary_dim/2], copied at load; angle = float(position) * inv_freq[i] */
  const float* alibi_slopes; /* [heads] or NULL, copied at load: score += slope * (j - i) */
  int32_t heads, kv_heads, head_dim;
  int32_t kv_group; /* of layers, whose slabs have this one */
  float scale;      /* on q . k */
  int32_t
      window; /* sliding window: key j is seen by query i when i - window < j <= i; 0: no window */
  int32_t chunked; /* 1: key j is seen by query i when j <= i and j / window == i / window */
  float softcap;   /* above 0: score = softcap * tanh(score / softcap), before slopes and mask */
  int32_t null_scores; /* [heads] tensor, or -1: the score of a key whose value is zero, which all
                        * queries see */

  int32_t value_dim; /* 0: head_dim */
  /* 1: `in` has queries only, and keys and values are those of (kv_group, layer), which a ROPE_STORE
   * before has stored: that of another decoder layer, or one whose `heads` is 0 and which has no
   * queries. A ROPE_STORE of a layer that none has stored turns the first elements of a row, and no more. MR_UNSUPPORTED with KIVI and with heavy tokens. */
  int32_t stored;
  /* 1: the values of a layer are the first value_dim elements of its keys. They are in no slot, and
   * are not stored apart (the latents of arXiv:2405.04434, section 2.1). MR_UNSUPPORTED with codes,
   * sinks and heavy tokens. */
  int32_t latent;

  /* Of ROPE_STORE: NULL, or [n_q_scales] factors of queries, copied at load. Those of the row at
   * position p are times number min(n_q_scales - 1, (p + q_scale_offset) / q_scale_tokens). */
  const float* q_scales;
  int32_t n_q_scales, q_scale_offset, q_scale_tokens;

  int32_t q_norm,
      k_norm;            /* RMS norm weights [head_dim] over each head before the rotation, or -1 */
  float eps;             /* of these norms */
  int32_t norm_last;     /* 1: they come after the rotation */
  int32_t rotary_dim;    /* 0: no rotary embedding */
  int32_t rotary_offset; /* of the first rotated element of a head */
  int32_t rotary_interleaved; /* 1: pairs (2i, 2i+1) as GPT-J; 0: pairs (i, i + rotary_dim/2) */
  float rotary_scale;         /* on cos and sin (YaRN), 1 otherwise */

  /* In a layer with a window, a rotary embedding and no slopes, in a program with one group, the
   * first `sinks` keys are seen too, by a query that is rotated as that of position
   * min(i, sinks + window - 1). So no key is further away than sinks + window - 1, as if the keys
   * that are seen were all there are (StreamingLLM, arXiv:2309.17453, section 3.2). ROPE_STORE
   * writes these queries to the slot sink_q, F32 [heads x head_dim]; ATTENTION reads them. 0 to
   * MR_SLAB_TOKENS; without sinks, sink_q is ignored. */
  int32_t sinks;
  int32_t sink_q;

  /* 0, or all of these ops of a program say the same (H2O, arXiv:2306.14048, algorithm 1). After
   * each MR_H2O_TOKENS tokens every KV head of every layer keeps its last `recent` tokens, and of
   * those before them the `heavy` ones to which the rows so far, those of all query heads of the KV
   * head, gave the largest sums of attention probabilities; of equal sums the later tokens. A row
   * sees what its KV head kept at the last of these positions before it, and the tokens from there
   * up to itself. Sums are float32, added row by row and head by head. So bits do not depend on the
   * steps, but a position runs once. Without windows, slopes, beams, several groups, and KV types
   * of codes. MR_UNSUPPORTED where the backend has none of this. */
  int32_t heavy, recent;

  /* 1, of all these ops of a program or of none: a row sees the keys after it too, with a window
   * those with i - window < j < i + window. All rows of a sequence are in one step, from position 0
   * on, and what ROPE_STORE stores is read by the ATTENTION after it alone: later layers may have
   * the same place in the cache. Without slopes, chunks, sinks, heavy tokens, states, beams, and
   * KIVI. MR_UNSUPPORTED where the backend has none of this. */
  int32_t both_ways;
} mr_attention;

/* What SELECT_ROWS makes an output of, for an output row of a sequence. MR_UNSUPPORTED where the
 * backend has rows alone. */
typedef enum mr_pooling {
  MR_POOL_ROW = 0, /* the row */
  /* The first of the rows of the sequence, all of which are in the step: with attention both ways. */
  MR_POOL_FIRST = 1,
  /* In and out are F32. Sums are float64, on devices float32 with a correction, in the order of the rows. */
  MR_POOL_MEAN = 2
} mr_pooling;

typedef struct mr_select {
  int32_t pooling; /* mr_pooling */
} mr_select;

/* ROUTE. `in` is F32 [experts] wide, `out` is F32 [top_k][2] wide. An expert's score plus its `bias`
 * ([experts] tensor, or -1) is what it is chosen by, the score is its weight: over the sum of the
 * chosen scores where normalize is 1, and times scale. With groups above 1, only experts of
 * top_groups groups are chosen: of those whose two largest are the largest sums. The first of equal
 * ones goes before the others. float32 throughout. */
typedef struct mr_route {
  int32_t experts, top_k;
  int32_t bias;
  int32_t scores; /* mr_route_scores */
  int32_t normalize;
  int32_t groups, top_groups;
  float scale;
  float jitter;         /* of MR_ROUTE_SPARSE_MIXER */
  int32_t group_scores; /* how many of a group's largest scores make its own; 0: 2 */
  int32_t factors;      /* [experts] tensor, of the weights of each expert, or -1 */
} mr_route;

/* CONV and RECUR keep a state of a fixed size for each sequence, in float32, in the head slabs of its
 * region (mr_program_info.head_slabs): what row p leaves is what row p + 1 begins with, and the row at
 * position 0 begins with zeros. Rows run one after the other, so bits do not depend on the steps; a
 * position runs once. Without beams. */

/* CONV. `in` is F32. With x[r][c] = in[r][offset + c] (times in[r][times + c]),
 *   out[r][c] = act(bias[c] + sum over k < kernel of weight[c][k] * x[r - kernel + 1 + k][c])
 * (times in[r][gate + c]), where x before the sequence is 0. State: the last kernel - 1 of x. */
typedef struct mr_conv {
  int32_t weight, bias; /* [channels, kernel]; [channels], or -1 */
  int32_t channels, kernel;
  int32_t offset, times, gate; /* the latter two may be -1 */
  int32_t activation;          /* MR_ACT_NONE or MR_ACT_SILU */
} mr_conv;

typedef enum mr_recur_rule {
  MR_RECUR_DELTA = 0, /* gated delta rule (arXiv:2412.06464, equation 10) */
  MR_RECUR_SSM = 1,   /* Mamba-2 (arXiv:2405.21060, equation 2 with a scalar for A) */
  MR_RECUR_CHANNELS =
      2, /* the delta rule with a decay of each key channel (arXiv:2510.26692, equation 1) */
  MR_RECUR_SCAN = 3,     /* Mamba (arXiv:2312.00752, algorithm 2) */
  MR_RECUR_RETENTION = 4 /* gated retention (arXiv:2405.05254, section 3) */
} mr_recur_rule;

/* RECUR. A head's state S is [keys, values]. heads / key_heads heads in sequence share a query and a
 * key. `in` (F32) has queries and keys [key_heads, keys] from q and k on, values [heads, values] from
 * v on; `gates` (an F32 slot) has [heads] from decay on, with CHANNELS [heads, keys]; with DELTA and CHANNELS `rates`
 * (an F32 slot, which may be the same) has [heads] from rate on. out is F32 [heads, values].
 * With d = softplus(gates[decay] + dt_bias); for DELTA and CHANNELS q and k over the roots of their squares' sums plus
 * 1e-6, and q over the root of `keys`; for SSM d clamped to least_step .. most_step:
 *   DELTA      S = e^(-e^a_log d) S;  S += k (rate_scale sigmoid(rates[rate]) (v - S^T k))^T;  out = S^T q
 *   SSM        S = e^(-e^a_log d) S;  S += k (d v)^T;                                          out = S^T q + skip v
 *   RETENTION  S = e^(-e^a_log d) S;  S += k v^T;                                              out = S^T q
 * and CHANNELS is DELTA with row j of S times e^(-e^a_log d_j).
 * With SCAN queries and keys, [keys] for all heads, are columns of `rates`, from q and k on; gates has [heads, values]
 * from decay on; dt_bias and skip are [heads * values], a_log is [heads * values, keys]. With d_c of value c:
 *   SCAN   S_jc = e^(-e^a_log_cj d_c) S_jc + k_j d_c v_c;  out_c = sum over j of q_j S_jc + skip_c v_c */
typedef struct mr_recur {
  int32_t rule; /* mr_recur_rule */
  int32_t heads, key_heads, keys, values;
  int32_t q, k, v;
  int32_t gates, decay, rates, rate;
  int32_t a_log, dt_bias,
      skip; /* [heads] tensors, of CHANNELS dt_bias [heads * keys]; skip is SSM's */
  float least_step, most_step;
  float rate_scale; /* of DELTA and CHANNELS */
} mr_recur;

typedef enum mr_gate_activation {
  MR_GATE_SILU = 0,
  MR_GATE_SIGMOID = 1,
  MR_GATE_NONE = 2,
  MR_GATE_GELU_TANH = 3
} mr_gate_activation;

/* GATE. With g[r][i] = act(gates[r][offset + i]) and norm, the RMS norm of each `group` elements times weight,
 * out[r] = norm(in[r]) * g[r], or norm(in[r] * g[r]) where `first` is 1; without a norm in[r] * g[r]. in and gates
 * are F32.
 *
 * With sparse = 1, act is of max(0, x - mean - cutoff * deviation) for an element x of a row of gates, whose mean and
 * standard deviation are those of the `width` elements from offset on (Gemma 3n). */
typedef struct mr_gate {
  int32_t gates, offset;
  int32_t activation; /* mr_gate_activation */
  int32_t group;      /* 0: no norm */
  int32_t weight;     /* [group] or [width]; -1 without a norm */
  int32_t first;
  float eps;
  int32_t sparse;
  float cutoff;
} mr_gate;

typedef enum mr_altup_step {
  MR_ALTUP_PREDICT = 0, /* s_j += sum over i of coefs[r][j * streams + i] s_i */
  MR_ALTUP_CORRECT = 1, /* s_j += (1 + coefs[r][j]) (x - s_active) */
  MR_ALTUP_MATCH = 2    /* s_j *= rms(s_0) / sqrt(max(rms(s_j)^2, 1e-5)), for j > 0 */
} mr_altup_step;

/* ALTUP. A step of alternating updates (arXiv:2301.13310, algorithm 1, with coefficients of each row): s_j is the slot
 * in + j, for j < streams. All are F32 and of one width, and out is in. The right sides have s as it was before the
 * step. rms is the root of the mean square. */
typedef struct mr_altup {
  int32_t step;    /* mr_altup_step */
  int32_t streams; /* 2 to MR_MAX_STREAMS */
  int32_t active;  /* of CORRECT: 0 to streams - 1 */
  int32_t coefs;   /* F32 slot: [streams^2] of PREDICT, [streams] of CORRECT; of MATCH ignored */
  int32_t x;       /* F32 slot of CORRECT, as wide as a stream */
} mr_altup;

#define MR_MAX_STREAMS 8

/* ALL_REDUCE. The programs of all ranks have the same ops of this kind. Each waits for the others there, and
 * computes ((in_0 + in_1) + in_2) + ... in float32, in the order of the ranks, so that all have the same bits. in and
 * out are different F32 slots. No op before the next one of this kind writes `in`: other ranks may read it still.
 * MR_UNSUPPORTED where the backend has one rank. */
typedef struct mr_all_reduce {
  int32_t accumulate; /* 1: out += the sum */
} mr_all_reduce;

#define MR_MAX_RANKS 64

/* One op. Tensor and slot indices that are absent are -1. */
typedef struct mr_op {
  int32_t kind;  /* mr_op_kind */
  int32_t layer; /* decoder layer, or -1; of ROPE_STORE and ATTENTION the layer of a slab */
  int32_t in;    /* slot, -1 for EMBED */
  int32_t out;   /* slot */
  union {        /* by kind */
    mr_linear linear;
    mr_select select;
    mr_embed embed;
    mr_norm norm;
    mr_attention attention; /* ROPE_STORE too */
    mr_route route;
    mr_conv conv;
    mr_recur recur;
    mr_gate gate;
    mr_altup altup;
    mr_all_reduce all_reduce;
  };
} mr_op;

typedef struct mr_program_desc {
  const mr_op* ops;
  const mr_slot* slots;
  const mr_tensor* tensors;
  int32_t n_ops, n_slots, n_tensors;
  int32_t vocab;  /* tokens are 0 <= id < vocab; the last op writes a slot [outputs, classes] */
  int32_t layers; /* of a KV slab */
  int32_t max_positions; /* longest sequence; the position table's limit is checked by the host */
  int32_t max_rows;      /* rows per step at most */
  int32_t max_outputs;   /* output rows per step at most */
  int32_t kv_type;       /* mr_kv_type; MR_UNSUPPORTED where the backend lacks it */
  int32_t kv_groups;     /* slabs of MR_SLAB_TOKENS tokens: one for each group of layers; 0: 1 */
  int32_t max_hidden;    /* output rows per step beside max_outputs whose hidden states are read;
                          * above 0 the last op is LINEAR */
  int32_t classes;       /* width of the logits; 0: vocab */

  /* NULL, or what program_packed gave of the same program, on the same backend of the same
   * build with the same isa: 64-byte aligned, borrowed, mapped until program_unload. The
   * tensors of linear ops are not read then. */
  const void* packed;
  uint64_t packed_bytes;

  /* NULL, or what program_load calls, with `context`, before it reads the weights of a linear op (in_use 1) and once it
   * needs them no more (0), so that they need not all be in memory at once. Weights that also another op reads are
   * there all the time. Never called for packed weights; a backend that reads the weights in each step never says 0.
   * Ranks call it at once, from several threads. */
  void (*use_weights)(uintptr_t context, int32_t op, int32_t in_use);
  uintptr_t context;
} mr_program_desc;

typedef struct mr_span {
  const void* data;
  uint64_t bytes;
} mr_span;

typedef struct mr_program_info {
  uint64_t weight_bytes;     /* packed weights */
  uint64_t activation_bytes; /* slots and scratch at max_rows */
  uint64_t
      slab_bytes; /* one slab: MR_SLAB_TOKENS x layers x (K,V), of the largest group, rounded up to what can be mapped */
  int32_t kv_type;       /* mr_kv_type, not MR_KV_AUTO */
  int32_t operand_dtype; /* mr_dtype of MR_SLOT_OPERAND */
  int32_t
      max_slabs; /* kv_reserve accepts at most: each slab may need a mapping (vm.max_map_count) */
  int32_t head_slabs; /* of a region, before those of its tokens: token t is in slab
                       * head_slabs + t / MR_SLAB_TOKENS. They are mapped in every step */
  int32_t most_slabs; /* of a region, where later tokens take the places of those that a sequence
                       * gave up: it needs no more, however long it is; 0: any number */
  char linear
      [64]; /* what runs the linear ops, e.g. "avx512-bf16", "avx512-bf16 + oneDNN >= 32 rows" */
} mr_program_info;

/* ---- KV cache -------------------------------------------------------------
 * The pool holds `slabs` physical slabs. Memory of a device is committed at kv_reserve, memory of the
 * host slab by slab at the first region_map, slab_copy or slab_write. A region is a run of reserved
 * virtual addresses for `slabs` slabs of each group of layers, backed by mapping physical slabs; the
 * same physical slab may be mapped into many regions.
 * Place g * slabs + i is for slab i of group g. Any physical slab serves any group: all have
 * `layers` layers, of which the last group with a window may leave some unused.
 * Inside a slab: [layer][K|V][KV head] blocks of 16 tokens, in the backend's own order. A block is
 * as large as its layer's keys or values need, and a slab as the largest group needs.
 */
typedef struct mr_region mr_region;

/* ---- One step ------------------------------------------------------------- */

/* Beams of one request with a segment KV cache (arXiv:2401.05391, section 3.2):
 * the keys and values of the prompt are kept once, those of the response beside
 * them, in one region for each beam. Beams that fork move nothing: an index
 * says in whose region a beam's past lies.
 *
 * All rows of the sequence are at `position`, row r is beam r. With
 * t = position - prompt_tokens the tokens that row r sees are
 *   position p < prompt_tokens      token p of the sequence's region
 *   position prompt_tokens + s, s < t   token s of responses[index[r * t + s]]
 *   its own                         stored as token t of responses[r]
 * The prompt has been prefilled as a plain sequence of the same region. A row's
 * result has the same bits as that of a plain sequence with the same past. */
typedef struct mr_beams {
  mr_region* const* responses; /* [rows] regions, all different */
  const int32_t* index;        /* [rows][t], each 0 to rows - 1; may be NULL when t is 0 */
  int32_t prompt_tokens;       /* 1 to position */
  int32_t reserved;
} mr_beams;

typedef struct mr_sequence {
  mr_region* region;
  int32_t
      first_row; /* rows [first_row, first_row + rows) of the step are tokens of this sequence */
  int32_t rows;
  int32_t position; /* of the first row; earlier positions are in the KV cache already */
  int32_t second;   /* position of the first row of type 1 (mr_embed); 0: none. With both_ways */
  const mr_beams* beams; /* NULL: rows are at position, position + 1, ... */
} mr_sequence;

/* What an op of a step took: by the device's own clock where the device was
 * opened with profile and has one, else by the wall clock until the op is done. */
typedef struct mr_op_time {
  uint64_t nanoseconds;
  int32_t launches; /* of kernels; 0 for an op without rows */
  int32_t reserved;
} mr_op_time;

typedef struct mr_step {
  const int32_t* tokens; /* [rows] */
  const mr_sequence* sequences;
  const int32_t* output_rows; /* [outputs], ascending */
  float* logits;        /* [outputs - hidden_outputs, classes], the caller's; or NULL with best */
  mr_op_time* op_times; /* [n_ops], then each op is done before the next one begins; or NULL */
  int32_t rows, n_sequences, outputs;
  /* The last of the outputs have no logits: their rows of the last op's `in` are read instead, the
   * normed hidden states, as floats. */
  int32_t hidden_outputs;
  float* hidden; /* [hidden_outputs, width of `in`], the caller's; or NULL */
  /* NULL, or [outputs - hidden_outputs], of a device with keeps_logits: of each row the token of the
   * largest logit, of equal ones the lowest; -1 if a logit is NaN or +inf, or all are -inf. The
   * logits stay with the device until the next step: program_logits reads a row of them. */
  int32_t* best;
} mr_step;

/* A token to be drawn from a row of logits that a device has kept. A token's weight is e^-d in units of 2^-44, where
 * its logit is d times the temperature below the largest one: 0 from 45 octaves on. compute/sample has the formula,
 * and what is drawn is what it draws. Fractions are of 2^64. */
typedef struct mr_draw {
  int32_t row; /* of the logits */
  int32_t
      top_k; /* only the top_k tokens of the largest logits, and tokens equal to the last one; 0: all */
  float per_nat; /* 1 / temperature; 0: the token of the largest logit, as in mr_step.best */
  int32_t mask;  /* only tokens of this mask; -1: all */
  uint64_t
      top_p; /* only the likeliest tokens that together have this fraction of the weights; 0: all */
  uint64_t least; /* only tokens of at least this weight */
  uint64_t
      random; /* the fraction of the weights left at which the token is, in the order of tokens */
} mr_draw;

/* ---- The backend ---------------------------------------------------------- */
typedef struct mr_device mr_device;
typedef struct mr_program mr_program;

typedef struct mr_device_config {
  int32_t threads;  /* 0: every core this process may use (affinity and cgroup quota) */
  char isa[32];     /* "": the best; else a name from mr_device_info.isas */
  char device[64];  /* for backends with several devices; "" or "auto" */
  int32_t profile;  /* 1: op_times by the device's clock, at a small cost of every launch */
  int32_t operands; /* mr_dtype of products and KV cache where the backend has several: MR_F16 or
                       MR_BF16; 0: its choice */
  /* Up to MR_MAX_RANKS parts of the device, each with a share of the threads, which run on cores of their own, of one
   * NUMA node where the machine has as many. A program has a description for each. 0: 1. MR_UNSUPPORTED where the
   * backend has one */
  int32_t ranks;
} mr_device_config;

typedef struct mr_device_info {
  char name[128]; /* e.g. the CPU model */
  char isa[32];   /* in use */
  char isas[128]; /* that this machine can run, best first, separated by commas */
  int32_t threads;
  int32_t on_cpu;            /* 1: the machine's own cores compute, 0: another device does */
  int32_t keeps_logits;      /* 1: mr_step.best may be set */
  int32_t keeps_blocks;      /* 1: linear ops may be of MR_WEIGHTS_BLOCKS */
  uint64_t memory_total;     /* bytes this process may use (cgroup limit or physical) */
  uint64_t memory_available; /* now */
} mr_device_info;

typedef struct mr_measurement {
  double read_gbps;      /* streaming read of memory by all threads, GB/s (1e9) */
  double peak_gflops;    /* register-only products of the operand type by all threads, GFLOP/s */
  double peak_int8_gops; /* the same of int8 codes, GOP/s; 0: not measured */
} mr_measurement;

typedef struct mr_backend {
  uint32_t abi_version; /* MR_ABI_VERSION */
  const char* name;

  int32_t (*device_open)(const mr_device_config*, mr_device** out, mr_error*);
  void (*device_close)(mr_device*);
  int32_t (*device_info)(mr_device*, mr_device_info* out, mr_error*);
  int32_t (*device_measure)(mr_device*, mr_measurement* out, mr_error*);

  /* Checks every op (slots, shapes, tensor indices) and packs the weights. A device with ranks takes as many
   * descriptions, one after the other. They have the same groups of layers, limits and ALL_REDUCEs. A slab has the
   * keys and values of each rank in turn, in whole pages, and the logits of an output have the classes of each in
   * turn. Hidden states are those of the first rank. */
  int32_t (*program_load)(mr_device*, const mr_program_desc*, mr_program** out, mr_error*);
  void (*program_unload)(mr_program*); /* after its regions are destroyed */
  int32_t (*program_info)(mr_program*, mr_program_info* out, mr_error*);
  /* The packed weights as spans of whole 64 bytes: one after the other they are what
   * mr_program_desc.packed takes. They stay in place until program_unload. After the last span
   * (of a backend that takes none: from the first) out->data is NULL. */
  int32_t (*program_packed)(mr_program*, int32_t index, mr_span* out, mr_error*);
  /* "<backend> <numerics version> <class>" of the kernels that the program runs by, as timings
   * chose them: programs of the same description and weights whose texts are equal give the
   * same steps the same bits, on any machine. The version grows with every change of bits. The
   * text lies still until program_unload. */
  int32_t (*program_numerics)(mr_program*, const char** out, mr_error*);
  /* Checks the step (bounds, tokens, mapped positions), then runs every op.
   * Results of a row do not depend on the other rows, bit for bit. */
  int32_t (*program_run)(mr_program*, const mr_step*, mr_error*);

  int32_t (*kv_reserve)(mr_program*, int32_t slabs, mr_error*); /* once */
  int32_t (*region_create)(mr_program*, int32_t slabs, mr_region** out, mr_error*);
  int32_t (*region_map)(mr_region*, int32_t index, const int32_t* slabs, int32_t n, mr_error*);
  int32_t (*region_unmap)(mr_region*, int32_t index, int32_t n, mr_error*);
  void (*region_destroy)(mr_region*); /* unmaps what is mapped */
  /* Copies the first `tokens` tokens of a physical slab to another one, whose others are
   * undefined then. */
  int32_t (*slab_copy)(mr_program*, int32_t from, int32_t to, int32_t tokens, mr_error*);
  /* Copy the slab_bytes of a physical slab to and from the caller's memory: what one program reads, another of
   * equal program_numerics and mr_program_info may take. Another thread may call them beside program_run, for
   * tokens that the step does not touch. */
  int32_t (*slab_read)(mr_program*, int32_t slab, void* to, mr_error*);
  int32_t (*slab_write)(mr_program*, int32_t slab, const void* from, mr_error*);
  /* kv_reserve with the pool's memory in a file on tmpfs, from offset (whole pages) on: slab s lies at
   * offset + s * slab_bytes. The file grows to hold them, and outlives the program. It is the caller's to
   * close, as it is to commit a slab (fallocate) before it is mapped or written. MR_UNSUPPORTED where the
   * pool is memory of a device. */
  int32_t (*kv_reserve_file)(mr_program*, int32_t slabs, int32_t file, uint64_t offset, mr_error*);
  /* Copies a row of the logits of the last step, which had best. */
  int32_t (*program_logits)(mr_program*, int32_t row, float* out, mr_error*);
  /* Draws a token of each of n rows of these logits, at most max_outputs. masks are [n_masks, (classes + 31) / 32]
   * words with a bit for each token, the lowest of the first word for token 0. A token below 0 says that the row has
   * numbers that none is drawn from, or that its draw is left to the caller, as one with very many tokens of
   * nearly one logit is. */
  int32_t (*program_draw)(mr_program*, const mr_draw* draws, int32_t n, const uint32_t* masks,
                          int32_t n_masks, int32_t* tokens, mr_error*);
  /* Starts a step of a device with keeps_logits, and a draw from each of its outputs, and returns before the device
   * has done them. draws are those of rows 0, 1, ... in turn, without masks; NULL: the token of the largest logit of
   * each. The step has neither hidden outputs nor op_times, and its logits and best are not used: nothing reads its
   * logits. A token of the step that is -1 - i is what the step before it, which was started too, draws from its
   * output i. program_drawn waits for the oldest step, and copies a token for each of its outputs, below 0 as those of
   * program_draw. Up to two steps are started at a time, and until both are drawn there is no program_run. */
  int32_t (*program_start)(mr_program*, const mr_step*, const mr_draw* draws, mr_error*);
  int32_t (*program_drawn)(mr_program*, int32_t* tokens, int32_t n, mr_error*);
} mr_backend;

const mr_backend* millrace_backend_ref(void);
const mr_backend* millrace_backend_cpu(void);

#ifdef __cplusplus
}
#endif
#endif
