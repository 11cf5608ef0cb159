#include "cpu/program.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "cpu/attention/attention.hpp"
#include "cpu/attention/h2o.hpp"
#include "cpu/linear/block_panels.hpp"
#include "cpu/linear/experts.hpp"
#include "cpu/linear/fused_norms.hpp"
#include "cpu/linear/kernels.hpp"
#include "cpu/linear/linear.hpp"
#include "cpu/linear/tune.hpp"
#include "cpu/machine/float_mode.hpp"
#include "cpu/ops/ops.hpp"
#include "exec/error.hpp"
#include "exec/limits.hpp"

namespace millrace::cpu {
namespace {

// Grows whenever some bit of a result changes (docs/decisions/numerics-classes.md).
constexpr int kNumericsVersion = 1;

// The bytes of one weight of a part, with its share of a scale.
double weight_bytes(const Program& p, const Op& op, const mr_part& part) {
  if (op.linear.weights >= MR_WEIGHTS_BLOCKS) {
    return static_cast<double>(span_bytes(*block_type(p.tensor(part.weight)->dtype), 1, kSpan)) /
           kSpan;
  }
  if (in_groups(op.linear.weights)) return 0.5 + double{sizeof(bf16)} / op.linear.group;
  return op.linear.weights == MR_WEIGHTS_16BIT ? sizeof(bf16) : 1;
}

void check_machine(const Program& p) {
  for (const LayerShape& layer : p.kv_layers) {
    for (const int width : {layer.key, layer.value}) {
      if (width % 8 == 0 && width <= kMaxHeadDim) continue;
      fail(MR_UNSUPPORTED,
           "keys or values of %d elements, the cpu backend runs multiples of 8 up to %d", width,
           kMaxHeadDim);
    }
  }
  double bytes = 0;
  for (const Op& op : p.ops) {
    if (op.kind != MR_OP_LINEAR) continue;
    for (int i = 0; i < op.expert_count() * op.parts_each(); ++i) {
      const mr_part& part = op.parts_of(0)[i];
      const double width = static_cast<double>(p.tensor(part.weight)->dims[1]);
      bytes += static_cast<double>(part.rows) * width * weight_bytes(p, op, part);
    }
  }
  if (p.packed != nullptr) return;  // they are there
  const uint64_t available = memory_limits().available;
  if (bytes > static_cast<double>(available)) {
    fail(MR_NO_MEMORY, "the packed weights need %.2f GiB, available are %.2f GiB",
         bytes / (1u << 30), static_cast<double>(available) / (1u << 30));
  }
}

// The spec of an op, or of one of its experts, which add nothing up themselves.
LinearSpec linear_spec(const Program& p, const Op& op, int expert) {
  LinearSpec spec{};
  for (int i = 0; i < op.parts_each(); ++i) {
    const mr_part& part = op.parts_of(expert)[i];
    spec.parts.push_back({p.tensor(part.weight), p.tensor(part.bias), part.offset, part.rows,
                          part.block, part.stride, part.interleaved});
  }
  const int routed = op.linear.routed, out_width = p.slots[op.out].width;
  spec.in_width = op.part_width(p.slots[op.in].width);
  spec.out_width = routed == MR_ROUTED_NONE || routed == MR_ROUTED_SUM
                       ? out_width
                       : out_width / op.linear.top_k - op.linear.tail;
  spec.activation = op.linear.activation;
  spec.act_a = op.linear.act_a;
  spec.act_b = op.linear.act_b;
  spec.gated = op.linear.gated != 0;
  spec.accumulate = op.linear.accumulate != 0 && op.linear.routed == MR_ROUTED_NONE;
  spec.out_f32 = p.slots[op.out].type == MR_SLOT_F32;
  spec.weights = op.linear.weights;
  spec.group = op.linear.group;
  return spec;
}

class CpuKernels : public CpuOps {
 public:
  CpuKernels(const Program& program, const KvLayout& kv, const OpKernels& kernels, ThreadPool& pool)
      : CpuOps(program, kv, kernels, pool),
        attention_(context_),
        h2o_(context_),
        packed_(program.ops.size()) {
    const FloatScope mode(FloatMode::plain(false));  // codes are the same for every class
    int64_t rounded = 0;                             // elements of F32 slots that feed a linear op
    for (const Op& op : program.ops) {
      pack(op);
      if (op.kind == MR_OP_LINEAR && program.slots[op.in].type == MR_SLOT_F32) {
        rounded = std::max(rounded, int64_t{program.max_rows} * program.slots[op.in].width);
      }
    }
    rounded_ = Buffer(rounded * sizeof(bf16));
    fused_.emplace(context_, plain_linears());
    std::snprintf(layout_.data(), layout_.size(), "%s", linear_name().c_str());
    check_packed();
    tune_prefetch(linears_, context_.pool);
  }

