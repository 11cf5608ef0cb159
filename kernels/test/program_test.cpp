// Bad programs and devices are refused with a message that names the op, what
// was found and what was expected.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "harness.hpp"

namespace millrace::test {
namespace {

// Ops of small_llama().
enum {
  kEmbed = 0,
  kNorm = 1,
  kQkv = 2,
  kRope = 3,
  kAttention = 4,
  kOut = 5,
  kUp = 7,
  kSelect = 17
};

struct Bad {
  const char* name;
  std::function<void(Builder&)> change;
  const char* message;
};

// A norm of some elements of a row.
mr_norm part_norm(int offset, int width, int groups) {
  return {-1, -1, MR_NORM_RMS, 1e-5f, 0, offset, width, groups, 0};
}

void expect_refused(const Bad& bad) {
  SCOPED_TRACE(bad.name);
  for (const char* backend : {"ref", ""}) {
    Builder b = small_llama();
    ASSERT_EQ(b.ops[kUp].linear.gated, 1);
    ASSERT_EQ(b.ops[kSelect].kind, MR_OP_SELECT_ROWS);
    bad.change(b);
    try {
      Model model(backend, b, 0);
      ADD_FAILURE() << "accepted";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status, MR_INVALID);
      EXPECT_NE(std::string(failure.what()).find(bad.message), std::string::npos) << failure.what();
    }
  }
}

TEST(Program, AKvCacheThatTheBackendLacksIsRefused) {
  for (const char* backend : {"ref", ""}) {
    Builder b = small_llama();
    const int own = Model(backend, b, 0).info().kv_type;
    for (const mr_kv_type type : {MR_KV_F32, MR_KV_F16, MR_KV_BF16}) {
      b.kv_type = type;
      if (type == own) {
        EXPECT_EQ(Model(backend, b, 0).info().kv_type, own);
        continue;
      }
      try {
        Model model(backend, b, 0);
        ADD_FAILURE() << "accepted";
      } catch (const Failure& failure) {
        EXPECT_EQ(failure.status, MR_UNSUPPORTED);
        EXPECT_NE(std::string(failure.what()).find("this backend keeps keys and values as"),
                  std::string::npos)
            << failure.what();
      }
    }
  }
}

TEST(Program, BadShapesAreRefused) {
  const Bad bad[] = {
      {"no vocabulary", [](Builder& b) { b.vocab = 0; }, "vocab is 0"},
      {"no layers", [](Builder& b) { b.layers = 0; }, "layers is 0"},
      {"too many groups", [](Builder& b) { b.kv_groups = 65; }, "kv_groups is 65"},
      {"no positions", [](Builder& b) { b.max_positions = 0; }, "max_positions is 0"},
      {"no rows", [](Builder& b) { b.max_rows = 0; }, "max_rows is 0"},
      {"more outputs than rows", [](Builder& b) { b.max_outputs = 129; }, "max_outputs is 129"},
      {"negative hidden states", [](Builder& b) { b.max_hidden = -1; }, "max_hidden is -1"},
      {"more hidden states than rows", [](Builder& b) { b.max_hidden = 129; }, "max_hidden is 129"},
      {"hidden states without logits",
       [](Builder& b) {
         b.max_hidden = 1;
         b.vocab = 72;
         b.ops.pop_back();
         b.slots[b.ops.back().out].type = MR_SLOT_F32;
       },
       "expected LINEAR"},
      {"unknown KV cache", [](Builder& b) { b.kv_type = static_cast<mr_kv_type>(7); },
       "kv_type is 7, expected 0 to 6"},
      {"groups of layers with KIVI",
       [](Builder& b) {
         b.kv_type = MR_KV_KIVI;
         b.kv_groups = 2;
       },
       "kv_groups is 2, expected 0 to 1"},
      {"no ops", [](Builder& b) { b.ops.clear(); }, "n_ops is 0"},
      {"slot of no width", [](Builder& b) { b.slots[1].width = 0; }, "slot 1 is 0 wide"},
      {"slot of no type", [](Builder& b) { b.slots[2].type = 5; }, "slot 2 has type 5"},
      {"tensor without data", [](Builder& b) { b.tensors[3].data = nullptr; }, "tensor 3 has no"},
      {"tensor of no type", [](Builder& b) { b.tensors[3].dtype = 3; }, "tensor 3 has dtype 3"},
      {"tensor of unknown blocks", [](Builder& b) { b.tensors[3].dtype = MR_BLOCKS + 9; },
       "tensor 3 has dtype 265"},
      {"a vector of blocks",
       [](Builder& b) {
         b.tensors[1].dtype = MR_BLOCKS + 8;
         b.tensors[1].rank = 1;
       },
       "of Q8_0 has rank 1"},
      {"tensor of a part of a block",
       [](Builder& b) {
         b.tensors[3].dtype = MR_BLOCKS + 12;
         b.tensors[3].rank = 2;
         b.tensors[3].dims[1] = 255;
       },
       "rows of 255, expected a matrix of whole blocks of 256"},
      {"tensor of rank 3", [](Builder& b) { b.tensors[3].rank = 3; }, "rank 3"},
      {"tensor of no rows", [](Builder& b) { b.tensors[3].dims[0] = 0; }, "tensor 3 is [0"},
      {"tensor that overflows", [](Builder& b) { b.tensors[3].dims[0] = INT64_MAX; }, "tensor 3"},
      {"tensor whose product overflows",
       [](Builder& b) { b.tensors[3].dims[0] = b.tensors[3].dims[1] = int64_t{1} << 33; },
       "tensor 3"},
  };
  for (const Bad& b : bad) expect_refused(b);
}

TEST(Program, BadOpsAreRefused) {
  const Bad bad[] = {
      {"unknown op", [](Builder& b) { b.ops[kNorm].kind = 99; }, "unknown op kind 99"},
      {"slot out of range", [](Builder& b) { b.ops[kNorm].in = 70; }, "op 1 (NORM): in is 70"},
      {"negative slot", [](Builder& b) { b.ops[kNorm].out = -1; }, "out is -1"},
      {"slot read before written", [](Builder& b) { b.ops[kNorm].in = 5; }, "before any op wrote"},
      {"embed of another width", [](Builder& b) { b.ops[kEmbed].out = 2; }, "op 0 (EMBED)"},
      {"embed of nothing", [](Builder& b) { b.ops[kEmbed].embed.table = -1; }, "neither"},
      {"embed scale", [](Builder& b) { b.ops[kEmbed].embed.scale = NAN; }, "embed_scale is nan"},
      {"positions too few", [](Builder& b) { b.ops[kEmbed].embed.positions = 0; }, ">= 2048"},
      {"norm of an operand", [](Builder& b) { b.ops[kNorm + 5].in = b.ops[kNorm].out; },
       "expected 0 (F32)"},
      {"weights of blocks that are none",
       [](Builder& b) { b.ops[kQkv].linear.weights = MR_WEIGHTS_BLOCKS; },
       "expected blocks, by the op's weights"},
      {"interleaved halves of an odd block",
       [](Builder& b) {
         b.ops[kOut].linear.parts[0].interleaved = 1;
         b.ops[kOut].linear.parts[0].block = 7;
       },
       "interleaved blocks of 7"},
      {"a norm accumulating an operand",
       [](Builder& b) {
         b.ops[kNorm + 5].out = b.ops[kNorm].out;
         b.ops[kNorm + 5].norm.accumulate = 1;
       },
       "op 6 (NORM)"},
      {"norm weight missing", [](Builder& b) { b.ops[kNorm].norm.weight = -2; },
       "weight is tensor -2"},
      {"norm of a part of another slot", [](Builder& b) { b.ops[kNorm].norm = part_norm(0, 8, 1); },
       "norms a part of slot 0 to slot 1, expected one slot"},
      {"norm of a part beyond its slot",
       [](Builder& b) { b.ops[kNorm].norm = part_norm(70, 8, 1); }, "norm width is 8"},
      {"norm of unequal groups", [](Builder& b) { b.ops[kNorm].norm = part_norm(0, 8, 3); },
       "norms 8 elements in 3 groups"},
      {"a limit of 0", [](Builder& b) { b.ops[kQkv].linear.activation = MR_ACT_SOFTCAP; },
       "act_a is 0, expected > 0"},
      {"a SwiGLU without a gate",
       [](Builder& b) {
         b.ops[kQkv].linear.activation = MR_ACT_SWIGLU;
         b.ops[kQkv].linear.act_a = 1;
       },
       "a SWIGLU without a gate"},
      {"weights of no experts", [](Builder& b) { b.ops[kQkv].linear.weighs_in = 1; },
       "weighs_in is 1"},
      {"chunks without a window", [](Builder& b) { b.ops[kAttention].attention.chunked = 1; },
       "chunked is 1"},
      {"both ways of one op", [](Builder& b) { b.ops[kAttention].attention.both_ways = 1; },
       "both_ways is 1, expected 0 as in the first layer"},
      {"both ways with chunks",
       [](Builder& b) {
         for (mr_op& op : b.ops) {
           if (has_heads(op)) op.attention.both_ways = 1;
         }
         b.ops[kAttention].attention.window = 5;
         b.ops[kAttention].attention.chunked = 1;
       },
       "attention both ways with chunks"},
      {"a mean of a text's rows in parts",
       [](Builder& b) {
         for (mr_op& op : b.ops) {
           if (op.kind == MR_OP_SELECT_ROWS) op.select.pooling = MR_POOL_MEAN;
         }
       },
       "has pooling 2, expected 0"},
      {"three types of tokens", [](Builder& b) { b.ops[kEmbed].embed.types = 0; },
       "the type table's rows"},
      {"other classes", [](Builder& b) { b.classes = 3; }, "expected F32 and the classes, 3"},
      {"a negative cap", [](Builder& b) { b.ops[kAttention].attention.softcap = -1; },
       "softcap is -1"},
      {"null scores that are none",
       [](Builder& b) { b.ops[kAttention].attention.null_scores = 999; }, "null_scores is tensor"},
      {"factors of no tokens",
       [](Builder& b) {
         b.ops[kRope].attention.q_scales = b.constant({1, 2});
         b.ops[kRope].attention.n_q_scales = 2;
       },
       "q_scale_tokens is 0"},
      {"norm weight out of range", [](Builder& b) { b.ops[kNorm].norm.weight = 999; },
       "tensor 999"},
      {"norm weight of rank 2", [](Builder& b) { b.ops[kNorm].norm.weight = 0; },
       "rank 2, expected 1"},
      {"norm kind", [](Builder& b) { b.ops[kNorm].norm.kind = 3; }, "norm_kind is 3"},
      {"a factor of an operand", [](Builder& b) { b.ops[kNorm].norm.scale = 2; },
       "out (scaled) slot 1 has type 1"},
      {"positions that are added",
       [](Builder& b) {
         b.ops[kEmbed + 1] = b.ops[kEmbed];
         b.ops[kEmbed + 1].embed.accumulate = 1;
         b.ops[kEmbed + 1].embed.positions = b.ops[kEmbed].embed.table;
       },
       "adds positions, expected rows of a token table"},
      {"rows added to nothing", [](Builder& b) { b.ops[kEmbed].embed.accumulate = 1; },
       "is read before any op wrote it"},
      {"eps", [](Builder& b) { b.ops[kNorm].norm.eps = -1; }, "eps is -1"},
      {"no parts", [](Builder& b) { b.ops[kQkv].linear.n_parts = 0; }, "n_parts is 0"},
      {"too many parts", [](Builder& b) { b.ops[kQkv].linear.n_parts = 4; }, "n_parts is 4"},
      {"rows that do not fill the slot", [](Builder& b) { b.ops[kQkv].linear.n_parts = 2; },
       "is 400 wide, expected 320"},
      {"part beyond its tensor", [](Builder& b) { b.ops[kQkv].linear.parts[1].offset = 1; },
       "part 1 reaches row 80 of tensor 3, which has 80"},
      {"part of no rows", [](Builder& b) { b.ops[kQkv].linear.parts[0].rows = 0; }, "rows is 0"},
      {"part of negative rows", [](Builder& b) { b.ops[kQkv].linear.parts[0].rows = -8; },
       "rows is -8"},
      {"part of no block", [](Builder& b) { b.ops[kQkv].linear.parts[0].block = 0; }, "block is 0"},
      {"part of huge stride", [](Builder& b) { b.ops[kQkv].linear.parts[0].stride = INT64_MAX; },
       "stride"},
      {"part of negative offset", [](Builder& b) { b.ops[kQkv].linear.parts[0].offset = -1; },
       "offset"},
      {"blocks beyond the tensor",
       [](Builder& b) {
         b.ops[kQkv].linear.parts[0].block = 40;
         b.ops[kQkv].linear.parts[0].stride = 41;
       },
       "reaches row 244"},
      {"weight of another width",
       [](Builder& b) { b.ops[kQkv].linear.parts[0].weight = b.ops[kOut].linear.parts[0].weight; },
       "expected the width of in, 72"},
      {"bias of rank 2", [](Builder& b) { b.ops[kQkv].linear.parts[0].bias = 0; }, "rank 2"},
      {"bias too short",
       [](Builder& b) { b.ops[kQkv].linear.parts[0].bias = b.ops[kNorm].norm.weight; },
       "row 239 of its bias"},
      {"activation", [](Builder& b) { b.ops[kQkv].linear.activation = 10; }, "activation is 10"},
      {"weights of no type", [](Builder& b) { b.ops[kQkv].linear.weights = 6; }, "weights is 6"},
      {"int4 of no group", [](Builder& b) { b.ops[kQkv].linear.weights = MR_WEIGHTS_INT4; },
       "group is 0"},
      {"nf4 in groups of 32",
       [](Builder& b) {
         b.ops[kQkv].linear.weights = MR_WEIGHTS_NF4;
         b.ops[kQkv].linear.group = 32;
       },
       "group is 32, expected 64"},
      {"a group of 16 bits", [](Builder& b) { b.ops[kQkv].linear.group = 32; }, "group is 32"},
      {"gated of one part", [](Builder& b) { b.ops[kUp].linear.n_parts = 1; }, "two of equal rows"},
      {"accumulating an operand", [](Builder& b) { b.ops[kUp].linear.accumulate = 1; },
       "op 7 (LINEAR)"},
      {"in is out",
       [](Builder& b) {
         b.slots[0].type = MR_SLOT_F32;
         b.ops[kOut].in = b.ops[kOut].out;
       },
       "op 5 (LINEAR)"},
      {"layer out of range", [](Builder& b) { b.ops[kRope].layer = 2; }, "layer is 2"},
      {"group out of range", [](Builder& b) { b.ops[kRope].attention.kv_group = 1; },
       "kv_group is 1"},
      {"layer stored twice", [](Builder& b) { b.ops[kRope + 8].layer = 0; }, "second time"},
      {"layer not stored", [](Builder& b) { b.ops[kAttention].layer = 1; }, "has stored layer 1"},
      {"heads of no group", [](Builder& b) { b.ops[kRope].attention.heads = 5; }, "5 heads over 2"},
      {"negative KV heads", [](Builder& b) { b.ops[kRope].attention.kv_heads = -1; },
       "kv_heads is -1"},
      {"huge head_dim", [](Builder& b) { b.ops[kRope].attention.head_dim = 1 << 20; },
       "head_dim is 1048576"},
      {"another shape than what is stored",
       [](Builder& b) {
         mr_attention& a = b.ops[kAttention].attention;
         a.heads = 2;
         a.head_dim = 60;
         a.value_dim = 80;
       },
       "2 KV heads of 60 and 80 elements, expected 2 of 40 and 40 as layer 0 has them"},
      {"other head_dim", [](Builder& b) { b.ops[kRope].attention.head_dim = 32; },
       "400 wide, expected 320"},
      {"stored by nobody", [](Builder& b) { b.ops[kRope].attention.stored = 1; },
       "no ROPE_STORE before it has stored layer 0"},
      {"values wider than latents",
       [](Builder& b) {
         b.ops[kRope].attention.latent = 1;
         b.ops[kRope].attention.value_dim = 48;
       },
       "value_dim is 48, expected 1 to 40"},
      {"no heads at all",
       [](Builder& b) {
         b.ops[kRope].attention.heads = 0;
         b.ops[kRope].attention.stored = 1;
       },
       "heads is 0"},
      {"rotation beyond a head", [](Builder& b) { b.ops[kRope].attention.rotary_offset = 2; },
       "rotary_offset is 2, expected 0 to 0"},
      {"other heads", [](Builder& b) { b.ops[kAttention].attention.heads = 4; },
       "400 wide, expected 320"},
      {"odd rotary_dim", [](Builder& b) { b.ops[kRope].attention.rotary_dim = 7; }, "even"},
      {"huge rotary_dim", [](Builder& b) { b.ops[kRope].attention.rotary_dim = 42; },
       "rotary_dim is 42"},
      {"no inv_freq", [](Builder& b) { b.ops[kRope].attention.inv_freq = nullptr; }, "inv_freq"},
      {"window", [](Builder& b) { b.ops[kAttention].attention.window = -1; }, "window is -1"},
      {"scale", [](Builder& b) { b.ops[kAttention].attention.scale = INFINITY; }, "scale is inf"},
      {"q_norm of another length",
       [](Builder& b) { b.ops[kRope].attention.q_norm = b.ops[kNorm].norm.weight; },
       "expected [40]"},
      {"no SELECT_ROWS", [](Builder& b) { b.ops.resize(kSelect); }, "no SELECT_ROWS"},
      {"rows selected twice",
       [](Builder& b) { std::swap(b.ops[kSelect + 1].in, b.ops[kSelect].in); },
       "before any op wrote it"},
      {"outputs selected",
       [](Builder& b) {
         b.ops[kSelect + 1] = b.ops[kSelect];
         b.ops[kSelect + 1].in = b.ops[kSelect].out;
       },
       "has the output rows already"},
      {"rows read after SELECT_ROWS", [](Builder& b) { b.ops[kSelect + 1].in = 0; },
       "before SELECT_ROWS"},
      {"attention after SELECT_ROWS", [](Builder& b) { b.ops[kSelect + 1] = b.ops[kAttention]; },
       "comes after"},
      {"logits of another width", [](Builder& b) { b.ops.pop_back(); }, "the vocabulary, 97"},
  };
  for (const Bad& b : bad) expect_refused(b);
}

TEST(Program, HeadsThatTheCpuCannotRunAreUnsupported) {
  for (const int head_dim : {20, 584}) {
    Builder b;
    b.vocab = b.head_dim = head_dim;
    Random random(1);
    const int qkv = b.slot(MR_SLOT_F32, 3 * head_dim), out = b.slot(MR_SLOT_F32, head_dim);
    b.embed(b.random(random, head_dim, 3 * head_dim, MR_F32, 1), qkv);
    b.rope_store(0, qkv, 1);
    b.attention(0, qkv, 1, out);
    b.select_rows(out, b.slot(MR_SLOT_F32, head_dim));
    Model ref("ref", b, 1);
    try {
      Model cpu("", b, 1);
      ADD_FAILURE() << "accepted";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status, MR_UNSUPPORTED);
      EXPECT_NE(std::string(failure.what()).find(std::to_string(head_dim)), std::string::npos);
    }
  }
}

