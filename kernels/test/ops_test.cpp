// EMBED, NORM, LINEAR and SELECT_ROWS of the cpu backend against ref.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "harness.hpp"

namespace millrace::test {
namespace {

constexpr mr_dtype kDtypes[] = {MR_F32, MR_F16, MR_BF16};
constexpr int kRows[] = {1, 2, 3, 7, 16, 33, 111};

std::vector<float> result(const std::string& isa, Builder& b, int rows, int position = 0) {
  Model model(isa, b, (position + rows) / MR_SLAB_TOKENS + 1);
  Sequence s(model);
  Random random(17);
  s.reach(position + rows);
  s.position = position;
  return model.step({{&s, random.tokens(rows, b.vocab)}});
}

// The backend under test on every instruction set against ref.
void expect_close(Builder& b, int rows, double most, int position = 0) {
  const std::vector<float> expected = result("ref", b, rows, position);
  for (const std::string& isa : tested_isas()) {
    EXPECT_LT(normalized_error(result(isa, b, rows, position), expected), most)
        << isa << ", " << rows << " rows";
  }
}

// Rounding of operands and of F32 or F16 weights to bf16; none of it.
constexpr double kRounded = 2e-5, kExact = 1e-11;

// EMBED of a random table of bf16 values into a new slot.
int input(Builder& b, Random& random, mr_slot_type type, int width) {
  const int x = b.slot(type, width);
  b.embed(b.random(random, b.vocab, width, MR_BF16, 1.0f), x);
  return x;
}

void finish(Builder& b, int slot) { b.select_rows(slot, b.slot(MR_SLOT_F32, b.vocab)); }

TEST(Embed, TablesAndPositionsAreCloseToRef) {
  for (const mr_dtype dtype : kDtypes) {
    for (const int width : {1, 37, 64, 200}) {
      for (const bool positions : {false, true}) {
        for (const bool table : {false, true}) {
          if (!table && !positions) continue;
          Builder b;
          Random random(1);
          b.vocab = width;
          b.max_positions = 300;
          const int x = b.slot(MR_SLOT_F32, width);
          mr_op& op = b.embed(table ? b.random(random, width, width, dtype, 1.0f) : -1, x);
          op.embed.scale = 3.5f;
          op.embed.position_offset = 2;
          if (positions) op.embed.positions = b.random(random, 302, width, dtype, 1.0f);
          finish(b, x);
          expect_close(b, 33, kExact, 190);
        }
      }
    }
  }
}

// The table has fewer rows than the vocabulary.
TEST(Embed, RowsThatAreAddedAreCloseToRef) {
  for (const mr_dtype dtype : kDtypes) {
    for (const int rows : {1, 40, 97}) {
      Builder b;
      Random random(9);
      b.vocab = 97;
      const int x = input(b, random, MR_SLOT_F32, 97);
      mr_op& op = b.embed(b.random(random, rows, 97, dtype, 1.0f), x);
      op.embed.scale = 0.3f;
      op.embed.accumulate = 1;
      finish(b, x);
      expect_close(b, 33, kExact);
    }
  }
}

TEST(Embed, TokensBeyondATableThatIsAddedTakeItsFirstRow) {
  for (const std::string& isa : {std::string("ref"), tested_isas().front()}) {
    Builder b;
    b.vocab = 3;
    const int x = b.slot(MR_SLOT_F32, 3);
    b.embed(b.tensor({10, 20, 30, 40, 50, 60, 70, 80, 90}, 3, 3, MR_F32), x);
    mr_op& op = b.embed(b.tensor({1, 2, 3, 4, 5, 6}, 2, 3, MR_F32), x);
    op.embed.scale = 2;
    op.embed.accumulate = 1;
    finish(b, x);
    Model model(isa, b, 1);
    Sequence s(model);
    EXPECT_EQ(model.step({{&s, {0, 1, 2}}}),
              std::vector<float>({12, 24, 36, 48, 60, 72, 72, 84, 96}))
        << isa;
  }
}

TEST(Norm, EveryKindIsCloseToRef) {
  for (const mr_dtype dtype : kDtypes) {
    for (const int width : {1, 3, 16, 37, 72, 500, 1024, 3072}) {
      for (const mr_norm_kind kind : {MR_NORM_RMS, MR_NORM_LAYER}) {
        SCOPED_TRACE("width " + std::to_string(width) + ", dtype " + std::to_string(dtype));
        if (width == 1 && kind == MR_NORM_LAYER) continue;  // always the bias
        Builder b;
        Random random(2);
        b.vocab = width;
        const int x = input(b, random, MR_SLOT_F32, width);
        mr_op& op = b.norm(x, b.random(random, width, 0, dtype, 0.3f, 1.0f), x);  // in place
        op.norm.kind = kind;
        if (kind == MR_NORM_LAYER) op.norm.bias = b.random(random, width, 0, dtype, 0.3f);
        finish(b, x);
        expect_close(b, 7, kExact);
      }
    }
  }
}

TEST(Norm, AccumulatesOverWhatIsThere) {
  for (const int width : {1, 3, 16, 37, 72, 500, 1024, 3072}) {
    for (const mr_norm_kind kind : {MR_NORM_RMS, MR_NORM_LAYER}) {
      SCOPED_TRACE("width " + std::to_string(width));
      Builder b;
      Random random(5);
      b.vocab = width;
      const int x = input(b, random, MR_SLOT_F32, width), sum = b.slot(MR_SLOT_F32, width);
      b.embed(b.random(random, width, width, MR_F32, 1.0f), sum);
      mr_op& op = b.norm(x, b.random(random, width, 0, MR_BF16, 0.3f, 1.0f), sum);
      op.norm.kind = kind;
      op.norm.accumulate = 1;
      if (kind == MR_NORM_LAYER) op.norm.bias = b.random(random, width, 0, MR_F32, 0.3f);
      finish(b, sum);
      expect_close(b, 7, kExact);
    }
  }
}

// What out has then is times a factor: of a norm, of its sum with the row that is there, and of rows as they are.
TEST(Norm, SumsAndRowsTimesAFactorAreCloseToRef) {
  for (const int width : {1, 37, 72, 1024}) {
    for (const mr_norm_kind kind : {MR_NORM_RMS, MR_NORM_NONE}) {
      for (const int accumulate : {0, 1}) {
        for (const float scale : {0.0f, 0.7f}) {
          SCOPED_TRACE("width " + std::to_string(width) + ", kind " + std::to_string(kind));
          Builder b;
          Random random(5);
          b.vocab = width;
          const int x = input(b, random, MR_SLOT_F32, width), sum = b.slot(MR_SLOT_F32, width);
          b.embed(b.random(random, width, width, MR_F32, 1.0f), sum);
          mr_op& op = b.norm(x, b.random(random, width, 0, MR_BF16, 0.3f, 1.0f), sum);
          op.norm.kind = kind;
          op.norm.accumulate = accumulate;
          op.norm.scale = scale;
          finish(b, sum);
          expect_close(b, 7, kExact);
        }
      }
    }
  }
}

TEST(Norm, AFactorIsOfTheSum) {
  for (const std::string& isa : {std::string("ref"), tested_isas().front()}) {
    Builder b;
    b.vocab = 2;
    const int x = b.slot(MR_SLOT_F32, 2);
    b.embed(b.tensor({1, 2, 3, 4}, 2, 2, MR_F32), x);
    mr_op& op = b.norm(x, b.tensor({2, 3}, 2, 0, MR_F32), x);
    op.norm.kind = MR_NORM_NONE;
    op.norm.accumulate = 1;
    op.norm.scale = 0.5f;
    finish(b, x);
    Model model(isa, b, 1);
    Sequence s(model);
    EXPECT_EQ(model.step({{&s, {1, 0}}}), std::vector<float>({4.5f, 8, 1.5f, 4})) << isa;
  }
}

// Groups of some of a row's elements, by weights of each, of all or of none. The others stay.
TEST(Norm, GroupsOfAPartAreCloseToRef) {
  for (const mr_norm_kind kind : {MR_NORM_RMS, MR_NORM_LAYER}) {
    for (const int groups : {1, 3}) {
      for (const int weights : {0, 1, groups}) {
        SCOPED_TRACE(std::to_string(weights) + " weights of " + std::to_string(groups) + " groups");
        constexpr int kGroup = 24, kOffset = 5;
        Builder b;
        Random random(6);
        b.vocab = 3 * kGroup + 20;
        const int x = input(b, random, MR_SLOT_F32, b.vocab);
        const int weight =
            weights > 0 ? b.random(random, int64_t{weights} * kGroup, 0, MR_BF16, 0.3f, 1.0f) : -1;
        mr_op& op = b.norm(x, weight, x);
        op.norm.kind = kind;
        op.norm.offset = kOffset;
        op.norm.width = groups * kGroup;
        op.norm.groups = groups;
        if (kind == MR_NORM_LAYER && weights > 0)
          op.norm.bias = b.random(random, kGroup, 0, MR_F32, 0.3f);
        finish(b, x);
        expect_close(b, 7, kExact);

        Builder untouched;
        Random same(6);
        untouched.vocab = b.vocab;
        finish(untouched, input(untouched, same, MR_SLOT_F32, b.vocab));
        const std::vector<float> before = result("ref", untouched, 3), after = result("ref", b, 3);
        for (size_t i = 0; i < before.size(); ++i) {
          const int element = static_cast<int>(i) % b.vocab - kOffset;
          EXPECT_EQ(before[i] == after[i], element < 0 || element >= groups * kGroup) << i;
        }
      }
    }
  }
}

TEST(Norm, RowsWithoutWeightsAreCloseToRef) {
  Builder b;
  Random random(7);
  b.vocab = 100;
  const int x = input(b, random, MR_SLOT_F32, 100);
  b.norm(x, -1, x).norm.kind = MR_NORM_LAYER;
  finish(b, x);
  expect_close(b, 7, kExact);
}

TEST(Norm, RowsFarFromZeroKeepTheirVariance) {
  constexpr int kWidth = 130;
  Builder b;
  Random random(3);
  b.vocab = kWidth;
  const int x = b.slot(MR_SLOT_F32, kWidth);
  b.embed(b.random(random, kWidth, kWidth, MR_F32, 1.0f, 1000.0f), x);
  mr_op& op = b.norm(x, b.random(random, kWidth, 0, MR_F32, 0.3f, 1.0f), x);
  op.norm.kind = MR_NORM_LAYER;
  finish(b, x);
  expect_close(b, 5, 1e-8);
}

TEST(Norm, OperandsAreRounded) {
  for (const int rows : kRows) {
    Builder b;
    Random random(4);
    b.vocab = 61;
    const int x = input(b, random, MR_SLOT_F32, 100), y = b.slot(MR_SLOT_OPERAND, 100);
    const int out = b.slot(MR_SLOT_F32, 61);
    b.norm(x, b.random(random, 100, 0, MR_F32, 0.3f, 1.0f), y);
    b.linear(y, {b.part(b.random(random, 61, 100, MR_BF16, 0.1f))}, out);
    finish(b, out);
    expect_close(b, rows, kRounded);
  }
}

struct LinearCase {
  mr_dtype dtype = MR_BF16;
  mr_slot_type in = MR_SLOT_OPERAND;
  int rows = 7, in_width = 72, out_width = 61;
  int activation = MR_ACT_NONE;
  float act_a = 0, act_b = 0;
  bool bias = false, gated = false, accumulate = false;
  Kept kept;
};

void expect_linear(const LinearCase& c) {
  Builder b;
  Random random(5);
  b.vocab = c.out_width;
  const int x = input(b, random, c.in, c.in_width);
  const int out = b.slot(MR_SLOT_F32, c.out_width);
  if (c.accumulate) b.embed(b.random(random, b.vocab, c.out_width, MR_BF16, 1.0f), out);
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.in_width));
  std::vector<mr_part> parts;
  for (int i = 0; i < (c.gated ? 2 : 1); ++i) {
    const int weight = b.random(random, c.out_width, c.in_width, c.dtype, scale);
    parts.push_back(b.part(weight, c.bias ? b.random(random, c.out_width, 0, c.dtype, 1.0f) : -1));
  }
  mr_op& op = b.linear(x, parts, out);
  op.linear.activation = c.activation;
  op.linear.act_a = c.act_a;
  op.linear.act_b = c.act_b;
  op.linear.gated = c.gated;
  op.linear.accumulate = c.accumulate;
  op.linear.weights = c.kept.weights;
  op.linear.group = c.kept.group;
  finish(b, out);
  SCOPED_TRACE("in " + std::to_string(c.in_width) + ", out " + std::to_string(c.out_width) +
               ", dtype " + std::to_string(c.dtype) + ", activation " +
               std::to_string(c.activation) + (c.gated ? ", gated" : ""));
  expect_close(b, c.rows, c.dtype == MR_BF16 ? 1e-10 : kRounded);
}

