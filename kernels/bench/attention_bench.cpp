// Times attention at the shape of a Llama of 1.1 B (22 layers, 32 heads, 4 KV
// heads of 64 elements), or another one, against what the machine can do.
//
//   attention_bench [--isa NAME] [--threads N] [--part prefill|decode|short|shared]
//                   [--layers 22] [--heads 32] [--kv-heads 4] [--kv int8|int4]
//                   [--batch 16] [--shared 4096] [--own 64]
//
// Prefill: GFLOP/s of the products that a causal mask leaves, and their share of
// the peak of products from registers. Decode: GB/s of keys and values, and
// their share of the bandwidth of reading memory. All are measured in this run. Shared: decode of
// --batch sequences that have their first --shared tokens, whole slabs, in common, and then --own
// tokens each; and the same with nothing in common, both in turn.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "test/harness.hpp"

namespace {

using namespace millrace::test;

constexpr int kHeadDim = 64;
constexpr int kRuns = 7;

int layers = 22, heads = 32, kv_heads = 4;
mr_kv_type kv_type = MR_KV_AUTO;

Builder attention_program(int max_positions) {
  Builder b;
  b.layers = layers;
  b.kv_heads = kv_heads;
  b.head_dim = kHeadDim;
  b.kv_type = kv_type;
  b.vocab = heads * kHeadDim;
  b.max_positions = max_positions;
  b.max_rows = b.max_outputs = 512;
  Random random(1);
  const int width = (heads + 2 * kv_heads) * kHeadDim;
  const int qkv = b.slot(MR_SLOT_F32, width), out = b.slot(MR_SLOT_F32, b.vocab);
  b.embed(b.random(random, b.vocab, width, MR_BF16, 1.0f), qkv);
  for (int layer = 0; layer < layers; ++layer) {
    mr_op& rope = b.rope_store(layer, qkv, heads);
    rope.attention.rotary_dim = kHeadDim;
    rope.attention.inv_freq = b.inv_freq(kHeadDim);
    b.attention(layer, qkv, heads, out);
  }
  b.select_rows(out, b.slot(MR_SLOT_F32, b.vocab));
  return b;
}

struct Times {
  // Seconds of all layers at the pace of the fastest: of another program on the
  // machine the least is seen there.
  double attention = 1e30, rope_store = 1e30;
};

// Steps of `rows` tokens of each of `batch` sequences after `context` others,
// whose keys and values are zero: that costs the same. The first `shared` tokens, whole slabs, are
// those of the first sequence.
Times time(const std::string& isa, int threads, int batch, int rows, int context, int shared = 0) {
  const int positions = context + rows;
  Builder b = attention_program(positions);
  const int slabs = (positions + MR_SLAB_TOKENS - 1) / MR_SLAB_TOKENS * batch;
  Model model(isa, b, slabs, threads);
  std::deque<Sequence> sequences;
  std::vector<mr_sequence> parts;
  std::vector<int32_t> tokens;
  Random random(2);
  for (int i = 0; i < batch; ++i) {
    sequences.emplace_back(model);
    if (i > 0) sequences.back().share(sequences.front(), shared);
    sequences.back().reach(positions);
    parts.push_back({sequences.back().region, i * rows, rows, context, 0, nullptr});
    for (const int32_t t : random.tokens(rows, b.vocab)) tokens.push_back(t);
  }
  std::vector<mr_op_time> times(b.ops.size());
  mr_step step{};
  step.tokens = tokens.data();
  step.sequences = parts.data();
  step.op_times = times.data();
  step.rows = batch * rows;
  step.n_sequences = batch;
  Times best;
  for (int run = 0; run < kRuns; ++run) {
    model.run(step);
    for (size_t i = 0; i < b.ops.size(); ++i) {
      const double seconds = static_cast<double>(times[i].nanoseconds) * 1e-9 * layers;
      if (b.ops[i].kind == MR_OP_ATTENTION) best.attention = std::min(best.attention, seconds);
      if (b.ops[i].kind == MR_OP_ROPE_STORE) best.rope_store = std::min(best.rope_store, seconds);
    }
  }
  return best;
}

mr_measurement measure(const std::string& isa, int threads) {
  const Device device(isa, threads);
  mr_measurement m;
  mr_error error;
  check(device.backend->device_measure(device.handle, &m, &error), error);
  return m;
}

void prefill(const std::string& isa, int threads, const mr_measurement& best, int rows,
             int context) {
  const Times t = time(isa, threads, 1, rows, context);
  const double keys = static_cast<double>(rows) * context + 0.5 * rows * (rows + 1.0);
  const double gflops = 4.0 * layers * heads * kHeadDim * keys / t.attention * 1e-9;
  std::printf(
      "prefill %4d rows after %5d: attention %8.2f ms, %6.1f GFLOP/s, %4.1f%% of peak; "
      "rope+store %6.2f ms\n",
      rows, context, t.attention * 1e3, gflops, 100 * gflops / best.peak_gflops,
      t.rope_store * 1e3);
}

void decode(const std::string& isa, int threads, const mr_measurement& best, int batch,
            int context) {
  const Times t = time(isa, threads, batch, 1, context);
  const double bytes = 2.0 * layers * 2 * kv_heads * kHeadDim * batch * (context + 1.0);
  const double gbps = bytes / t.attention * 1e-9;
  std::printf(
      "decode  %4d rows after %5d: attention %8.2f ms, %6.1f GB/s, %4.1f%% of bandwidth; "
      "rope+store %6.2f ms\n",
      batch, context, t.attention * 1e3, gbps, 100 * gbps / best.read_gbps, t.rope_store * 1e3);
}

void shared(const std::string& isa, int threads, int batch, int tokens, int own) {
  const Times with = time(isa, threads, batch, 1, tokens + own, tokens);
  const Times without = time(isa, threads, batch, 1, tokens + own);
  std::printf(
      "decode  %4d rows after %5d shared and %4d own: attention %8.2f ms, not shared %8.2f ms\n",
      batch, tokens, own, with.attention * 1e3, without.attention * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  std::string isa, part;
  int threads = 0, batch = 16, shared_tokens = 4096, own = 64;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--isa") == 0) isa = argv[i + 1];
    if (std::strcmp(argv[i], "--threads") == 0) threads = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--layers") == 0) layers = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--heads") == 0) heads = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--kv-heads") == 0) kv_heads = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--kv") == 0) {
      kv_type = std::strcmp(argv[i + 1], "int4") == 0   ? MR_KV_INT4
                : std::strcmp(argv[i + 1], "int8") == 0 ? MR_KV_INT8
                                                        : MR_KV_AUTO;
    }
    if (std::strcmp(argv[i], "--batch") == 0) batch = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--shared") == 0) shared_tokens = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--own") == 0) own = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--part") == 0) part = argv[i + 1];
  }
  const mr_measurement best = measure(isa, threads);
  std::printf("peak %.0f GFLOP/s, reading %.1f GB/s\n", best.peak_gflops, best.read_gbps);
  if (part.empty() || part == "prefill") {
    for (const int context : {0, 2048}) prefill(isa, threads, best, 512, context);
  }
  if (part.empty() || part == "decode") {
    for (const int context : {512, 2048, 8192, 32768}) decode(isa, threads, best, 1, context);
    for (const int context : {128, 512, 2048}) decode(isa, threads, best, 16, context);
  }
  if (part.empty() || part == "short") {
    for (const int context : {20, 100, 200, 400}) decode(isa, threads, best, 64, context);
  }
  if (part == "shared") shared(isa, threads, batch, shared_tokens, own);
}
