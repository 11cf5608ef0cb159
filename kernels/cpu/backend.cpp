// The CPU backend: packs a program's weights and hands its ops to the kernels
// of an instruction set.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "cores.hpp"
#include "exec/abi.hpp"
#include "exec/error.hpp"
#include "exec/limits.hpp"
#include "isa.hpp"
#include "linear.hpp"
#include "linear_tune.hpp"
#include "measure.hpp"
#include "ops.hpp"

namespace millrace::cpu {
namespace {

// Several times the last cache, so that the bandwidth is the memory's.
constexpr uint64_t kMeasuredBytes = uint64_t{256} << 20;

// Of one weight.
double weight_bytes(const Op& op) {
  if (in_groups(op.weights)) return 0.5 + double{sizeof(bf16)} / op.group;
  return op.weights == MR_WEIGHTS_16BIT ? sizeof(bf16) : 1;
}

void check_machine(const Program& p) {
  if (p.head_dim % 8 != 0 || p.head_dim > kMaxHeadDim) {
    fail(MR_UNSUPPORTED, "head_dim is %d, the cpu backend runs multiples of 8 up to %d", p.head_dim,
         kMaxHeadDim);
  }
  double bytes = 0;
  for (const Op& op : p.ops) {
    if (op.kind != MR_OP_LINEAR) continue;
    for (int i = 0; i < op.n_parts; ++i) {
      bytes += static_cast<double>(op.parts[i].rows) * p.slots[op.in].width * weight_bytes(op);
    }
  }
  if (p.packed != nullptr) return;  // they are there
  const uint64_t available = memory_limits().available;
  if (bytes > static_cast<double>(available)) {
    fail(MR_NO_MEMORY, "the packed weights need %.2f GiB, available are %.2f GiB",
         bytes / (1u << 30), static_cast<double>(available) / (1u << 30));
  }
}

LinearSpec linear_spec(const Program& p, const Op& op) {
  LinearSpec spec{};
  for (int i = 0; i < op.n_parts; ++i) {
    const mr_part& part = op.parts[i];
    spec.parts.push_back({p.tensor(part.weight), p.tensor(part.bias), part.offset, part.rows,
                          part.block, part.stride});
  }
  spec.in_width = p.slots[op.in].width;
  spec.out_width = p.slots[op.out].width;
  spec.activation = op.activation;
  spec.gated = op.gated != 0;
  spec.accumulate = op.accumulate != 0;
  spec.out_f32 = p.slots[op.out].type == MR_SLOT_F32;
  spec.weights = op.weights;
  spec.group = op.group;
  return spec;
}

class CpuKernels : public Kernels {
 public:
  CpuKernels(const Program& program, const KvLayout& kv, const OpKernels& kernels, ThreadPool& pool)
      : context_{program, kv, kernels, attention_kernels(kernels, kv.type), pool},
        attention_(context_),
        packed_(program.ops.size()) {
    int64_t rounded = 0;  // elements of F32 slots that feed a linear op
    for (const Op& op : program.ops) {
      pack(op);
      if (op.kind == MR_OP_LINEAR && program.slots[op.in].type == MR_SLOT_F32) {
        rounded = std::max(rounded, int64_t{program.max_rows} * program.slots[op.in].width);
      }
    }
    rounded_ = Buffer(rounded * sizeof(bf16));
    fuse_norms();
    std::snprintf(layout_.data(), layout_.size(), "%s", linear_name().c_str());
    check_packed();
    tune();
  }

  void begin(const Batch& batch) override {
    for (Angles& angles : angles_) angles.compute(batch, context_.pool);
  }
  void embed(const Op& op, const Batch& batch, Slot out) override {
    cpu::embed(context_, op, batch, out);
  }
  void norm(const Op& op, int rows, Slot in, Slot out) override {
    const Packed& p = packed_[op.index];
    if (p.reader == nullptr) return p.norm->run(context_, rows, in, out);
    codes_ = p.reader->pack_rows(rows, codes_room_.data(), context_.pool,
                                 [&](int first, int count, int thread) {
                                   return normed_rows(*p.norm, in, first, count, thread);
                                 });
  }
  void linear(const Op& op, int rows, Slot in, Slot out) override {
    const Packed& p = packed_[op.index];
    if (p.reads_codes) return p.linear->run(codes_, out.data, context_.pool);
    p.linear->run(operand(rows, in), rows, out.data, context_.pool);
  }
  void rope_store(const Op& op, const Batch& batch, Slot in) override {
    packed_[op.index].rope_store->run(context_, batch, in);
  }
  void attention(const Op& op, const Batch& batch, Slot in, Slot out) override {
    attention_.run(context_, op, batch, in, out);
  }

