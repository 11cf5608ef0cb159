// Packed weights, taken out of one program and put into another.
#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "harness.hpp"

namespace millrace::test {
namespace {

constexpr int kSlabs = 4;

// Copies of a program's spans, one after the other.
class Image {
 public:
  explicit Image(const Model& model) {
    std::vector<std::byte> all;
    for (int i = 0;; ++i) {
      mr_span span;
      mr_error error;
      check(model.device.backend->program_packed(model.handle, i, &span, &error), error);
      if (span.data == nullptr) break;
      EXPECT_EQ(span.bytes % 64, 0u);
      const auto* from = static_cast<const std::byte*>(span.data);
      all.insert(all.end(), from, from + span.bytes);
    }
    size_ = all.size();
    data_ = static_cast<std::byte*>(::operator new (size_ + 64, std::align_val_t{64}));
    std::memcpy(data_, all.data(), size_);
  }
  ~Image() { ::operator delete (data_, std::align_val_t{64}); }
  Image(const Image&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_;
  size_t size_;
};

std::vector<float> logits(Model& model, const std::vector<int32_t>& tokens) {
  Sequence s(model);
  return model.step({{&s, tokens}});
}

class PackedWeights : public testing::TestWithParam<std::tuple<std::string, Kept>> {};

// The tensors of linear ops may be anything by then: the second program has none of their values.
TEST_P(PackedWeights, GiveTheSameBits) {
  const auto& [isa, weights] = GetParam();
  Random random(3);
  Builder b = small_llama();
  b.keep(weights);
  const std::vector<int32_t> tokens = random.tokens(20, b.vocab);
  Model packs(isa, b, kSlabs);
  const std::vector<float> expected = logits(packs, tokens);
  const Image image(packs);
  if (image.size() == 0) GTEST_SKIP() << "the backend takes no packed weights";

  const std::vector<uint16_t> zeros(size_t{1} << 16);
  for (const mr_op& op : b.ops) {
    for (int i = 0; op.kind == MR_OP_LINEAR && i < op.linear.n_parts; ++i)
      b.tensors[op.linear.parts[i].weight].data = zeros.data();
  }
  b.packed = image.data();
  b.packed_bytes = image.size();
  Model borrows(isa, b, kSlabs);
  EXPECT_EQ(logits(borrows, tokens), expected);
  EXPECT_EQ(borrows.info().weight_bytes, packs.info().weight_bytes);
}

std::string refusal(const std::string& isa, Builder& b, int32_t status) {
  try {
    Model model(isa, b, 0);
  } catch (const Failure& f) {
    EXPECT_EQ(f.status, status);
    return f.what();
  }
  return "taken";
}

TEST_P(PackedWeights, OfAnotherProgramAreRefused) {
  const auto& [isa, weights] = GetParam();
  Builder b = small_llama();
  b.keep(weights);
  const Image image(Model(isa, b, 0));
  if (image.size() == 0) GTEST_SKIP() << "the backend takes no packed weights";
  b.packed = image.data();
  b.packed_bytes = image.size() - 64;
  EXPECT_NE(refusal(isa, b, MR_INVALID).find("too early"), std::string::npos);
  b.packed_bytes = image.size() + 64;
  EXPECT_NE(refusal(isa, b, MR_INVALID).find("expected " + std::to_string(image.size())),
            std::string::npos);
  b.packed_bytes = image.size();
  b.packed = image.data() + 4;
  EXPECT_NE(refusal(isa, b, MR_INVALID).find("aligned"), std::string::npos);
  b.packed = image.data();
  std::strcpy(reinterpret_cast<char*>(image.data()), "abacus");
  EXPECT_NE(refusal(isa, b, MR_INVALID).find("\"abacus\""), std::string::npos);
}

std::string case_name(const testing::TestParamInfo<std::tuple<std::string, Kept>>& info) {
  return isa_label(std::get<0>(info.param)) + "_" + std::get<1>(info.param).name();
}

INSTANTIATE_TEST_SUITE_P(Cpu, PackedWeights,
                         testing::Combine(testing::ValuesIn(tested_isas()),
                                          testing::ValuesIn(tested_weights())),
                         case_name);

TEST(PackedWeightsOfRef, AreNone) {
  Builder b = small_llama();
  const Model model("ref", b, 0);
  mr_span span{&span, 1};
  mr_error error;
  check(model.device.backend->program_packed(model.handle, 0, &span, &error), error);
  EXPECT_EQ(span.data, nullptr);
  alignas(64) const std::byte image[64]{};
  b.packed = image;
  b.packed_bytes = sizeof image;
  EXPECT_NE(refusal("ref", b, MR_UNSUPPORTED).find("packed"), std::string::npos);
}

}  // namespace
}  // namespace millrace::test
