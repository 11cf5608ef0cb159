// Which kernels share their bits: numerics.txt has a hash for each op, type and class of
// kernels, and every kernel of a class must have it. The inputs are made of counters by integer
// arithmetic, so that nothing but the kernels is in a hash.
//
// Whoever changes bits on purpose raises kNumericsVersion (cpu/program.cpp) and writes the table
// anew: MILLRACE_WRITE_NUMERICS=1 build/kernels/millrace_kernels_test --gtest_filter='Numerics.*'
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "amx_emulated.hpp"
#include "avx_vnni_evex.hpp"
#include "block_matrix.hpp"
#include "cpu/linear/kernels.hpp"
#include "cpu/linear/linear.hpp"
#include "cpu/machine/float_mode.hpp"
#include "cpu/machine/thread_pool.hpp"
#include "cpu/ops/kernels.hpp"
#include "exec/angle.hpp"
#include "exec/buffer.hpp"
#include "exec/program.hpp"
#include "harness.hpp"
#include "numerics_table.hpp"

namespace millrace::cpu {
namespace {

std::vector<bf16> halves(const std::vector<float>& values) {
  std::vector<bf16> all;
  for (const float x : values) all.push_back(from_float(x));
  return all;
}

// ---- Linear ops

struct LinearVariant {
  const char* numerics;
  const LinearKernels* kernels;
};

bool runs(Isa isa) {
  const std::vector<Isa> isas = available_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

// Every kernel for the weights that this machine has instructions for, and emulated tiles.
std::vector<LinearVariant> linear_variants(int weights) {
  std::vector<LinearVariant> all;
  for (const Isa isa : available_isas()) {
    all.push_back({linear_numerics(isa, weights), &linear_kernels(isa, weights)});
  }
  if (weights == MR_WEIGHTS_16BIT || quantizes_rows(weights)) {
    all.push_back({linear_numerics(Isa::amx, weights), &emulated_amx_kernels(weights)});
  }
#if defined(__x86_64__)
  if (quantizes_rows(weights)) {  // without VNNI, and AVX-VNNI in the other encoding
    if (runs(Isa::avx2)) {
      all.push_back({kX86Fma, weights == MR_WEIGHTS_INT8   ? &linear_int8_avx2()
                              : weights == MR_WEIGHTS_INT4 ? &linear_int4_avx2()
                                                           : &linear_blocks_avx2()});
    }
    if (runs(Isa::avx512) && has_vnni()) {
      all.push_back({kX86Fma, &evex_avx_vnni_kernels(weights)});
    }
  }
  if (weights == MR_WEIGHTS_FP8 && runs(Isa::avx512)) {  // without VBMI
    all.push_back({kX86Fma, &linear_fp8_avx512()});
  }
  if (weights == kFp8Blocks && runs(Isa::avx512)) {
    all.push_back({kX86Fma, &linear_fp8_blocks_avx512()});
  }
#endif
  return all;
}

struct LinearCase {
  int64_t k, n;
  int rows;
  int activation = MR_ACT_NONE;
  bool gated = false, accumulate = false, out_f32 = true, bias = false;
  float in_scale = 1, weight_scale = 1;

  std::string name() const {
    std::ostringstream text;
    text << rows << "x" << k << "x" << n;
    if (activation != MR_ACT_NONE) text << " act" << activation;
    if (gated) text << " gated";
    if (accumulate) text << " accumulate";
    if (bias) text << " bias";
    if (!out_f32) text << " bf16";
    if (in_scale != 1) text << " 2^" << std::ilogb(in_scale);
    return text.str();
  }
};

std::vector<LinearCase> linear_cases() {
  std::vector<LinearCase> all;
  for (const int64_t width : {1, 3, 17, 111, 500}) {
    for (const int rows : {1, 3, 17}) all.push_back({width, 111, rows});
  }
  for (const int rows : {1, 3, 17, 111, 500}) {
    all.push_back({500, 80, rows});
    for (const int64_t n : {1, 3, 17}) all.push_back({111, n, rows});
  }
  for (int activation = MR_ACT_NONE; activation <= MR_ACT_RELU; ++activation) {
    all.push_back({111, 111, 17, activation, false, false, false, true});
    all.push_back({111, 111, 17, activation, true, false, false, false});
    all.push_back({111, 111, 3, activation, false, true, true, true});
  }
  // Products and sums around the least normal number.
  for (const float in : {0x1p-62f, 0x1p-65f, 0x1p-120f}) {
    LinearCase tiny{500, 111, 17};
    tiny.in_scale = in, tiny.weight_scale = 0x1p-64f;
    all.push_back(tiny);
    all.back().accumulate = true;
  }
  all.push_back({500, 111, 3});
  all.back().in_scale = 0x1p-130f;  // no normal number among them
  return all;
}

Hash linear_hash(const LinearKernels& kernels, bool flush, int weights, int group,
                 const LinearCase& c, ThreadPool& pool) {
  const int64_t outputs = c.gated ? 2 * c.n : c.n;
  const std::vector<bf16> w = halves(numbers(1, outputs * c.k, c.weight_scale));
  std::vector<bf16> in = halves(numbers(2, c.rows * c.k, c.in_scale));
  const std::vector<float> bias = numbers(3, outputs);
  const mr_tensor matrix{w.data(), MR_BF16, 2, {outputs, c.k}, 0, nullptr};
  const mr_tensor vector{bias.data(), MR_F32, 1, {outputs, 0}, 0, nullptr};
  LinearSpec spec;
  for (int part = 0; part < (c.gated ? 2 : 1); ++part) {
    spec.parts.push_back({&matrix, c.bias ? &vector : nullptr, part * c.n, c.n, c.n, 0});
  }
  spec.in_width = c.k;
  spec.out_width = c.n;
  spec.activation = c.activation;
  spec.gated = c.gated;
  spec.accumulate = c.accumulate;
  spec.out_f32 = c.out_f32;
  spec.weights = weights;
  spec.group = group;
  const auto linear = Linear::pack(spec, kernels, pool);
  std::vector<float> out = numbers(4, c.rows * c.n, c.in_scale);
  const FloatScope mode(FloatMode::plain(flush));
  if (flush) {  // as the ops before leave rows
    for (bf16& x : in) x = (x & 0x7f80) == 0 ? x & 0x8000 : x;
  }
  linear->run(in.data(), c.rows, out.data(), pool);
  Hash hash;
  if (c.out_f32) {
    hash.add(out.data(), out.size());
  } else {
    hash.add(reinterpret_cast<const bf16*>(out.data()), out.size());
  }
  return hash;
}

TEST(Numerics, LinearOps) {
  struct Type {
    const char* name;
    int weights, group;
  };
  Found found;
  ThreadPool pool(2);
  for (const Type& type :
       {Type{"bf16", MR_WEIGHTS_16BIT, 0}, Type{"int8", MR_WEIGHTS_INT8, 0},
        Type{"int4-32", MR_WEIGHTS_INT4, 32}, Type{"int4-128", MR_WEIGHTS_INT4, 128},
        Type{"fp8", MR_WEIGHTS_FP8, 0}, Type{"nf4", MR_WEIGHTS_NF4, 64}}) {
    for (const LinearVariant& v : linear_variants(type.weights)) {
      for (const LinearCase& c : linear_cases()) {
        found.add(
            v.numerics, v.kernels->name, std::string("linear ") + type.name + " " + c.name(),
            linear_hash(*v.kernels, v.numerics != kPortable, type.weights, type.group, c, pool));
      }
    }
  }
  found.check();
}

// All types: few rows and many, and vectors of two types.
TEST(Numerics, LinearOpsOfBlocks) {
  constexpr int64_t kWidth = 512, kOutputs = 37;
  Found found;
  ThreadPool pool(2);
  for (const BlockType* type : all_types({kIntegerBlocks, kFp8Blocks, kNf4Blocks})) {
    const bool integers = type->weights == kIntegerBlocks;
    const Matrix matrix(*type, kOutputs, kWidth, 1),
        other(integers ? *block_type(MR_BLOCKS + 8) : *type, kOutputs, kWidth, 2);
    LinearSpec spec{};
    spec.parts = {{&matrix.tensor, nullptr, 0, kOutputs, kOutputs, 0},
                  {&other.tensor, nullptr, 0, kOutputs, kOutputs, 0}};
    spec.in_width = kWidth;
    spec.out_width = 2 * kOutputs;
    spec.out_f32 = true;
    spec.weights = type->weights;
    spec.group = integers ? std::min(type->group, 32) : type->group;
    for (const LinearVariant& v : linear_variants(type->weights)) {
      const auto linear = Linear::pack(spec, *v.kernels, pool);
      for (const int rows : {1, 3, 17}) {
        const std::vector<bf16> in = halves(numbers(2, rows * kWidth));
        std::vector<float> out(rows * spec.out_width);
        const FloatScope mode(FloatMode::plain(v.numerics != kPortable));
        linear->run(in.data(), rows, out.data(), pool);
        Hash hash;
        hash.add(out.data(), out.size());
        found.add(v.numerics, v.kernels->name,
                  std::string("linear ") + type->name + " " + std::to_string(rows), hash);
      }
    }
  }
  found.check();
}

// ---- Rows

TEST(Numerics, NormsRotationsAndRounding) {
  Found found;
  for (const Isa isa : available_isas()) {
    const OpKernels& kernels = op_kernels(isa);
    const FloatScope mode(FloatMode::plain(kernels.flush));
    for (const int width : {1, 3, 17, 64, 80, 111, 128, 500, 2048}) {
      for (const float scale : {1.0f, 0x1p-120f}) {
        const std::vector<float> in = numbers(5, width, scale), weight = numbers(6, width),
                                 bias = numbers(7, width);
        Hash hash;
        for (const bool layer : {false, true}) {
          for (const bool out_f32 : {false, true}) {
            std::vector<float> out(width);
            kernels.norm({weight.data(), bias.data(), width, 1e-5f, layer, out_f32}, in.data(),
                         out.data());
            hash.add(out.data(), out.size());
          }
        }
        std::vector<bf16> rounded(width);
        kernels.to_bf16(in.data(), width, rounded.data());
        hash.add(rounded.data(), rounded.size());
        found.add(kernels.numerics, isa_name(isa),
                  "norm " + std::to_string(width) + (scale == 1 ? "" : " tiny"), hash);
        Hash added;
        for (const bool layer : {false, true}) {
          std::vector<float> sum = numbers(11, width, scale);
          kernels.norm({weight.data(), bias.data(), width, 1e-5f, layer, true, true}, in.data(),
                       sum.data());
          added.add(sum.data(), sum.size());
        }
        found.add(kernels.numerics, isa_name(isa),
                  "norm added " + std::to_string(width) + (scale == 1 ? "" : " tiny"), added);
        Hash scaled;
        for (const bool plain : {false, true}) {
          std::vector<float> sum = numbers(11, width, scale);
          kernels.norm({weight.data(), nullptr, width, 1e-5f, false, true, true, plain, 0.7f},
                       in.data(), sum.data());
          scaled.add(sum.data(), sum.size());
        }
        found.add(kernels.numerics, isa_name(isa),
                  "norm scaled " + std::to_string(width) + (scale == 1 ? "" : " tiny"), scaled);
      }
    }
    for (const int head : {64, 80, 128}) {
      const std::vector<float> weight = numbers(8, head), angles = numbers(9, head, 1000);
      std::vector<float> cosine, sine, heads = numbers(10, 3 * head);
      for (const float angle : angles) {
        cosine.push_back(sine_cosine(angle).cosine);
        sine.push_back(sine_cosine(angle).sine);
      }
      Hash hash;
      for (const bool interleaved : {false, true}) {
        for (const float* norm : {static_cast<const float*>(nullptr), weight.data()}) {
          kernels.rotate({3, head, norm, 1e-5f, head, interleaved, cosine.data(), sine.data()},
                         heads.data());
          hash.add(heads.data(), heads.size());
        }
      }
      found.add(kernels.numerics, isa_name(isa), "rope " + std::to_string(head), hash);
    }
  }
  found.check();
}

// ---- Attention

struct AttentionVariant {
  const char *numerics, *name;
  bool flush;
  const AttentionKernels* kernels;
};

// bits of an element: 16, 8 or 4.
std::vector<AttentionVariant> attention_variants(int bits) {
  std::vector<AttentionVariant> all;
  for (const Isa isa : available_isas()) {
    const OpKernels& k = op_kernels(isa);
    const int32_t type = bits == 16 ? MR_KV_BF16 : bits == 8 ? MR_KV_INT8 : MR_KV_INT4;
    all.push_back(
        {attention_numerics(k, type), isa_name(isa), k.flush, &attention_kernels(k, type)});
  }
  if (bits == 16) all.push_back({kAmxAttention, "emulated amx", true, &emulated_amx_attention()});
#if defined(__x86_64__)
  if (bits < 16 && runs(Isa::avx512)) {
    all.push_back({kX86Fma, "avx512 without vnni", true, &attention_avx2(bits)});
  }
#endif
  return all;
}

// Keys and values of one KV head, as rope_store leaves them.
class Cache {
 public:
  Cache(int bits, int head_dim, int tokens)
      : block_(bits == 16  ? size_t{2} * kSlabTokens * head_dim
               : bits == 8 ? KvCodes<8>{head_dim}.block_bytes()
                           : KvCodes<4>{head_dim}.block_bytes()),
        memory_((tokens / kSlabTokens + 1) * 2 * block_ + 64) {
    const std::vector<float> all = numbers(11, int64_t{2} * tokens * head_dim, 2);
    for (int t = 0; t < tokens; ++t) {
      const float* key = all.data() + int64_t{2} * t * head_dim;
      std::byte* keys = data() + t / kSlabTokens * 2 * block_;
      store(bits, key, key + head_dim, head_dim, t % kSlabTokens, keys, keys + block_);
    }
  }

  const std::byte* keys() const { return const_cast<Cache*>(this)->data(); }
  const std::byte* values() const { return keys() + block_; }
  size_t slab_bytes() const { return 2 * block_; }

 private:
  std::byte* data() {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 *
                                        64);
  }
  static void store(int bits, const float* key, const float* value, int d, int token,
                    std::byte* keys, std::byte* values) {
    if (bits == 8) {
      store_int8_key(key, d, token, keys);
      store_int8_value(value, d, token, values);
    } else if (bits == 4) {
      store_int4_key(key, d, token, keys);
      store_int4_value(value, d, token, values);
    } else {
      auto* k = reinterpret_cast<bf16*>(keys);
      auto* v = reinterpret_cast<bf16*>(values);
      for (int i = 0; i < d; ++i) {
        k[(i / 2 * kSlabTokens + token) * 2 + i % 2] = from_float(key[i]);
        v[token / 2 * 2 * d + 2 * i + token % 2] = from_float(value[i]);
      }
    }
  }

  size_t block_;
  std::vector<std::byte> memory_;
};

struct AttentionCase {
  int head_dim, context, rows;
  int window = 0;
  bool slopes = false;
  int after = 0;  // keys after the rows, with attention both ways
  float scale = 0.125f;

