#include "exec/executor.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "exec/bf16.hpp"
#include "exec/error.hpp"
#include "exec/h2o.hpp"
#include "exec/mapped_pool.hpp"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t slot_bytes(const Program& p, size_t slot, int operand_bytes) {
  const int bytes = p.slots[slot].type == MR_SLOT_F32 ? 4 : operand_bytes;
  return uint64_t(p.slot_rows[slot]) * p.slots[slot].width * bytes;
}

// What a sequence keeps beside keys and values: whether a state can be beside it.
void check_states(const Program& p, int32_t kv_type) {
  if (p.state == 0) return;
  if (p.kept() > 0 || p.sinks > 0 || p.kv_groups > 1 || kv_type == MR_KV_KIVI) {
    fail(MR_UNSUPPORTED,
         "a program with states: found %s, expected all keys and values in one group of layers",
         p.kept() > 0      ? "heavy tokens"
         : p.sinks > 0     ? "sinks"
         : p.kv_groups > 1 ? "several groups"
                           : "kivi");
  }
}

// The slabs of a sequence's state. Where no layer has keys, slabs are large enough that a state has few of them: each is mapped.
int state_slabs(const Program& p, KvLayout& layout) {
  constexpr size_t kMost = 64;
  const size_t state = p.state * sizeof(float);
  const auto has_keys = [](const Op& op) { return op.kind == MR_OP_ATTENTION; };
  if (!std::ranges::any_of(p.ops, has_keys)) layout.at_least((state + kMost - 1) / kMost);
  return static_cast<int>((state + layout.slab_bytes - 1) / layout.slab_bytes);
}

// The slabs of the program's KV type, if the device has it.
KvLayout kv_layout(const Device& device, const Program& p) {
  const auto floats = static_cast<mr_dtype>(device.kv_dtype(p));
  const int32_t own = floats + 1;
  const int32_t type = p.kv_type == MR_KV_AUTO ? own : p.kv_type;
  const auto has = [&](int32_t codes) { return device.kv_code_block_bytes(1, codes) > 0; };
  if (type != own && (type < MR_KV_INT8 || !has(type))) {
    const bool codes = has(MR_KV_INT8), kivi = has(MR_KV_KIVI);
    fail(MR_UNSUPPORTED, "a KV cache of %s: this backend keeps keys and values as %s%s",
         kv_type_name(type), kv_type_name(own),
         kivi    ? ", int8, int4 or kivi"
         : codes ? ", int8 or int4"
                 : " only");
  }
  if (p.kept() > 0) {
    if (!device.takes_h2o()) {
      fail(MR_UNSUPPORTED, "this backend gives up no keys and values by their attention (H2O)");
    }
    if (type != own) {
      fail(MR_UNSUPPORTED, "a KV cache of %s that keeps %d heavy tokens, expected %s",
           kv_type_name(type), p.heavy, kv_type_name(own));
    }
  }
  if (type != own && std::ranges::any_of(p.kv_layers, &LayerShape::latent)) {
    fail(MR_UNSUPPORTED, "a KV cache of %s: found latents, expected %s", kv_type_name(type),
         kv_type_name(own));
  }
  check_states(p, type);
  KvLayout layout(p.kv_layers, p.kv_groups, type, [&](int width) {
    const size_t bytes = type == own ? size_t{MR_SLAB_TOKENS} * width * dtype_bytes(floats)
                                     : device.kv_code_block_bytes(width, type);
    return bytes + (p.kept() > 0 ? kH2oBytes : 0);
  });
  layout.head_slabs = device.kv_head_slabs(type) + state_slabs(p, layout);
  if (p.kept() > 0) {
    layout.most_slabs = (p.kept() + MR_H2O_TOKENS + MR_SLAB_TOKENS - 1) / MR_SLAB_TOKENS;
  }
  return layout;
}

// kept: rows of logits.
void check_draw(const mr_draw& d, int kept, int n_masks) {
  if (d.row < 0 || d.row >= kept) {
    fail(MR_INVALID, "a draw of row %d of the logits, the last step has kept %d", d.row, kept);
  }
  if (!(d.per_nat >= 0 && std::isfinite(d.per_nat)) || d.mask < -1 || d.mask >= n_masks ||
      d.top_k < 0) {
    fail(MR_INVALID, "a draw with per_nat %g, mask %d of %d and top_k %d", d.per_nat, d.mask,
         n_masks, d.top_k);
  }
}

}  // namespace

