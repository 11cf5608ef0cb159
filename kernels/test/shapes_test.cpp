// Layers whose keys and values have shapes of their own, are those of another layer, or are latents:
// close to ref, the same bits in any steps, and those of layers that keep all of it apart.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "harness.hpp"

namespace millrace::test {
namespace {

constexpr int kHidden = 48, kRotary = 8, kSlabs = 400;

struct Layer {
  int heads, kv_heads, key, value;
  int shares = -1;  // another layer, whose keys and values these are
  bool latent = false;
  int window = 0;  // in a group of its own
  bool chunked = false;
};

std::vector<Layer> plain_layers() {
  return {{6, 2, 40, 24}, {4, 1, 64, 96, -1, false, 20}, {3, 3, 16, 16}, {8, 2, 40, 24, 0}};
}

std::vector<Layer> latent_layers() {
  return {{5, 1, 40, 24, -1, true}, {6, 2, 24, 40}, {128, 1, 72, 64, -1, true}};
}

// Layers of one shape, which see everything, a window or a chunk. A rotation is of whole heads.
std::vector<Layer> seen_layers() {
  return {{4, 2, kRotary, kRotary},
          {4, 2, kRotary, kRotary, -1, false, 20},
          {4, 2, kRotary, kRotary, -1, false, 20, true}};
}

// As large as those of models: of Gemma 4, and of DeepSeek.
std::vector<Layer> wide_layers() { return {{2, 1, 512, 512}, {3, 1, 576, 512, -1, true}}; }

// Few sizes of heads, for each of which a device's code is compiled; values of two parts (value_part of gpu/shapes.hpp).
std::vector<Layer> few_layers() {
  return {{6, 2, 40, 320}, {3, 3, 16, 16, -1, false, 20}, {8, 2, 40, 320, 0}};
}
std::vector<Layer> few_latent_layers() {
  return {{5, 1, 40, 24, -1, true}, {128, 1, 40, 24, -1, true}};
}

// All layers read the same row, and their results are added up. twin: each layer has a copy of its
// keys and values in place of another layer's or of a latent.
Builder program(const std::vector<Layer>& layers, bool twin = false) {
  Builder b;
  b.vocab = 53;
  b.max_positions = 300;
  Random table(5);
  const int x = b.slot(MR_SLOT_F32, kHidden), normed = b.slot(MR_SLOT_OPERAND, kHidden);
  const int sum = b.slot(MR_SLOT_F32, kHidden), last = b.slot(MR_SLOT_F32, kHidden);
  const int result = b.slot(MR_SLOT_OPERAND, kHidden), logits = b.slot(MR_SLOT_F32, b.vocab);
  b.embed(b.random(table, b.vocab, kHidden, MR_BF16, 1.0f), x);
  b.norm(x, b.random(table, kHidden, 0, MR_BF16, 0.1f, 1.0f), normed);
  b.linear(normed, {b.part(b.random(table, kHidden, kHidden, MR_BF16, 0.1f))}, sum);
  b.layers = 0;
  std::vector<int> groups, places, keys, values;
  int next[2] = {};
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& l = layers[i];
    Random random(100 + i);
    const auto matrix = [&](int rows, int cols) {
      return b.random(random, rows, cols, MR_BF16, 1.0f / std::sqrt(static_cast<float>(cols)));
    };
    const bool shares = l.shares >= 0 && !twin;
    const int group = l.window > 0;
    groups.push_back(shares ? groups[l.shares] : group);
    places.push_back(shares ? places[l.shares] : next[group]++);
    keys.push_back(l.shares >= 0 ? keys[l.shares] : matrix(l.kv_heads * l.key, kHidden));
    values.push_back(l.shares >= 0 ? values[l.shares] : matrix(l.kv_heads * l.value, kHidden));
    b.layers = std::max(b.layers, places.back() + 1);
    b.kv_groups = std::max(b.kv_groups, groups.back() + 1);
    const mr_part q = b.part(matrix(l.heads * l.key, kHidden)), k = b.part(keys.back());
    mr_part v = b.part(values.back());
    if (l.latent) v = {keys.back(), -1, 0, int64_t{l.kv_heads} * l.value, l.value, l.key, 0, 0};
    const bool latent = l.latent && !twin;
    const bool apart = shares || latent;  // the slot has queries only
    const int kv_width = l.kv_heads * (l.key + l.value);
    const int in = b.slot(MR_SLOT_F32, l.heads * l.key + (apart ? 0 : kv_width));
    const int out = b.slot(MR_SLOT_OPERAND, l.heads * l.value);
    const auto shape = [&](mr_op& op) {
      op.attention.kv_heads = l.kv_heads;
      op.attention.head_dim = l.key;
      op.attention.value_dim = l.value == l.key ? 0 : l.value;
      op.attention.latent = latent;
      op.attention.kv_group = groups.back();
      op.attention.rotary_dim = kRotary;
      op.attention.rotary_offset = l.key - kRotary;
      op.attention.rotary_interleaved = l.latent;
      op.attention.inv_freq = b.inv_freq(kRotary);
    };
    if (latent) {
      const int latents = b.slot(MR_SLOT_F32, l.kv_heads * l.key);
      b.linear(normed, {k}, latents);
      shape(b.rope_store(places.back(), latents, 0));
    }
    b.linear(normed, apart ? std::vector<mr_part>{q} : std::vector<mr_part>{q, k, v}, in);
    mr_op& rope = b.rope_store(places.back(), in, l.heads);
    shape(rope);
    rope.attention.stored = apart;
    mr_op& attention = b.attention(places.back(), in, l.heads, out);
    shape(attention);
    attention.attention.stored = apart;
    attention.attention.scale = 1 / std::sqrt(static_cast<float>(l.key));
    attention.attention.window = l.window;
    attention.attention.chunked = l.chunked;
    b.linear(out, {b.part(matrix(kHidden, l.heads * l.value))}, sum).linear.accumulate = 1;
  }
  b.select_rows(sum, last);
  b.norm(last, b.random(table, kHidden, 0, MR_BF16, 0.1f, 1.0f), result);
  b.linear(result, {b.part(b.random(table, b.vocab, kHidden, MR_BF16, 0.2f))}, logits);
  return b;
}

std::vector<int32_t> prompt(int n) {
  Random random(9);
  return random.tokens(n, 53);
}

std::vector<float> run(Model& model, const std::vector<int32_t>& tokens, size_t chunk) {
  Sequence s(model);
  std::vector<float> logits;
  for (size_t i = 0; i < tokens.size(); i += chunk) {
    const size_t end = std::min(tokens.size(), i + chunk);
    const auto part = model.step({{&s, {tokens.begin() + i, tokens.begin() + end}}});
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

std::vector<float> run(const std::string& isa, Builder b, size_t chunk, int threads = 2) {
  Model model(isa, b, kSlabs, threads);
  return run(model, prompt(150), chunk);
}

// Two beams that change places after a prompt, so that one's past is in the other's region.
std::vector<float> beams(const std::string& isa, Builder b) {
  Model model(isa, b, kSlabs);
  Sequence s(model);
  model.step({{&s, prompt(41)}}, 0);
  std::deque<Sequence> responses;
  std::vector<mr_region*> regions;
  for (int i = 0; i < 2; ++i) {
    responses.emplace_back(model).reach(3);
    regions.push_back(responses.back().region);
  }
  std::vector<float> logits(2 * size_t(model.vocab));
  const int32_t tokens[] = {3, 7}, rows[] = {0, 1}, index[] = {1, 0, 0, 0};
  for (int t = 0; t < 3; ++t) {
    const mr_beams of{regions.data(), index, 41, 0};
    const mr_sequence sequence{s.region, 0, 2, 41 + t, 0, &of};
    mr_step step{};
    step.tokens = tokens;
    step.sequences = &sequence;
    step.output_rows = rows;
    step.logits = logits.data();
    step.rows = step.outputs = 2;
    step.n_sequences = 1;
    model.run(step);
  }
  return logits;
}

bool codes(const std::string& isa) { return isa.find('+') != std::string::npos; }

class Shapes : public testing::TestWithParam<std::string> {
 protected:
  // The layers that the KV cache has.
  std::vector<std::vector<Layer>> served() const {
    const bool few = on_device() && !GetParam().starts_with("ref");
    const auto plain = few ? few_layers() : plain_layers();
    if (codes(GetParam())) return {seen_layers(), plain};
    if (few) return {seen_layers(), plain, few_latent_layers(), {wide_layers().back()}};
    return {seen_layers(), plain, latent_layers(), wide_layers()};
  }
};

TEST_P(Shapes, AreCloseToRef) {
  for (const auto& layers : served()) {
    const auto expected = run(ref_of(GetParam()), program(layers), 50);
    EXPECT_LT(normalized_error(run(GetParam(), program(layers), 50), expected),
              codes(GetParam()) ? 2e-3 : 2e-4);
  }
}

TEST_P(Shapes, HaveTheSameBitsInAnySteps) {
  for (const auto& layers : served()) {
    const auto one_by_one = run(GetParam(), program(layers), 1);
    for (const size_t chunk : {7, 33, 120}) {
      EXPECT_EQ(run(GetParam(), program(layers), chunk, 3), one_by_one) << "chunks of " << chunk;
    }
    Builder b = program(layers);
    Model model(GetParam(), b, kSlabs);
    Sequence first(model), second(model);
    const std::vector<int32_t> tokens = prompt(60), other = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    model.step({{&second, other}}, 0);
    std::vector<float> logits;
    for (int i = 0; i < 60; i += 20) {
      const auto both = model.step(
          {{&first, {tokens.begin() + i, tokens.begin() + i + 20}}, {&second, {i, i + 1}}});
      logits.insert(logits.end(), both.begin(), both.begin() + int64_t{20} * model.vocab);
    }
    EXPECT_EQ(logits, run(model, tokens, 1));
  }
}

TEST_P(Shapes, HaveTheBitsOfCopies) {
  for (const auto& layers : served()) {
    if (on_device() && layers.front().key > 256) continue;  // another size to compile
    EXPECT_EQ(run(GetParam(), program(layers), 33), run(GetParam(), program(layers, true), 33));
    EXPECT_EQ(beams(GetParam(), program(layers)), beams(GetParam(), program(layers, true)));
  }
}

// Slabs have NaN wherever no token has been stored.
TEST_P(Shapes, ReadWhatTheyHaveStored) {
  for (const auto& layers : served()) {
    Builder b = program(layers);
    Model model(GetParam(), b, 40);
    const std::vector<uint8_t> nan(model.info().slab_bytes, 0xff);
    for (int slab = 0; slab < 40; ++slab) {
      mr_error error;
      check(model.device.backend->slab_write(model.handle, slab, nan.data(), &error), error);
    }
    EXPECT_EQ(run(model, prompt(150), 33), run(GetParam(), program(layers), 33));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Shapes, testing::ValuesIn(with_kv(tested_isas())),
                         [](const auto& i) { return isa_label(i.param); });
INSTANTIATE_TEST_SUITE_P(Ref, Shapes, testing::Values("ref", "ref+int8", "ref+int4"),
                         [](const auto& i) { return isa_label(i.param); });

// Groups of layers of 16 tokens, one of 2 (40 + 24) + 3 (16 + 16) elements and one of 64 + 96, in slabs of
// the larger one's size. A layer that shares has none, nor have the values of a latent.
TEST(ShapesLayout, SlabsHaveWhatLayersStore) {
  const auto slab_bytes = [](const std::vector<Layer>& layers) {
    Builder b = program(layers);
    return Model("ref", b, 4).info().slab_bytes;
  };
  const auto pages = [](uint64_t bytes) {
    const uint64_t page = sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
  };
  EXPECT_EQ(slab_bytes(plain_layers()), pages(16 * 4 * (2 * 64 + 3 * 32)));
  EXPECT_EQ(slab_bytes(latent_layers()), pages(16 * 4 * (40 + 2 * 64 + 72)));
  EXPECT_EQ(slab_bytes(wide_layers()), pages(16 * 4 * (2 * 512 + 576)));
}

struct Refused {
  const char* what;
  const char* isa;
  void (*change)(mr_attention&);
  const char* why;
};

TEST(ShapesLayout, WhatLatentsLackIsRefusedByName) {
  const Refused refused[] = {
      {"int8", "ref+int8", [](mr_attention&) {}, "a KV cache of int8: found latents"},
      {"int4", "+int4", [](mr_attention&) {}, "a KV cache of int4: found latents"},
      {"kivi", "+kivi", [](mr_attention&) {}, "a KV cache of kivi: found latents"},
      {"heavy tokens", "ref",
       [](mr_attention& a) {
         a.heavy = 4;
         a.recent = 4;
       },
       "heavy tokens: found latents"},
      {"sinks", "ref",
       [](mr_attention& a) {
         a.window = 20;
         a.sinks = 4;
       },
       "4 sinks: found latents"},
  };
  for (const Refused& r : refused) {
    Builder b = program({latent_layers().front()});
    for (mr_op& op : b.ops) {
      if (has_heads(op)) r.change(op.attention);
    }
    try {
      Model model(r.isa, b, 4);
      ADD_FAILURE() << r.what << " accepted";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status, MR_UNSUPPORTED) << r.what;
      EXPECT_NE(std::string(failure.what()).find(r.why), std::string::npos) << failure.what();
    }
  }
}

}  // namespace
}  // namespace millrace::test