TEST(LinearOp, EveryShapeIsCloseToRef) {
  for (const int in_width : {1, 16, 37, 72, 130}) {
    for (const int out_width : {1, 15, 33, 64, 200}) {
      LinearCase c;
      c.in_width = in_width;
      c.out_width = out_width;
      expect_linear(c);
    }
  }
}

TEST(LinearOp, EveryNumberOfRowsIsCloseToRef) {
  for (const mr_dtype dtype : kDtypes) {
    for (const int rows : kRows) {
      LinearCase c;
      c.rows = rows;
      c.dtype = dtype;
      expect_linear(c);
    }
  }
}

TEST(LinearOp, EveryEndingIsCloseToRef) {
  for (const int activation :
       {MR_ACT_NONE, MR_ACT_SILU, MR_ACT_GELU_TANH, MR_ACT_GELU_ERF, MR_ACT_RELU}) {
    for (const bool bias : {false, true}) {
      for (const bool gated : {false, true}) {
        for (const bool accumulate : {false, true}) {
          for (const mr_slot_type in : {MR_SLOT_F32, MR_SLOT_OPERAND}) {
            LinearCase c;
            c.activation = activation;
            c.bias = bias;
            c.gated = gated;
            c.accumulate = accumulate;
            c.in = in;
            expect_linear(c);
          }
        }
      }
    }
  }
}