  void begin(const Batch& batch) override {
    CpuOps::begin(batch);
    attention_.begin(batch);
  }
  void norm(const Op& op, const Run& run) override {
    if (!fused_->leaves_operand(op.index)) return CpuOps::norm(op, run);
    const FloatScope mode(mode_);
    fused_->run(op.index, norm_of(op), run.rows, run.slot(op.in));
  }
  void linear(const Op& op, const Run& run) override {
    const FloatScope mode(mode_);
    const Packed& packed = packed_[op.index];
    const Slot in = run.slot(op.in), out = run.slot(op.out);
    if (packed.experts) {
      const Slot chosen = run.slot_if(op.linear.routed != MR_ROUTED_HEADS, op.linear.route);
      const float* floats = in.type == MR_SLOT_F32 ? in.f32() : nullptr;
      packed.experts->run(operand(run.rows, in), floats, chosen.f32(), run.rows, out.data,
                          context_.pool);
    } else if (fused_->reads_operand(op.index)) {
      packed.linear->run(fused_->operand(), out.data, context_.pool);
    } else {
      packed.linear->run(operand(run.rows, in), run.rows, out.data, context_.pool);
    }
  }
  void attention(const Op& op, const Run& run) override {
    const FloatScope mode(mode_);
    const Slot in = run.slot(op.in), out = run.slot(op.out);
    const Slot sink_q = run.slot_if(op.attention.sinks > 0, op.attention.sink_q);
    if (op.attention.heavy > 0) return h2o_.run(context_, op, run.batch, in, out);
    attention_.run(context_, op, run.batch, in, sink_q, out);
  }

  bool takes_beams() const override { return true; }
  // The layout's name, and the memory of each linear op.
  mr_span packed(int index) const override {
    if (index == 0) return {layout_.data(), layout_.size()};
    if (index > static_cast<int>(linears_.size())) return {};
    const auto memory = linears_[index - 1]->packed();
    return {memory.data(), memory.size()};
  }
  uint64_t weight_bytes() const override {
    uint64_t bytes = CpuOps::weight_bytes();
    for (const Linear* linear : linears_) bytes += linear->bytes();
    return bytes;
  }
  uint64_t scratch_bytes() const override {
    return CpuOps::scratch_bytes() + attention_.bytes() + h2o_.bytes() + rounded_.size() +
           fused_->bytes();
  }
  std::string linear_name() const override {
    std::string names;
    for (const Linear* linear : linears_) {
      if (names.find(linear->name()) != std::string::npos) continue;
      if (!names.empty()) names.append(", ");
      names.append(linear->name());
    }
    return names;
  }
  // Op kernels, those of linear ops and of attention, each class once.
  std::string numerics() const override {
    std::string text = "cpu " + std::to_string(kNumericsVersion) + " " + context_.kernels.numerics;
    for (const Op& op : context_.program.ops) {
      const char* numerics = context_.kernels.numerics;
      if (op.kind == MR_OP_LINEAR) {
        numerics = linear_numerics(context_.kernels.isa, op.linear.weights);
      } else if (op.kind == MR_OP_ATTENTION) {
        numerics = attention_numerics(context_.kernels, context_.kv.type);
      }
      if (text.find(numerics) == std::string::npos) text.append("+").append(numerics);
    }
    return text;
  }