TEST(Program, NullPointersAreRefused) {
  for (const mr_backend* backend : {millrace_backend_ref(), millrace_backend_cpu()}) {
    mr_error error;
    mr_device_config config{};
    mr_device* device = nullptr;
    EXPECT_EQ(backend->device_open(nullptr, &device, &error), MR_INVALID);
    EXPECT_EQ(backend->device_open(&config, nullptr, &error), MR_INVALID);
    EXPECT_EQ(backend->device_open(&config, nullptr, nullptr), MR_INVALID);
    EXPECT_EQ(backend->program_run(nullptr, nullptr, &error), MR_INVALID);
    EXPECT_EQ(backend->region_map(nullptr, 0, nullptr, 0, &error), MR_INVALID);
    backend->device_close(nullptr);
    backend->program_unload(nullptr);
    backend->region_destroy(nullptr);
    ASSERT_EQ(backend->device_open(&config, &device, &error), MR_OK) << error.message;
    mr_program* program = nullptr;
    mr_program_desc desc{};
    EXPECT_EQ(backend->program_load(device, nullptr, &program, &error), MR_INVALID);
    EXPECT_EQ(backend->program_load(device, &desc, &program, &error), MR_INVALID);
    backend->device_close(device);
  }
}

// A program's own text, and the same of one that is loaded again.
TEST(Program, NamesWhatItsBitsDependOn) {
  for (const std::string& isa : with_kv(tested_isas())) {
    std::string first;
    for (int load = 0; load < 2; ++load) {
      Builder b = small_llama();
      const Model model(isa, b, 0);
      const mr_backend* const backend = model.device.backend;
      const char* text = nullptr;
      mr_error error;
      ASSERT_EQ(backend->program_numerics(model.handle, &text, &error), MR_OK) << error.message;
      const std::string expected = std::string(backend->name) + " ";
      EXPECT_EQ(std::string(text).find(expected), 0u) << text;
      EXPECT_GT(std::strlen(text), expected.size() + 2) << text;
      if (load == 0) first = text;
      EXPECT_EQ(first, text);
      EXPECT_EQ(backend->program_numerics(model.handle, nullptr, &error), MR_INVALID);
    }
  }
}