TEST(LinearOp, ActivationsWithParametersAreCloseToRef) {
  struct {
    int activation;
    float a, b;
  } const all[] = {{MR_ACT_RELU2, 0, 0},    {MR_ACT_XIELU, 0.8f, 1.3f},
                   {MR_ACT_CLAMP, 0.7f, 0}, {MR_ACT_SOFTCAP, 1.5f, 0},
                   {MR_ACT_SOFTCAP, 30, 0}, {MR_ACT_SWIGLU, 0.9f, 1.702f}};
  for (const auto& x : all) {
    for (const bool gated : {false, true}) {
      if (!gated && x.activation == MR_ACT_SWIGLU) continue;
      for (const Kept& kept : tested_weights()) {
        LinearCase c;
        c.activation = x.activation;
        c.act_a = x.a;
        c.act_b = x.b;
        c.bias = true;
        c.gated = gated;
        c.kept = kept;
        expect_linear(c);
      }
    }
  }
}

TEST(LinearOp, QuantizedWeightsAreCloseToRef) {
  for (const Kept& kept : quantized_weights()) {
    for (const mr_dtype dtype : {MR_BF16, MR_F16}) {
      SCOPED_TRACE(kept.name());
      for (const int in_width : {1, 37, 200}) {
        for (const int rows : kRows) {
          LinearCase c;
          c.kept = kept;
          c.dtype = dtype;
          c.in_width = in_width;
          c.rows = rows;
          expect_linear(c);
        }
      }
    }
  }
}