 private:
  // What a linear op keeps: one of them.
  struct Packed {
    std::unique_ptr<Linear> linear;
    std::unique_ptr<Experts> experts;
  };

  void pack(const Op& op) {
    const WeightsInUse weights(context_.program, op);
    Packed& packed = packed_[op.index];
    if (op.kind == MR_OP_LINEAR && op.linear.routed == MR_ROUTED_NONE) {
      packed.linear = std::move(pack_linears(op, 1)[0]);
    } else if (op.kind == MR_OP_LINEAR) {
      packed.experts = std::make_unique<Experts>(pack_linears(op, op.linear.experts), op.linear);
    }
  }

  // An op, or its experts.
  std::vector<std::unique_ptr<Linear>> pack_linears(const Op& op, int count) {
    std::vector<LinearSpec> specs;
    for (int i = 0; i < count; ++i) specs.push_back(linear_spec(context_.program, op, i));
    std::vector<std::unique_ptr<Linear>> made;
    if (context_.program.packed == nullptr) {
      made = Linear::pack(specs, context_.kernels.isa, context_.pool);
    } else {
      for (const LinearSpec& spec : specs) made.push_back(borrow(spec));
    }
    for (const auto& linear : made) linears_.push_back(linear.get());
    return made;
  }

  std::unique_ptr<Linear> borrow(const LinearSpec& spec) {
    const Program& p = context_.program;
    std::unique_ptr<Linear> linear;
    if (borrowed_ <= p.packed_bytes) {
      linear = Linear::borrow(spec, context_.kernels.isa,
                              {p.packed + borrowed_, p.packed_bytes - borrowed_});
    }
    if (!linear) {
      fail(MR_INVALID, "the packed weights end after %zu bytes, which is too early",
           p.packed_bytes);
    }
    borrowed_ += linear->bytes();
    return linear;
  }

  void check_packed() const {
    const Program& p = context_.program;
    if (p.packed == nullptr) return;
    if (borrowed_ != p.packed_bytes) {
      fail(MR_INVALID, "the packed weights have %zu bytes, expected %zu", p.packed_bytes,
           borrowed_);
    }
    if (std::memcmp(p.packed, layout_.data(), layout_.size()) != 0) {
      fail(MR_INVALID, "the packed weights are for \"%.*s\", expected \"%s\"",
           static_cast<int>(layout_.size()), reinterpret_cast<const char*>(p.packed),
           layout_.data());
    }
  }

  // [ops], null for others and for those of experts.
  std::vector<const Linear*> plain_linears() const {
    std::vector<const Linear*> linears;
    for (const Packed& p : packed_) linears.push_back(p.linear.get());
    return linears;
  }

  const bf16* operand(int rows, Slot in) const {
    if (in.type == MR_SLOT_OPERAND) return static_cast<const bf16*>(in.data);
    auto* out = static_cast<bf16*>(rounded_.data());
    for_rows(context_.pool, rows, in.width, [&](int r, int) {
      const int64_t at = int64_t{r} * in.width;
      context_.kernels.to_bf16(in.f32() + at, in.width, out + at);
    });
    return out;
  }

  Attention attention_;
  H2oAttention h2o_;
  std::vector<Packed> packed_;    // [ops]
  std::vector<Linear*> linears_;  // of packed_, those of experts too
  Buffer rounded_;
  std::optional<FusedNorms> fused_;
  alignas(64) std::array<char, 64> layout_{};  // before the packed weights
  size_t borrowed_ = layout_.size();           // bytes of Program::packed
};

}  // namespace

std::unique_ptr<Kernels> load_program(const Program& program, const KvLayout& kv,
                                      const OpKernels& kernels, ThreadPool& pool) {
  check_machine(program);
  return std::make_unique<CpuKernels>(program, kv, kernels, pool);
}

}  // namespace millrace::cpu