TEST(DeviceTest, SaysWhatItRuns) {
  for (const std::string& isa : tested_isas()) {
    const Device device(isa, 3);
    mr_device_info info;
    mr_error error;
    ASSERT_EQ(device.backend->device_info(device.handle, &info, &error), MR_OK);
    EXPECT_EQ(info.isa, isa);
    EXPECT_NE(std::string(info.isas).find(isa), std::string::npos);
    EXPECT_EQ(info.threads, 3);
    EXPECT_GT(info.memory_total, 0u);
    EXPECT_LE(info.memory_available, info.memory_total);
    EXPECT_EQ(device.backend->abi_version, static_cast<uint32_t>(MR_ABI_VERSION));
  }
}

TEST(DeviceTest, UnknownInstructionSetsAreRefused) {
  try {
    const Device device("sse9");
    ADD_FAILURE() << "accepted";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status, MR_INVALID);
    EXPECT_NE(std::string(failure.what()).find("portable"), std::string::npos) << failure.what();
  }
}

TEST(DeviceTest, AbsurdThreadsAreRefused) {
  for (const char* isa : {"ref", ""}) {
    EXPECT_THROW(Device(isa, -1), Failure);
    EXPECT_THROW(Device(isa, 1 << 20), Failure);
  }
}

}  // namespace
}  // namespace millrace::test
