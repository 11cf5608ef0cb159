#include "sycl/linear_choice.hpp"

#include <algorithm>
#include <cstring>

#include "sycl/weights.hpp"

namespace millrace::sycl_backend {
namespace {

constexpr int kPatterns = 4;  // different rows of a trial

// Rows to try a linear op on: a few different ones, again and again.
class Trial {
 public:
  Trial(Stream& stream, const LinearKind& kind)
      : stream_(stream),
        kind_(kind),
        out_row_(size_t(kind.width) * (kind.out_f32 ? sizeof(float) : sizeof(uint16_t))),
        before_(out_row_ * kind.most_rows) {
    std::vector<uint16_t> in(size_t(kind.most_rows) * kind.depth);
    fill(in, kind.depth, [&](float x) { return to_operand(x, kind.type); });
    if (kind.accumulate) {
      std::vector<float> out(size_t(kind.most_rows) * kind.width);
      fill(out, kind.width, [](float x) { return x; });
      std::memcpy(before_.data(), out.data(), before_.size());
    }
    in_ = stream.upload(in);
    out_ = stream.allocate(before_.size());
  }

  // One row of each pattern.
  std::vector<std::byte> patterns(Linear& linear) {
    std::vector<std::byte> out;
    run(linear, std::min(kPatterns, kind_.most_rows), out);
    return out;
  }

  // Whether a row has these bits among any of these numbers of rows, and at any place
  // among them.
  bool keeps_bits(Linear& linear, const std::vector<std::byte>& patterns,
                  const std::vector<int>& row_counts) {
    std::vector<std::byte> out;
    for (const int rows : row_counts) {
      run(linear, rows, out);
      for (int row = 0; row < rows; ++row) {
        const std::byte* expected = patterns.data() + out_row_ * (row % kPatterns);
        if (std::memcmp(out.data() + out_row_ * row, expected, out_row_) != 0) return false;
      }
    }
    return true;
  }

 private:
  // Numbers in [-1, 1), the same every time.
  template <class T, class F>
  static void fill(std::vector<T>& values, size_t width, F&& convert) {
    uint32_t state = 1;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i >= kPatterns * width) {
        values[i] = values[i - kPatterns * width];
        continue;
      }
      state = state * 1664525 + 1013904223;
      values[i] = convert(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
    }
  }

  void run(Linear& linear, int rows, std::vector<std::byte>& out) {
    out.resize(out_row_ * rows);
    stream_.copy(out_.data(), before_.data(), before_.size());
    linear.run(stream_, rows, in_.data(), out_.data());
    stream_.copy(out.data(), out_.data(), out.size());
    stream_.wait();
  }

  Stream& stream_;
  LinearKind kind_;
  size_t out_row_;  // bytes
  std::vector<std::byte> before_;
  Buffer in_, out_;
};

// The chunks of a sum that oneDNN is known to use, the largest first.
constexpr int kMostChunk = 64 * kDepth, kLeastChunk = 4 * kDepth;

// The rows that are ours over oneDNN's weights: kMostOwnRows, if with some chunk of the sum they
// have its bits (`patterns`), else none.
OwnRows own_rows(Trial& trial, OneDnnLinear& theirs, const std::vector<std::byte>& patterns) {
  if (!theirs.packed()) return {};
  for (int chunk = kMostChunk; chunk >= kLeastChunk; chunk /= 2) {
    theirs.set_own_rows({kMostOwnRows, chunk});
    if (trial.keeps_bits(theirs, patterns, {1, 2, kMostOwnRows})) return {kMostOwnRows, chunk};
  }
  return {};
}

}  // namespace

LinearMaker::LinearMaker(Stream& stream, Target target, const LinearKernels& kernels,
                         LinearChoices& choices)
    : stream_(stream), target_(target), kernels_(kernels), choices_(choices) {
  if (target.onednn) onednn_ = open_onednn(stream, kernels);
}

std::unique_ptr<Linear> LinearMaker::make(const LinearKind& kind, const Program& program,
                                          const Op& op) {
  auto known = choices_.find(kind);
  std::unique_ptr<OneDnnLinear> theirs;
  if (onednn_ && (known == choices_.end() || known->second.onednn)) {
    theirs = onednn_->linear(kind, program, op);
  }
  if (known == choices_.end()) {
    const LinearChoice choice = theirs != nullptr ? choose(kind, *theirs) : LinearChoice{};
    known = choices_.emplace(kind, choice).first;
  }
  made_[kind] = known->second;
  if (!known->second.onednn || theirs == nullptr) {
    return std::make_unique<KernelLinear>(stream_, target_, kernels_.tiles, kind, program, op);
  }
  theirs->set_own_rows(known->second.own);
  return theirs;
}

LinearChoice LinearMaker::choose(const LinearKind& kind, OneDnnLinear& theirs) {
  // All rows are ours: there are no bits of oneDNN to agree with.
  if (kind.most_rows <= kMostOwnRows && theirs.packed()) {
    return {true, {kMostOwnRows, kMostChunk}};
  }
  Trial trial(stream_, kind);
  std::vector<int> row_counts = onednn_block_sizes(kind.most_rows);
  row_counts.push_back(kind.most_rows);
  const std::vector<std::byte> patterns = trial.patterns(theirs);
  if (!trial.keeps_bits(theirs, patterns, row_counts)) return {};
  return {true, own_rows(trial, theirs, patterns)};
}

std::string LinearMaker::onednn_name() const {
  int used = 0, own = 0;
  for (const auto& [kind, choice] : made_) {
    used += choice.onednn;
    own += choice.own.most > 0;
  }
  if (used == 0) return "";
  return onednn_version() + ": " + std::to_string(used) + " of " + std::to_string(made_.size()) +
         " kinds, few rows ours in " + std::to_string(own);
}

// Few rows of ours have oneDNN's bits, but for kinds that have no more rows: 2 stands for those.
std::string LinearMaker::numerics() const {
  std::string digits;
  for (const auto& [kind, choice] : made_) {
    const bool ours = choice.own.most >= kind.most_rows;
    digits += !choice.onednn ? '0' : ours ? '2' : '1';
  }
  if (digits.find_first_not_of('0') == std::string::npos) return "";
  return onednn_version() + ": " + digits;
}

}  // namespace millrace::sycl_backend