Executor::Executor(Device& device, const mr_program_desc& desc) : device_(device) {
  read_program(desc, program_);
  const Program& p = program_;
  if (p.packed != nullptr && !device.takes_packed()) {
    fail(MR_UNSUPPORTED, "this backend takes no packed weights");
  }
  layout_ = kv_layout(device, p);
  operand_bytes_ = dtype_bytes(device.operand_dtype(p));
}

void Executor::load(const RankShare& share, Exchange& exchange) {
  const Program& p = program_;
  share_ = share;
  layout_.place(share.slab_from, share.slab_bytes);
  uint64_t bytes = 0;
  for (size_t i = 0; i < p.slots.size(); ++i) bytes += slot_bytes(p, i, operand_bytes_);
  mr_device_info info{};
  device_.info(info);
  const uint64_t available = info.memory_available;
  if (bytes > available) {
    fail(MR_NO_MEMORY, "the slots of %d rows need %.2f GiB, available are %.2f GiB", p.max_rows,
         static_cast<double>(bytes) / (1u << 30), static_cast<double>(available) / (1u << 30));
  }
  for (size_t i = 0; i < p.slots.size(); ++i) {
    memory_.push_back(device_.allocate(slot_bytes(p, i, operand_bytes_)));
    const mr_slot& slot = p.slots[i];
    slots_.push_back(
        {memory_[i].data(), slot.width, slot.type, slot.type == MR_SLOT_F32 ? 4 : operand_bytes_});
  }
  if (p.classes < share.classes)
    logits_ = device_.allocate(size_t(p.max_outputs) * p.classes * sizeof(float));
  exchange_ = &exchange;
  exchange.set_slots(share.rank, slots_.data());
  kernels_ = device_.load(program_, layout_);
  numerics_ = kernels_->numerics();
}

void Executor::info(mr_program_info& out) const {
  out = {};
  out.weight_bytes = kernels_->weight_bytes();
  out.activation_bytes = kernels_->scratch_bytes();
  for (const Buffer& slot : memory_) out.activation_bytes += slot.size();
  out.activation_bytes += logits_.size();
  out.slab_bytes = layout_.slab_bytes;
  out.kv_type = layout_.type;
  out.operand_dtype = device_.operand_dtype(program_);
  out.max_slabs = device_.max_slabs();
  out.head_slabs = layout_.head_slabs;
  out.most_slabs = layout_.most_slabs;
  std::snprintf(out.linear, sizeof out.linear, "%s", kernels_->linear_name().c_str());
}

void Executor::reserve(int slabs, const PoolFile& file) {
  if (pool_ != nullptr)
    fail(MR_INVALID, "the KV pool of %d slabs is reserved already", pool_->slabs());
  pool_ = device_.pool(layout_, slabs, file);
}

const std::shared_ptr<KvPool>& Executor::pool() const {
  if (pool_ == nullptr) fail(MR_INVALID, "the KV pool is not reserved yet");
  return pool_;
}

// drawn: tokens that the step before has drawn for this one.
void Executor::check(const mr_step& step, int drawn) {
  kept_logits_ = 0;
  read_step(program_, pool_.get(), step, share_.rank == 0 ? ++steps_ : 0, drawn, batch_);
  for (const Sequence& s : batch_.sequences) {
    if (s.beams != nullptr && (program_.state > 0 || !kernels_->takes_beams())) {
      fail(MR_UNSUPPORTED, program_.state > 0 ? "a program with states has no beam search"
                                              : "this backend has no beam search");
    }
  }
  drawn_ = 0;
}

void Executor::begin(const mr_step& step) {
  if (!started_.empty()) {
    fail(MR_INVALID, "a step was started and is not drawn, expected none");
  }
  if (step.best != nullptr && (logits_.size() > 0 || !kernels_->keeps_logits())) {
    fail(MR_UNSUPPORTED, "this backend keeps no logits, expected the caller's memory for them");
  }
  if (step.outputs > step.hidden_outputs && step.logits == nullptr && step.best == nullptr) {
    fail(MR_INVALID, "step: logits is a null pointer");
  }
  check(step, 0);
}

void Executor::begin_kernels() {
  kernels_->begin(batch_);
  for (int group = 1; group < program_.kv_groups; ++group) {
    batch_.select(group);
    kernels_->begin_group(batch_);
  }
}