  bool takes_beams() const override { return true; }
  // The layout's name, and the memory of each linear op.
  mr_span packed(int index) const override {
    if (index == 0) return {layout_.data(), layout_.size()};
    for (const Packed& p : packed_) {
      if (!p.linear || --index > 0) continue;
      return {p.linear->packed().data(), p.linear->packed().size()};
    }
    return {};
  }
  uint64_t weight_bytes() const override {
    uint64_t bytes = 0;
    for (const Packed& p : packed_) {
      if (p.linear) bytes += p.linear->bytes();
      if (p.norm) bytes += p.norm->bytes();
      if (p.rope_store) bytes += p.rope_store->bytes();
    }
    return bytes;
  }
  uint64_t scratch_bytes() const override {
    uint64_t bytes = attention_.bytes() + rounded_.size() + codes_room_.size() + normed_.size();
    for (const Angles& angles : angles_) bytes += angles.bytes();
    return bytes;
  }
  std::string linear_name() const override {
    std::string names;
    for (const Packed& p : packed_) {
      if (!p.linear || names.find(p.linear->name()) != std::string::npos) continue;
      if (!names.empty()) names.append(", ");
      names.append(p.linear->name());
    }
    return names;
  }

 private:
  // What an op keeps; one of them is set.
  struct Packed {
    std::unique_ptr<Linear> linear;
    std::unique_ptr<Norm> norm;
    std::unique_ptr<RopeStore> rope_store;
    const Linear* reader = nullptr;  // of a norm whose rows only ever become its operand
    bool reads_codes = false;        // of a linear op: what such a norm has left
  };

  // A norm that only linear ops with quantised weights read, all before the next norm and all
  // alike, leaves their operand instead of its rows.
  void fuse_norms() {
    const Program& p = context_.program;
    for (const Op& op : p.ops) {
      if (op.kind != MR_OP_NORM || p.slots[op.out].type != MR_SLOT_OPERAND) continue;
      const std::vector<int> readers = readers_of(op);
      const Linear* first = readers.empty() ? nullptr : packed_[readers[0]].linear.get();
      const bool alike = first != nullptr && first->takes_codes() &&
                         std::all_of(readers.begin(), readers.end(), [&](int reader) {
                           const Linear* l = packed_[reader].linear.get();
                           return l != nullptr && l->reads_like(*first);
                         });
      if (!alike) continue;
      packed_[op.index].reader = first;
      for (const int reader : readers) packed_[reader].reads_codes = true;
      const int rows = p.slot_rows[op.out];
      const size_t normed = sizeof(bf16) * Linear::kPackRows * first->in_width();
      if (first->operand_room(rows) > codes_room_.size()) {
        codes_room_ = Pages(first->operand_room(rows));
      }
      if (normed * context_.pool.size() > normed_.size()) {
        normed_ = Buffer(normed * context_.pool.size());
      }
    }
  }

  // The ops that read what a norm has left in its slot; none where one of them comes behind
  // another norm.
  std::vector<int> readers_of(const Op& norm) const {
    std::vector<int> readers;
    bool next = false;
    for (size_t i = norm.index + 1; i < context_.program.ops.size(); ++i) {
      const Op& op = context_.program.ops[i];
      if (op.in == norm.out) {
        if (next) return {};
        readers.push_back(op.index);
      }
      if (op.out == norm.out) break;
      next = next || op.kind == MR_OP_NORM;
    }
    return readers;
  }

  const bf16* normed_rows(const Norm& norm, Slot in, int first, int count, int thread) const {
    bf16* const rows =
        static_cast<bf16*>(normed_.data()) + int64_t{thread} * Linear::kPackRows * in.width;
    for (int r = 0; r < count; ++r) {
      norm.row(context_, in.f32() + int64_t{first + r} * in.width, rows + int64_t{r} * in.width);
    }
    return rows;
  }