TEST(LinearOp, QuantizedWeightsAreCloseToRefInEveryShapeAndEnding) {
  for (const Kept& kept : quantized_weights()) {
    SCOPED_TRACE(kept.name());
    for (const int out_width : {1, 31, 33, 65, 200}) {
      for (const bool gated : {false, true}) {
        for (const bool accumulate : {false, true}) {
          LinearCase c;
          c.kept = kept;
          c.in_width = 133;
          c.out_width = out_width;
          c.bias = c.gated = gated;
          c.activation = gated ? MR_ACT_SILU : MR_ACT_NONE;
          c.accumulate = accumulate;
          expect_linear(c);
        }
      }
    }
  }
}

// Norms whose rows become codes at once, and those whose rows another op reads too.
struct NormedLinears {
  explicit NormedLinears(int group) : group(group) {
    b.vocab = kOut;
    x = input(b, random, MR_SLOT_F32, kWidth);
    for (int i = 0; i < 2; ++i) {
      rows[i] = b.slot(MR_SLOT_OPERAND, kWidth);
      norms[i] = b.random(random, kWidth, 0, MR_F32, 0.3f, 1.0f);
    }
    for (int& weight : weights) weight = b.random(random, kOut, kWidth, MR_BF16, 0.1f);
    out = b.slot(MR_SLOT_F32, kOut);
  }
  void norm(int i) { b.norm(x, norms[i], rows[i]); }
  void linear(int i, int weight, bool accumulate) {
    mr_op& op = b.linear(rows[i], {b.part(weights[weight])}, out);
    op.linear.accumulate = accumulate;
    op.linear.weights = group == 0 ? MR_WEIGHTS_INT8 : MR_WEIGHTS_INT4;
    op.linear.group = group;
  }
  // A reader that takes no codes.
  void read(int i) { b.linear(rows[i], {b.part(weights[0])}, b.slot(MR_SLOT_F32, kOut)); }
  std::vector<float> run(const std::string& isa, int rows) {
    finish(b, out);
    return result(isa, b, rows);
  }