void Executor::run_ops() {
  if (kernels_->replay(batch_)) return;
  for (const Op& op : program_.ops) run_op(op);
}

void Executor::run(const mr_step& step) {
  const bool part = logits_.size() > 0;
  slots_[program_.logits_slot].data =
      part ? logits_.data() : static_cast<void*>(kernels_->logits(step.logits));
  begin_kernels();
  if (step.op_times != nullptr && share_.rank == 0) {
    run_timed(step);
  } else {
    run_ops();
  }
  if (step.hidden_outputs > 0 && share_.rank == 0) read_hidden(step.hidden);
  if (part) write_logits(step.logits);
  mr_step last = step;
  if (part) last.logits = nullptr;
  kernels_->finish(last);
  if (step.best != nullptr) kept_logits_ = batch_.logits;
}

void Executor::start(const mr_step& step, const mr_draw* draws) {
  constexpr size_t kMostStarted = 2;
  if (logits_.size() > 0 || !kernels_->keeps_logits()) {
    fail(MR_UNSUPPORTED, "this backend keeps no logits, expected steps that are run");
  }
  if (started_.size() == kMostStarted) {
    fail(MR_INVALID, "%zu steps are started and not drawn, expected fewer", kMostStarted);
  }
  if (step.hidden_outputs != 0 || step.op_times != nullptr || step.outputs < 0 ||
      step.outputs > program_.max_outputs) {
    fail(MR_INVALID,
         "a step that is started has %d outputs, %d of hidden states%s, expected 0 to %d of logits",
         step.outputs, step.hidden_outputs, step.op_times != nullptr ? " and op_times" : "",
         program_.max_outputs);
  }
  const std::span<const mr_draw> all(draws, draws == nullptr ? 0 : step.outputs);
  for (size_t i = 0; i < all.size(); ++i) {
    check_draw(all[i], step.outputs, 0);
    if (all[i].row != static_cast<int>(i)) {
      fail(MR_INVALID, "draw %zu is of row %d, expected its own", i, all[i].row);
    }
  }
  check(step, program_.classes == program_.vocab ? drawn_ : 0);
  slots_[program_.logits_slot].data = kernels_->logits(nullptr);
  begin_kernels();
  run_ops();
  kernels_->start_draws(batch_.logits, all);
  started_.push_back(drawn_ = batch_.logits);
}

void Executor::drawn(std::span<int32_t> tokens) {
  if (started_.empty() || tokens.size() != size_t(started_.front())) {
    fail(MR_INVALID, "%zu tokens of a step that was started, expected %d", tokens.size(),
         started_.empty() ? 0 : started_.front());
  }
  started_.pop_front();
  kernels_->end_draws(tokens);
}

void Executor::read_logits(int row, float* out) {
  if (row < 0 || row >= kept_logits_) {
    fail(MR_INVALID, "row %d of the logits, the last step has kept %d", row, kept_logits_);
  }
  const size_t bytes = size_t(program_.classes) * sizeof(float);
  kernels_->read(out, reinterpret_cast<const std::byte*>(kernels_->logits(nullptr)) + bytes * row,
                 bytes);
}

void Executor::draw(std::span<const mr_draw> draws, const uint32_t* masks, int n_masks,
                    int32_t* tokens) {
  if (draws.size() > size_t(program_.max_outputs) || n_masks > program_.max_outputs) {
    fail(MR_INVALID, "%zu draws with %d masks, expected at most %d of each", draws.size(), n_masks,
         program_.max_outputs);
  }
  for (const mr_draw& d : draws) check_draw(d, kept_logits_, n_masks);
  if (draws.empty()) return;
  const size_t words = (size_t(program_.classes) + 31) / 32;
  kernels_->draw(draws, {masks, n_masks * words}, tokens);
}

// The mean of the rows of each output's sequence.
static void mean_rows(const Batch& batch, Slot in, Slot out) {
  std::vector<double> sums(in.width);
  size_t sequence = 0;
  for (int i = 0; i < batch.outputs; ++i) {
    const Sequence& s = batch.sequence_of(batch.output_rows[i], sequence);
    std::ranges::fill(sums, 0.0);
    for (int r = 0; r < s.rows; ++r) {
      const float* x = in.f32() + int64_t{s.first_row + r} * in.width;
      for (int k = 0; k < in.width; ++k) sums[k] += x[k];
    }
    float* y = out.f32() + int64_t{i} * out.width;
    for (int k = 0; k < out.width; ++k) y[k] = static_cast<float>(sums[k] / s.rows);
  }
}