  void pack(const Op& op) {
    Packed& packed = packed_[op.index];
    const Context& c = context_;
    if (op.kind == MR_OP_LINEAR) {
      const LinearSpec spec = linear_spec(c.program, op);
      packed.linear =
          c.program.packed == nullptr ? Linear::pack(spec, c.kernels.isa, c.pool) : borrow(spec);
    } else if (op.kind == MR_OP_NORM) {
      packed.norm = std::make_unique<Norm>(c, op);
    } else if (op.kind == MR_OP_ROPE_STORE) {
      packed.rope_store = std::make_unique<RopeStore>(c, op, angles_of(op));
    }
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

  void tune() {
    std::vector<Linear*> linears;
    for (const Packed& p : packed_) {
      if (p.linear) linears.push_back(p.linear.get());
    }
    tune_streams(linears, context_.pool);
  }

  const Angles* angles_of(const Op& op) {
    if (op.rotary_dim == 0) return nullptr;
    for (const Angles& angles : angles_) {
      if (angles.serves(op)) return &angles;
    }
    return &angles_.emplace_back(op, context_.program.max_rows);
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

  Context context_;
  Attention attention_;
  std::deque<Angles> angles_;   // RopeStore points to them
  std::vector<Packed> packed_;  // [ops]
  Buffer rounded_;
  Pages codes_room_;
  Linear::Operand codes_{};                    // of the last norm that is fused
  Buffer normed_;                              // [threads][Linear::kPackRows] rows of such a norm
  alignas(64) std::array<char, 64> layout_{};  // in front of the packed weights
  size_t borrowed_ = layout_.size();           // bytes of Program::packed
};

// The names of what this machine runs, best first.
std::string isa_names() {
  std::string names;
  for (const Isa isa : available_isas()) {
    if (!names.empty()) names.push_back(',');
    names.append(isa_name(isa));
  }
  return names;
}

class CpuDevice : public Device {
 public:
  CpuDevice(Isa isa, int threads) : kernels_(op_kernels(isa)), pool_(threads) {}

  void info(mr_device_info& out) const override {
    const std::string isas = isa_names();
    std::snprintf(out.name, sizeof out.name, "%s", cpu_model().c_str());
    std::snprintf(out.isa, sizeof out.isa, "%s", isa_name(kernels_.isa));
    std::snprintf(out.isas, sizeof out.isas, "%s", isas.c_str());
    const MemoryLimits memory = memory_limits();
    out.threads = pool_.size();
    out.memory_total = memory.total;
    out.memory_available = memory.available;
  }
  mr_measurement measure() override {
    if (!limits_) limits_.emplace(kernels_.isa, pool_, kMeasuredBytes);
    return {limits_->read_gbps(), limits_->peak_gflops(MR_WEIGHTS_16BIT),
            limits_->peak_gflops(MR_WEIGHTS_INT8)};
  }
  bool takes_packed() const override { return true; }
  mr_dtype kv_dtype(const Program&) const override { return MR_BF16; }
  size_t kv_code_block_bytes(const Program& p, int32_t type) const override {
    return type == MR_KV_INT8 ? KvCodes<8>{p.head_dim}.block_bytes()
                              : KvCodes<4>{p.head_dim}.block_bytes();
  }
  mr_dtype operand_dtype(const Program&) const override { return MR_BF16; }
  std::unique_ptr<Kernels> load(const Program& program, const KvLayout& kv) override {
    check_machine(program);
    return std::make_unique<CpuKernels>(program, kv, kernels_, pool_);
  }

 private:
  const OpKernels& kernels_;
  ThreadPool pool_;
  std::optional<Limits> limits_;  // of the first measurement
};

Isa choose_isa(std::string_view name) {
  const std::vector<Isa> isas = available_isas();
  if (name.empty()) {
    // Tiles multiply several times as fast as vectors, so that no noise decides; where they
    // do not (they may be emulated), vectors it is.
    const bool slow_tiles = isas.front() == Isa::amx && !multiplies_faster(isas[0], isas[1]);
    return isas[slow_tiles ? 1 : 0];
  }
  const std::optional<Isa> isa = isa_from_name(name);
  if (isa && std::find(isas.begin(), isas.end(), *isa) != isas.end()) return *isa;
  fail(isa ? MR_UNSUPPORTED : MR_INVALID, "instruction set \"%.*s\", this machine runs %s",
       static_cast<int>(name.size()), name.data(), isa_names().c_str());
}

std::unique_ptr<Device> open(const mr_device_config& config) {
  constexpr int kMostThreads = 1024;
  if (config.threads < 0 || config.threads > kMostThreads) {
    fail(MR_INVALID, "%d threads, expected 0 to %d", config.threads, kMostThreads);
  }
  const std::string_view name(config.isa, strnlen(config.isa, sizeof config.isa));
  const int threads = config.threads > 0 ? config.threads : usable_cores();
  return std::make_unique<CpuDevice>(choose_isa(name), threads);
}

int32_t device_open(const mr_device_config* config, mr_device** out, mr_error* error) {
  return open_device(open, config, out, error);
}

}  // namespace
}  // namespace millrace::cpu

extern "C" const mr_backend* millrace_backend_cpu(void) {
  static const mr_backend backend = millrace::backend_table("cpu", millrace::cpu::device_open);
  return &backend;
}