  std::string name() const {
    std::ostringstream text;
    text << head_dim << " context " << context << " rows " << rows;
    if (window > 0) text << " window " << window;
    if (slopes) text << " alibi";
    if (after > 0) text << " both ways " << after;
    return text.str();
  }
};

constexpr int kHeads = 3;

// [rows][3 heads] outputs, of which those of the first `heads` are computed.
std::vector<float> attend(const AttentionVariant& v, int bits, const AttentionCase& c, int heads) {
  const Cache cache(bits, c.head_dim, c.context + c.rows + c.after);
  const int width = kHeads * c.head_dim;
  const std::vector<float> q = numbers(12, int64_t{c.rows} * width, 3);
  const float slopes[kHeads] = {0.5f, 0.25f, 0.125f};
  AttentionTile t{};
  t.q = q.data();
  t.q_stride = width;
  t.rows = c.rows;
  t.heads = heads;
  t.head = {c.head_dim, c.head_dim};
  t.position = c.context;
  t.window = c.window;
  t.begin = t.first_visible(c.context);
  t.end = c.context + c.rows + c.after;
  t.both_ways = c.after > 0;
  t.scale = c.scale;
  t.slopes = c.slopes ? slopes : nullptr;
  t.keys = cache.keys();
  t.values = cache.values();
  t.slab_bytes = cache.slab_bytes();
  const size_t floats = v.kernels->state_floats(c.head_dim, t.queries());
  const size_t scratch = (v.kernels->scratch_bytes({c.head_dim, c.head_dim}) + 3) / 4;
  Buffer memory((scratch + 2 * floats + 64) * sizeof(float));
  auto* const room = static_cast<float*>(memory.data());
  const AttentionState total{room + (scratch + 15) / 16 * 16, t.queries(), 0};
  const AttentionState piece{total.memory + floats, t.queries(), 0};
  std::vector<float> out(q.size());
  const FloatScope mode(FloatMode::plain(v.flush));
  v.kernels->prepare(t, room);
  v.kernels->piece(t, t.first_piece(), room, total);
  for (int p = t.first_piece() + 1; p < t.end_piece(); ++p) {
    v.kernels->piece(t, p, room, piece);
    v.kernels->merge(t, piece, total);
  }
  v.kernels->finish(t, total, width, true, out.data());
  return out;
}

Hash attention_hash(const AttentionVariant& v, int bits, const AttentionCase& c) {
  const std::vector<float> out = attend(v, bits, c, kHeads);
  Hash hash;
  hash.add(out.data(), out.size());
  return hash;
}

TEST(Numerics, Attention) {
  Found found;
  for (const int bits : {16, 8, 4}) {
    const std::string type = bits == 16 ? "bf16" : bits == 8 ? "int8" : "int4";
    for (const AttentionVariant& v : attention_variants(bits)) {
      for (const int head_dim : {64, 80, 128}) {
        std::vector<AttentionCase> cases;
        for (const int context : {0, 2, 16, 110, 499, 1100}) {
          cases.push_back({head_dim, context, 1});
          cases.push_back({head_dim, context, 3});
        }
        cases.push_back({head_dim, 17, 10});
        cases.push_back({head_dim, 499, 3, 111});
        cases.push_back({head_dim, 499, 3, 0, true});
        cases.push_back({head_dim, 110, 3, 0, false, 71});
        cases.push_back({head_dim, 499, 3, 111, false, 109});
        for (const AttentionCase& c : cases) {
          found.add(v.numerics, v.name, "attention " + type + " " + c.name(),
                    attention_hash(v, bits, c));
        }
      }
    }
  }
  found.check();
}

// Some kernels take a query alone by another way than many. Scores are large, for a probability hides a small one's last bits.
TEST(Numerics, AttentionOfOneQueryIsThatOfMany) {
  for (const int bits : {16, 8, 4}) {
    for (const AttentionVariant& v : attention_variants(bits)) {
      for (const int head_dim : {64, 80, 128}) {
        for (const int context : {0, 2, 16, 30, 47, 110, 499, 1023, 1100}) {
          for (const int window : {0, 33}) {
            const AttentionCase c{head_dim, context, 1, window, false, 0, 1.0f};
            std::vector<float> one = attend(v, bits, c, 1), many = attend(v, bits, c, kHeads);
            one.resize(head_dim), many.resize(head_dim);
            EXPECT_TRUE(std::memcmp(one.data(), many.data(), head_dim * sizeof(float)) == 0)
                << v.name << ", " << bits << " bits, " << c.name();
          }
        }
      }
    }
  }
}

// ---- What all have in common

TEST(Numerics, States) {
  Found found;
  constexpr int kRows = 21;
  for (const Isa isa : available_isas()) {
    const OpKernels& kernels = op_kernels(isa);
    const FloatScope mode(FloatMode::plain(kernels.flush));
    for (const int kernel : {2, 3, 4, 7}) {
      const int channels = 45;
      const std::vector<float> in = numbers(21, 3 * channels * kRows), bias = numbers(22, channels),
                               weights = numbers(23, kernel * channels);
      std::vector<float> state = numbers(24, (kernel - 1) * channels), out(channels * kRows);
      kernels.conv({weights.data(), bias.data(), channels, kernel, 0, channels, 2 * channels, true,
                    true, 0, channels, kRows, in.data(), 3 * channels, state.data(), out.data(),
                    channels});
      Hash hash;
      hash.add(out.data(), out.size());
      hash.add(state.data(), state.size());
      found.add(kernels.numerics, isa_name(isa), "conv " + std::to_string(kernel), hash);
    }
    const std::pair<int, const char*> rules[] = {{MR_RECUR_SSM, "ssm "},
                                                 {MR_RECUR_DELTA, "delta "},
                                                 {MR_RECUR_CHANNELS, "channels "},
                                                 {MR_RECUR_RETENTION, "retention "}};
    for (const auto& [rule, name] : rules) {
      for (const int values : {16, 40, 128}) {
        const int keys = 24, state_row = (values + 15) / 16 * 16;
        const int decays = rule == MR_RECUR_CHANNELS ? keys : 1;
        const std::vector<float> in = numbers(25, (2 * keys + values) * kRows),
                                 gates = numbers(26, (decays + 1) * kRows), dt_bias(decays, -0.5f);
        std::vector<float> state = numbers(27, keys * state_row), out(values * kRows),
                           room(RecurTask::room_floats(keys, state_row));
        kernels.recur({rule,
                       keys,
                       values,
                       state_row,
                       0.3f,
                       dt_bias.data(),
                       0.7f,
                       0.01f,
                       2.0f,
                       1.0f,
                       kRows,
                       in.data(),
                       in.data() + keys,
                       in.data() + 2 * keys,
                       2 * keys + values,
                       gates.data(),
                       gates.data() + decays,
                       decays + 1,
                       decays + 1,
                       state.data(),
                       out.data(),
                       values,
                       room.data()});
        Hash hash;
        hash.add(out.data(), out.size());
        hash.add(state.data(), state.size());
        found.add(kernels.numerics, isa_name(isa), name + std::to_string(values), hash);
      }
    }
    for (const int values : {16, 40, 128}) {
      const int keys = 12, state_row = (values + 15) / 16 * 16;
      const std::vector<float> in = numbers(31, values * kRows),
                               steps = numbers(32, values * kRows),
                               rates = numbers(33, 2 * keys * kRows), skip = numbers(34, values),
                               a(keys * state_row, 0.3f);
      std::vector<float> state = numbers(35, keys * state_row), out(values * kRows);
      kernels.scan({keys, values, state_row, a.data(), skip.data(), skip.data(), kRows,
                    rates.data(), rates.data() + keys, 2 * keys, in.data(), values, steps.data(),
                    values, state.data(), out.data(), values});
      Hash hash;
      hash.add(out.data(), out.size());
      hash.add(state.data(), state.size());
      found.add(kernels.numerics, isa_name(isa), "scan " + std::to_string(values), hash);
    }
    Hash hash, sparse;
    const int width = 90;
    const std::vector<float> in = numbers(28, width), by = numbers(29, width),
                             weight = numbers(30, width);
    for (const int group : {0, 30, 90}) {
      for (const bool first : {false, true}) {
        for (const bool silu : {false, true}) {
          std::vector<float> out(width), room(width);
          GateRow row{.width = width,
                      .group = group,
                      .weight = group > 0 ? weight.data() : nullptr,
                      .each = group == 30,
                      .first = first,
                      .activation = silu ? MR_GATE_SILU : MR_GATE_SIGMOID,
                      .out_f32 = true,
                      .eps = 1e-6f,
                      .sparse = false,
                      .cutoff = 0.5f};
          kernels.gate(row, in.data(), by.data(), out.data(), room.data());
          hash.add(out.data(), out.size());
          row.activation = silu ? MR_GATE_GELU_TANH : MR_GATE_NONE;
          row.sparse = true;
          kernels.gate(row, in.data(), by.data(), out.data(), room.data());
          sparse.add(out.data(), out.size());
        }
      }
    }
    found.add(kernels.numerics, isa_name(isa), "gate", hash);
    found.add(kernels.numerics, isa_name(isa), "gate sparse", sparse);
    Hash updates;
    for (const int step : {MR_ALTUP_PREDICT, MR_ALTUP_CORRECT, MR_ALTUP_MATCH}) {
      std::vector<float> streams = numbers(31, int64_t{3} * width);
      float* const rows[] = {streams.data(), streams.data() + width, streams.data() + 2 * width};
      kernels.altup({step, 3, 1, width}, rows, numbers(32, 9).data(), in.data());
      updates.add(streams.data(), streams.size());
    }
    found.add(kernels.numerics, isa_name(isa), "altup", updates);
  }
  found.check();
}

TEST(Numerics, AnglesAndKvCodes) {
  Found found;
  Hash angles;
  for (const float largest : {1.0f, 4096.0f, 16777216.0f}) {
    for (const float angle : numbers(13, 10000, largest)) {
      const SineCosine at = sine_cosine(angle);
      angles.add(&at, 1);
    }
  }
  found.add("all", "sine_cosine", "angles", angles);
  for (const int d : {64, 80, 128}) {
    for (const float scale : {1.0f, 0x1p-125f}) {
      const std::vector<float> head = numbers(14, d, scale);
      std::vector<std::byte> block(8 * KvCodes<8>{d}.block_bytes());
      store_int8_key(head.data(), d, 3, block.data());
      store_int8_value(head.data(), d, 3, block.data() + block.size() / 4);
      store_int4_key(head.data(), d, 3, block.data() + block.size() / 2);
      store_int4_value(head.data(), d, 3, block.data() + block.size() / 4 * 3);
      Hash hash;
      hash.add(block.data(), block.size());
      found.add("all", "kv_codes", "kv codes " + std::to_string(d) + (scale == 1 ? "" : " tiny"),
                hash);
    }
  }
  found.check();
}

// ---- Programs

// small_llama, without what the C library has in it.
test::Builder program(const test::Kept& kept, bool sinks = false) {
  test::Builder builder = sinks ? test::small_llama_with_sinks() : test::small_llama();
  std::vector<float> inv_freq;
  for (float f = 1; static_cast<int>(inv_freq.size()) < builder.head_dim / 2; f /= 1.75f) {
    inv_freq.push_back(f);
  }
  const float* constant = builder.constant(inv_freq);
  for (mr_op& op : builder.ops) {
    if (op.kind == MR_OP_ROPE_STORE) op.attention.inv_freq = constant;
  }
  builder.keep(kept);
  return builder;
}

// Adds what a program's logits are, in steps of these rows.
void add_program(Found& found, Isa isa, const std::string& kv, test::Builder& builder,
                 const std::vector<int>& steps, const std::string& name) {
  test::Model model(isa_name(isa) + kv, builder, 40);
  test::Sequence sequence(model);
  test::Random random(1);
  Hash hash;
  for (const int rows : steps) {
    const auto logits = model.step({{&sequence, random.tokens(rows, builder.vocab)}});
    hash.add(logits.data(), logits.size());
  }
  const char* text = nullptr;
  mr_error error;
  test::check(model.device.backend->program_numerics(model.handle, &text, &error), error);
  const std::string numerics = std::string(text).substr(std::string(text).rfind(' ') + 1);
  found.add(numerics, isa_name(isa), "program " + name + kv, hash);
}

TEST(Numerics, Programs) {
  Found found;
  const std::vector<test::Kept> all = {
      {}, {MR_WEIGHTS_INT8}, {MR_WEIGHTS_INT4, 32}, {MR_WEIGHTS_FP8}, {MR_WEIGHTS_NF4, 64}};
  for (const Isa isa : available_isas()) {
    for (const std::string kv : {"", "+int8", "+int4", "+kivi"}) {
      for (size_t i = 0; i <= all.size(); ++i) {
        const bool sinks = i == all.size();
        const test::Kept kept = sinks ? test::Kept{} : all[i];
        const bool kivi = kv == "+kivi";
        if (kivi && i > 0) break;  // it has no windows, and so no sinks
        test::Builder builder = program(kept, sinks);
        if (kivi) builder.see_all();
        // Over a block of attention.
        add_program(found, isa, kv, builder, {70, 1, 1, 3}, kept.name() + (sinks ? " sinks" : ""));
      }
    }
    test::Builder builder = program({});
    for (mr_op& op : builder.ops) {
      if (!test::has_heads(op)) continue;
      op.attention.window = 0;
      op.attention.heavy = 30;
      op.attention.recent = 21;
    }
    add_program(found, isa, "", builder, {70, 57, 1, 1, 3}, "bits16 h2o");  // over two evictions
  }
  found.check();
}

// A machine without an instruction set checks the rows of those that it has.
TEST(Numerics, WhatThisMachineCannotCheckIsSaid) {
  const Isa isas[] = {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};
  for (const Isa isa : isas) {
    if (!runs(isa)) {
      std::fprintf(stderr, "NOT TESTED: numerics of %s: this machine cannot run it\n",
                   isa_name(isa));
    }
  }
}

}  // namespace
}  // namespace millrace::cpu