// The classes of this rank, in the rows of all of them.
void Executor::write_logits(float* out) const {
  const auto* from = static_cast<const float*>(logits_.data());
  for (int64_t i = 0; i < batch_.logits; ++i) {
    kernels_->read(out + i * share_.classes + share_.first_class, from + i * program_.classes,
                   size_t(program_.classes) * sizeof(float));
  }
}

// The rows after those with logits of what the last op reads.
void Executor::read_hidden(float* out) {
  const int in = program_.ops.back().in;
  const Slot slot = slots_[in];
  const bool floats = slot.type == MR_SLOT_F32 || operand_bytes_ == sizeof(float);
  const size_t row = size_t(slot.width) * slot.element_bytes;
  const size_t n = size_t(batch_.outputs - batch_.logits) * slot.width;
  const auto* from = static_cast<const std::byte*>(slot.data) + row * batch_.logits;
  if (floats) return kernels_->read(out, from, n * sizeof(float));
  hidden_.resize(n);
  kernels_->read(hidden_.data(), from, n * sizeof(uint16_t));
  const bool f16 = device_.operand_dtype(program_) == MR_F16;
  for (size_t i = 0; i < n; ++i)
    out[i] = f16 ? cpu::f16_to_float(hidden_[i]) : cpu::to_float(hidden_[i]);
}

void Executor::run_timed(const mr_step& step) {
  kernels_->wait();  // for what begin has started
  for (const Op& op : program_.ops) {
    const Clock::time_point start = Clock::now();
    run_op(op);
    kernels_->wait();
    const std::chrono::nanoseconds passed = Clock::now() - start;
    mr_op_time time = kernels_->op_time();
    if (time.nanoseconds == 0) time.nanoseconds = static_cast<uint64_t>(passed.count());
    if (time.launches == 0 && rows(op) > 0) time.launches = 1;
    step.op_times[op.index] = time;
  }
}

void Executor::run_op(const Op& op) {
  const int rows = this->rows(op);
  if (rows == 0) return;  // a prefill chunk whose logits nobody wants
  if (op.kind == MR_OP_ROPE_STORE || op.kind == MR_OP_ATTENTION) {
    batch_.select(op.attention.kv_group);
  }
  if (op.kind == MR_OP_ALL_REDUCE) {
    kernels_->wait();
    exchange_->meet();
  }
  (kernels_.get()->*op.run)(op, {batch_, rows, slots_.data(), exchange_->slots()});
}

void Kernels::select_rows(const Op& op, const Run& run) {
  const Batch& batch = run.batch;
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  if (op.select.pooling == MR_POOL_MEAN) return mean_rows(batch, in, out);
  const size_t row = size_t(in.width) * in.element_bytes;
  size_t sequence = 0;
  for (int i = 0; i < batch.outputs; ++i) {
    int from = batch.output_rows[i];
    if (op.select.pooling == MR_POOL_FIRST) from = batch.sequence_of(from, sequence).first_row;
    std::memmove(static_cast<std::byte*>(out.data) + row * i,
                 static_cast<const std::byte*>(in.data) + row * from, row);
  }
}

void Kernels::draw(std::span<const mr_draw>, std::span<const uint32_t>, int32_t*) {
  fail(MR_UNSUPPORTED, "this backend keeps no logits to draw from");
}

void Kernels::start_draws(int, std::span<const mr_draw>) {
  fail(MR_UNSUPPORTED, "this backend keeps no logits to draw from");
}

void Kernels::end_draws(std::span<int32_t>) {
  fail(MR_UNSUPPORTED, "this backend keeps no logits to draw from");
}

void Kernels::all_reduce(const Op&, const Run&) {
  fail(MR_UNSUPPORTED, "this backend has one rank, expected no ALL_REDUCE");
}

std::shared_ptr<KvPool> Device::pool(const KvLayout& layout, int slabs, const PoolFile& file) {
  return std::make_shared<MappedPool>(layout, slabs, file);
}

int32_t Device::max_slabs() const { return MappedPool::max_slabs(); }

}  // namespace millrace