  static constexpr int kWidth = 200, kOut = 61;
  Builder b;
  Random random{8};
  int group, x, out, rows[2], norms[2], weights[3];
};

TEST(Norm, CodesAreThoseOfItsRows) {
  for (const int group : {0, 32}) {  // 0: int8
    for (const int rows : kRows) {
      for (const std::string& isa : tested_isas()) {
        SCOPED_TRACE(isa + ", group " + std::to_string(group) + ", rows " + std::to_string(rows));
        NormedLinears codes(group), read(group), late(group);
        for (NormedLinears* l : {&codes, &read}) {
          for (int i = 0; i < 2; ++i) {
            l->norm(i);
            if (l == &read) l->read(i);
            l->linear(i, i, i > 0);
            if (i > 0) l->linear(i, 2, true);
          }
        }
        // The second norm comes before the first one's rows are read.
        late.norm(0);
        late.norm(1);
        late.linear(0, 0, false);
        late.linear(1, 1, true);
        late.linear(1, 2, true);
        const std::vector<float> expected = read.run(isa, rows);
        EXPECT_EQ(codes.run(isa, rows), expected);
        EXPECT_EQ(late.run(isa, rows), expected);
      }
    }
  }
}

// BLOOM's fused [head][q|k|v][head_dim] and slices one below the other.
TEST(LinearOp, PartsTakeTheirRowsFromTheTensor) {
  constexpr int kHeads = 3, kDim = 8, kWidth = 40;
  Builder b;
  Random random(6);
  b.vocab = 3 * kHeads * kDim;
  const int x = input(b, random, MR_SLOT_OPERAND, kWidth), out = b.slot(MR_SLOT_F32, b.vocab);
  const int weight = b.random(random, b.vocab, kWidth, MR_BF16, 0.2f);
  const int bias = b.random(random, b.vocab, 0, MR_BF16, 1.0f);
  std::vector<mr_part> parts;
  for (int i = 0; i < 3; ++i) {
    parts.push_back({weight, bias, i * kDim, kHeads * kDim, kDim, 3 * kDim, 0, 0});
  }
  b.linear(x, parts, out);
  finish(b, out);
  expect_close(b, 5, 1e-10);

  // The same by hand: the fused rows in plain order.
  Builder plain = b;
  plain.ops[1].linear.n_parts = 1;
  plain.ops[1].linear.parts[0] = {weight, bias, 0, b.vocab, b.vocab, 0, 0, 0};
  const std::vector<float> taken = result("ref", b, 1), all = result("ref", plain, 1);
  for (int part = 0; part < 3; ++part) {
    for (int i = 0; i < kHeads * kDim; ++i) {
      const int row = part * kDim + i / kDim * 3 * kDim + i % kDim;
      EXPECT_EQ(taken[part * kHeads * kDim + i], all[row]) << part << ", " << i;
    }
  }
}

TEST(SelectRows, WorksInPlace) {
  Builder b;
  Random random(7);
  b.vocab = 20;
  const int x = input(b, random, MR_SLOT_F32, 20), out = b.slot(MR_SLOT_F32, 20);
  b.select_rows(x, x);
  b.norm(x, b.random(random, 20, 0, MR_F32, 0.1f, 1.0f), out);
  expect_close(b, 9, kExact);
}

}  // namespace
}  // namespace millrace::test
