#include "gpu/linear_choice.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "gpu/weights.hpp"

namespace millrace::gpu {
namespace {

// Elements that are compared for each number of rows, at least.
constexpr int kCompared = 1 << 14;

// A linear op, or the sums that it makes before activation, gate and rounding: of results of 16 bits few elements show that
// a sum had another order, about one of 10,000.
enum class Part { kSums, kAll };

// Random rows to try a linear op on. Each is another one, so that no two of them can stand in for each other.
class Trial {
 public:
  Trial(Stream& stream, const LinearKind& kind, OneDnnLinear& linear, Part part)
      : stream_(stream),
        linear_(linear),
        part_(part),
        block_(part == Part::kSums ? onednn_block_sizes(kind.most_rows).back() : kind.most_rows),
        compared_(kCompared / kind.width + 1),
        rows_(std::max(block_, compared_)),
        in_row_(size_t(kind.depth) * sizeof(uint16_t)),
        out_row_(part == Part::kSums ? size_t(linear.sums_width()) * sizeof(float)
                 : kind.out_f32      ? size_t(kind.width) * sizeof(float)
                                     : size_t(kind.width) * sizeof(uint16_t)),
        before_(kind.accumulate ? out_row_ * rows_ : 0) {
    std::mt19937 random;  // the same numbers at every start
    std::vector<uint16_t> in(size_t(rows_) * kind.depth);
    for (uint16_t& x : in) x = to_operand(number(random), kind.type);
    for (size_t at = 0; at < before_.size(); at += sizeof(float)) {
      const float x = number(random);
      std::memcpy(before_.data() + at, &x, sizeof x);
    }
    all_ = stream.upload(in);
    in_ = stream.allocate(in_row_ * kind.most_rows);
    out_ = stream.allocate(out_row_ * kind.most_rows);
    bits_.resize(out_row_ * rows_);
    compute(block_, rows_, bits_);
  }

  // Whether rows have the same bits when they are computed this many at a time as in the largest blocks.
  bool keeps_bits(int at_a_time) {
    const int rows = std::min(rows_, std::max(at_a_time, compared_));
    std::vector<std::byte> out(out_row_ * rows);
    compute(at_a_time, rows, out);
    return std::memcmp(out.data(), bits_.data(), out.size()) == 0;
  }

 private:
  // A number of either sign between 2^-6 and 4: sums of such numbers depend on their order.
  static float number(std::mt19937& random) {
    const uint32_t bits = random();
    const float fraction = 1.0f + static_cast<float>(bits >> 9) * 0x1p-23f;
    return std::ldexp(bits & 1 ? fraction : -fraction, static_cast<int>(bits >> 1 & 7) - 6);
  }

  // The first rows, this many at a time.
  void compute(int at_a_time, int rows, std::vector<std::byte>& out) {
    for (int first = 0; first < rows; first += at_a_time) {
      const int n = std::min(at_a_time, rows - first);
      const size_t offset = out_row_ * first;
      stream_.copy(in_.data(), static_cast<const std::byte*>(all_.data()) + in_row_ * first,
                   in_row_ * n);
      if (!before_.empty()) stream_.copy(out_.data(), before_.data() + offset, out_row_ * n);
      if (part_ == Part::kSums) {
        linear_.run_sums(stream_, n, in_.data(), out_.data());
      } else {
        linear_.run(stream_, n, in_.data(), out_.data());
      }
      stream_.copy(out.data() + offset, out_.data(), out_row_ * n);
      stream_.wait();
    }
  }

  Stream& stream_;
  OneDnnLinear& linear_;
  Part part_;
  int block_, compared_, rows_;    // the most rows at a time; compared at least; of all
  size_t in_row_, out_row_;        // bytes
  std::vector<std::byte> before_;  // the output of an op that adds to it: [rows_]
  std::vector<std::byte> bits_;    // expected
  Buffer all_;                     // [rows_][depth] operands
  Buffer in_, out_;                // of one run
};

// The chunks of a sum that oneDNN is known to use, the largest first.
constexpr int kMostChunk = 64 * kDepth, kLeastChunk = 4 * kDepth;

using Trials = std::vector<std::unique_ptr<Trial>>;

// Whether rows have the same bits in all trials, computed these many at a time.
bool keep_bits(const Trials& trials, const std::vector<int>& row_counts) {
  return std::all_of(trials.begin(), trials.end(), [&](const auto& trial) {
    return std::all_of(row_counts.begin(), row_counts.end(),
                       [&](int rows) { return trial->keeps_bits(rows); });
  });
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
    LinearChoice choice = theirs != nullptr ? choose(kind, *theirs) : LinearChoice{};
    choice.floats = choice.onednn && theirs->floats();
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
  Trials trials;
  trials.push_back(std::make_unique<Trial>(stream_, kind, theirs, Part::kSums));
  if (kind.gated || kind.activation.kind != MR_ACT_NONE || !kind.out_f32) {
    trials.push_back(std::make_unique<Trial>(stream_, kind, theirs, Part::kAll));
  }
  if (!keep_bits(trials, onednn_block_sizes(kind.most_rows))) return {};
  if (!theirs.packed()) return {true, {}};
  for (int chunk = kMostChunk; chunk >= kLeastChunk; chunk /= 2) {
    theirs.set_own_rows({kMostOwnRows, chunk});
    if (keep_bits(trials, {1, 2, kMostOwnRows})) return {true, {kMostOwnRows, chunk}};
  }
  return {true, {}};
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

// Few rows of ours have oneDNN's bits, but for kinds that have no more rows: 2 stands for those. 3 and 4 are 1 and 2 with
// products of floats.
std::string LinearMaker::numerics() const {
  std::string digits;
  for (const auto& [kind, choice] : made_) {
    const bool ours = choice.own.most >= kind.most_rows;
    digits += static_cast<char>('0' + (choice.onednn ? 1 + ours + 2 * choice.floats : 0));
  }
  if (digits.find_first_not_of('0') == std::string::npos) return "";
  return onednn_version() + ": " + digits;
}

}  // namespace millrace::gpu
