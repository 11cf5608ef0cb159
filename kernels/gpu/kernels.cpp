#include "gpu/kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>

#include "exec/error.hpp"
#include "gpu/fault.hpp"
#include "gpu/pool.hpp"
#include "gpu/recipes.hpp"
#include "gpu/weights.hpp"

namespace millrace::gpu {
namespace {

// For states of rows that share keys; where it ends, sequences read these each.
constexpr size_t kMostStateBytes = size_t{64} << 20;

int padded(int dim) { return (dim + kDepth - 1) / kDepth * kDepth; }

int64_t elements(const mr_tensor& t) { return t.dims[0] * (t.rank == 2 ? t.dims[1] : 1); }

// A table's type on the device: of blocks, F16.
int type_of(const mr_tensor* t) {
  if (t == nullptr) return -1;
  return t->dtype >= MR_BLOCKS ? MR_F16 : t->dtype;
}

LinearKernels linear_kernels(const Bundle& bundle, Target target, int units) {
  if (target.mma()) {
    return {target.lanes,
            mma_kernels(bundle, target, "mr_linear_", {8, 16, 32}, kLargeTile, 1, kWide, kWidest,
                        units),
            {},
            {},
            {},
            {}};
  }
  LinearKernels kernels{target.lanes, row_kernels(bundle, target), {},
                        {},           bundle.kernel("mr_widen"),   bundle.kernel("mr_finish")};
  for (const int rows : {1, 2, kMostOwnRows}) {
    kernels.packed.push_back({rows, bundle.kernel("mr_packed_" + std::to_string(rows))});
    kernels.floats.push_back({rows, bundle.kernel("mr_floats_" + std::to_string(rows))});
  }
  return kernels;
}

// What experts and states run on: our kernels alone.
Target without_onednn(Target target) {
  target.onednn = false;
  return target;
}

// The elements that a norm's weights are for.
int norm_width(const Op& op, int row) {
  return op.norm.width > 0 ? op.norm.width / op.norm.groups : row;
}

// Ops that differ in more than the size of heads share kernels.
AttentionKind attention_kind(const Program& program, const Op& of, int32_t kv_type) {
  AttentionKind kind{of.attention.head_dim, kv_bits(kv_type), program.sinks > 0};
  kind.value_dim = of.attention.value_dim;
  kind.latent = of.attention.latent != 0;
  kind.both_ways = program.both_ways;
  for (const Op& op : program.ops) {
    if (op.kind != MR_OP_ATTENTION) continue;
    kind.softcap |= op.attention.softcap > 0;
    kind.chunked |= op.attention.chunked != 0;
    kind.null_scores |= op.null_values != nullptr;
  }
  return kind;
}

Bundle bundle_of(const Stream& stream, const Recipe& recipe) {
  return Bundle(stream, recipe.files, recipe.options);
}

}  // namespace

mr_dtype operand_type(const Program& program, int32_t wanted) {
  if (wanted != 0) return static_cast<mr_dtype>(wanted);
  for (const Op& op : program.ops) {
    if (op.kind != MR_OP_LINEAR) continue;
    return program.tensors[op.parts_of(0)[0].weight].dtype == MR_BF16 ? MR_BF16 : MR_F16;
  }
  return program.tensors.empty() || program.tensors[0].dtype == MR_BF16 ? MR_BF16 : MR_F16;
}

int kv_bits(int32_t type) { return type == MR_KV_INT8 ? 8 : type == MR_KV_INT4 ? 4 : 16; }

ProgramBundles::ProgramBundles(const Stream& stream, Target target, const Program& program,
                               mr_dtype type, int32_t kv_type) {
  for (const Op& op : program.ops) {
    if (op.kind != MR_OP_ATTENTION) continue;
    const AttentionKind kind = attention_kind(program, op, kv_type);
    if (std::ranges::find(attention, kind, &AttentionBundle::kind) != attention.end()) continue;
    attention.push_back({kind, bundle_of(stream, attention_recipe(target, type, kind))});
  }
  if (millrace::gpu::quantized(program)) {
    quantized = bundle_of(stream, quantized_recipe(target, type));
  }
  if (millrace::gpu::dequantizes(program)) {
    dequantize = bundle_of(stream, dequantize_recipe(target, type));
  }
  const Target own = without_onednn(target.written_out());
  if (has_experts(program)) {
    experts = {bundle_of(stream, experts_recipe(own, type)), {}, {}};
    if (millrace::gpu::quantized(program, true)) {
      experts->quantized = bundle_of(stream, of_experts(quantized_recipe(own, type)));
    }
    if (millrace::gpu::dequantizes(program, true)) {
      experts->dequantize = bundle_of(stream, of_experts(dequantize_recipe(own, type)));
    }
  }
  if (has_states(program)) states = bundle_of(stream, states_recipe(own, type));
}

CommonKernels::CommonKernels(const Stream& stream, Target target, mr_dtype type)
    : CommonKernels(bundle_of(stream, common_recipe(target, type)), target,
                    compute_units(stream.device())) {}

CommonKernels::CommonKernels(const Bundle& bundle, Target target, int units)
    : altup(bundle.kernel("mr_altup")),
      embed(bundle.kernel("mr_embed")),
      norm(bundle.kernel("mr_norm")),
      rope_store(bundle.kernel("mr_rope_store")),
      select_rows(bundle.kernel("mr_select_rows")),
      pool_rows(bundle.kernel("mr_pool_rows")),
      round(bundle.kernel("mr_round")),
      copy_slab(bundle.kernel("mr_copy_slab")),
      sum_ranks(bundle.kernel("mr_sum_ranks")),
      best(bundle.kernel("mr_best")),
      draw(bundle.kernel("mr_draw")),
      linear(linear_kernels(bundle, target, units)) {}

GpuKernels::GpuKernels(std::shared_ptr<Stream> stream, Target target, mr_dtype type,
                       std::shared_ptr<const CommonKernels> common, const ProgramBundles& bundles,
                       LinearChoices& choices, const Program& program, const KvLayout& layout)
    : stream_(std::move(stream)),
      target_(target),
      type_(type),
      kernels_(std::move(common)),
      program_(program),
      layout_(layout),
      linears_(*stream_, target_, kernels_->linear, choices),
      ranks_(std::ranges::any_of(program.ops,
                                 [](const Op& op) { return op.kind == MR_OP_ALL_REDUCE; })),
      constants_(program.ops.size()) {
  if (bundles.quantized) {
    quantized_ = std::make_unique<QuantizedLinears>(*stream_, target, *bundles.quantized);
  }
  if (bundles.dequantize) {
    dequantized_ = std::make_unique<DequantizedLinears>(*stream_, target, *bundles.dequantize);
  }
  const Target own = without_onednn(target.written_out());
  if (bundles.experts) {
    experts_ = std::make_unique<Experts>(*stream_, own, type, *bundles.experts,
                                         kernels_->select_rows, program);
  }
  if (bundles.states) {
    states_ = std::make_unique<StateOps>(*stream_, own, *bundles.states, program, layout);
  }
  for (const AttentionBundle& of : bundles.attention) attention_.push_back(load_attention(of));

  int64_t rounded = 0;
  // An embedding may share what a linear op has loaded.
  for (const bool embeddings : {false, true}) {
    for (const Op& op : program.ops) {
      if ((op.kind == MR_OP_EMBED) == embeddings) load(op);
    }
  }
  leave_codes();
  const int state_rows = allocate_states();
  for (int group = 0; group < program.kv_groups; ++group) {
    std::set<TaskSizes> sizes;
    for (const Op& op : program.ops) {
      if (op.kind == MR_OP_ATTENTION && op.attention.kv_group == group) {
        sizes.insert(constants_[op.index].tasks);
      }
    }
    tables_.emplace_back(std::move(sizes), state_rows, compute_units(stream_->device()));
  }
  for (const Op& op : program.ops) {
    if (op.kind == MR_OP_LINEAR && op.linear.routed == MR_ROUTED_NONE &&
        program.slots[op.in].type == MR_SLOT_F32) {
      rounded = std::max(rounded, int64_t{program.max_rows} * program.slots[op.in].width);
    }
  }
  rounded_ = stream_->allocate(rounded * sizeof(uint16_t));
  logits_ = stream_->allocate(size_t(program.max_outputs) * program.classes * sizeof(float));
  best_ = stream_->allocate(size_t(program.max_outputs) * sizeof(int32_t));
}

// The memory, in one piece, for states of rows that share keys, which stays where it is: recordings have its address. Returns the rows.
int GpuKernels::allocate_states() {
  size_t bytes = 0;  // of a row
  for (const Op& op : program_.ops) {
    const Constants& c = constants_[op.index];
    if (op.kind != MR_OP_ATTENTION || most_shared_rows(c.tasks) == 0) continue;
    bytes = std::max(
        bytes, size_t(op.attention.heads) * attention_[c.attention].state_floats * sizeof(float));
  }
  if (bytes == 0) return 0;
  const size_t most = std::min<size_t>(kMostStateBytes, device_memory(stream_->device()).largest);
  const size_t rows = std::min<size_t>(program_.max_outputs, most / bytes);
  if (rows == 0) return 0;
  attention_states_ = stream_->allocate(rows * bytes);
  return static_cast<int>(rows);
}

// A norm has each row at hand: it quantizes them for the op that follows, one launch less.
void GpuKernels::leave_codes() {
  for (size_t i = 1; i < program_.ops.size(); ++i) {
    const Op& norm = program_.ops[i - 1];
    const Op& linear = program_.ops[i];
    if (norm.kind != MR_OP_NORM || linear.kind != MR_OP_LINEAR || linear.in != norm.out) continue;
    const mr_slot& rows = program_.slots[norm.out];
    if (norm.norm.width > 0 || rows.type == MR_SLOT_F32) continue;
    if (linear.linear.routed != MR_ROUTED_NONE) continue;
    constants_[norm.index].codes = constants_[linear.index].linear->take_codes();
  }
}

void GpuKernels::load_tasks(const Op& op, Constants& c) const {
  const AttentionKind kind = attention_kind(program_, op, layout_.type);
  c.attention = std::ranges::find(attention_, kind, &AttentionKernels::kind) - attention_.begin();
  const int group = op.attention.heads / op.attention.kv_heads;
  const int most = most_queries(kind, target_.written_out().lanes);
  // Rows of a window see different parts of a prefix, and sinks are few keys.
  const bool groups = op.attention.window == 0 && !kind.sinks && !kind.chunked && !kind.both_ways;
  c.tasks = attention_by_mma(target_, kind) ? TaskSizes{group, 0, kPromptQueries, groups}
                                            : TaskSizes{group, most, 0, groups};
}

GpuKernels::AttentionKernels GpuKernels::load_attention(const AttentionBundle& of) const {
  const AttentionKind& kind = of.kind;
  const int head_dim = kind.head_dim;
  AttentionKernels all{kind, 0, {}};
  if (attention_by_mma(target_, kind)) {
    all.state_floats = mma_state_floats(head_dim);
    const auto add = [&](TaskKind kind, int queries, int warps, int bytes, const char* name) {
      all.kernels.push_back({kind, queries, size_t(warps) * target_.lanes, bytes / sizeof(float),
                             of.bundle.kernel(name)});
    };
    add(TaskKind::prompt, kPromptQueries, kPromptWarps, prompt_local_bytes(head_dim),
        "mr_attention_prompt");
    add(TaskKind::decode, kProductQueries, decode_warps(head_dim), decode_local_bytes(head_dim),
        "mr_attention_decode");
    add(TaskKind::beams, kProductQueries, decode_warps(head_dim), beam_local_bytes(head_dim),
        "mr_attention_beams");
  } else {
    const int lanes = target_.written_out().lanes, stripes = attention_stripes(target_);
    // A query has itself, with sinks another one, and a state of each stripe. One stripe has queries of floats, and
    // its states in registers.
    const int elements = (kind.sinks ? 2 : 1) * padded(head_dim);
    const int states = stripes * (2 + padded(value_part(kind.value_dim)));
    const int floats = stripes == 1 ? elements : elements / 2 + states;
    all.state_floats = value_parts(kind.value_dim) *
                       state_floats(stripes, lanes, padded(value_part(kind.value_dim)));
    const auto add = [&](TaskKind kind, int queries, const std::string& name) {
      all.kernels.push_back({kind, queries, size_t(stripes) * lanes, size_t(queries) * floats,
                             of.bundle.kernel(name)});
    };
    const int most = most_queries(kind, lanes);
    for (int queries = 1; queries <= most; queries *= 2) {
      add(TaskKind::written_out, queries, "mr_attention_" + std::to_string(queries));
    }
    add(TaskKind::beams, beam_queries(most), "mr_attention_beams");
  }
  return all;
}

void GpuKernels::load(const Op& op) {
  const WeightsInUse weights(program_, op);
  try {
    load(op, constants_[op.index]);
  } catch (const Error& e) {
    if (e.status() != MR_NO_MEMORY) throw;
    fail(MR_NO_MEMORY, "op %d (%s, layer %d): %s", op.index, op_name(op.kind), op.layer, e.what());
  }
}

void GpuKernels::load(const Op& op, Constants& c) {
  switch (op.kind) {
    case MR_OP_EMBED:
      c.table = shared_table(op);
      if (c.table.data == nullptr) c.weight = raw(program_.tensor(op.embed.table));
      c.bias = raw(program_.tensor(op.embed.positions));
      c.types = raw(program_.tensor(op.embed.types));
      break;
    case MR_OP_NORM:
      c.weight = op.norm.weight >= 0 ? upload_floats(*stream_, program_.tensor(op.norm.weight))
                                     : stream_->upload(std::vector<float>(
                                           norm_width(op, program_.slots[op.in].width), 1.0f));
      c.bias = upload_floats(*stream_, program_.tensor(op.norm.bias));
      break;
    case MR_OP_ROUTE:
      experts_->load(op);
      break;
    case MR_OP_LINEAR:
      refuse_blocks(op);
      if (op.linear.routed != MR_ROUTED_NONE) {
        experts_->load(op);
      } else {
        c.linear = make_linear(op);
      }
      break;
    case MR_OP_ROPE_STORE:
      c.q_norm = upload_floats(*stream_, program_.tensor(op.attention.q_norm));
      c.k_norm = upload_floats(*stream_, program_.tensor(op.attention.k_norm));
      c.inv_freq =
          stream_->upload(op.attention.inv_freq, op.attention.rotary_dim / 2 * sizeof(float));
      c.q_scales = stream_->upload(
          op.attention.q_scales,
          op.attention.q_scales == nullptr ? 0 : op.attention.n_q_scales * sizeof(float));
      break;
    case MR_OP_ATTENTION:
      c.slopes = stream_->upload(
          op.attention.alibi_slopes,
          op.attention.alibi_slopes == nullptr ? 0 : op.attention.heads * sizeof(float));
      c.null_scores = upload_floats(*stream_, program_.tensor(op.attention.null_scores));
      load_tasks(op, c);
      break;
    default:
      break;
  }
}

void GpuKernels::refuse_blocks(const Op& op) {
  if (op.linear.weights < MR_WEIGHTS_BLOCKS) return;
  fail(MR_UNSUPPORTED,
       "op %d (LINEAR, layer %d): weights of blocks, expected another type: this backend has no "
       "kernels for them",
       op.index, op.layer);
}

std::unique_ptr<Linear> GpuKernels::make_linear(const Op& op) {
  const LinearKind kind = linear_kind(program_, op, type_);
  if (op.linear.weights == MR_WEIGHTS_16BIT) return linears_.make(kind, program_, op);
  if (quantizes_rows(op.linear.weights)) return quantized_->make(kind, program_, op);
  return dequantized_->make(kind, program_, op);
}

// The weights of a linear op that are the table's rows, bit for bit: tied embeddings are on
// the device once. No data where there are none.
WeightBlocks GpuKernels::shared_table(const Op& embed) const {
  const mr_tensor* table = program_.tensor(embed.embed.table);
  if (table == nullptr || type_of(table) != type_) return {};
  for (const Op& op : program_.ops) {
    const mr_part& part = op.linear.parts[0];
    const bool same = op.kind == MR_OP_LINEAR && op.linear.routed == MR_ROUTED_NONE &&
                      op.linear.n_parts == 1 && part.offset == 0 && part.block == part.rows &&
                      part.rows == program_.vocab &&
                      program_.tensor(part.weight)->data == table->data;
    if (same) return constants_[op.index].linear->blocks();
  }
  return {};
}

// A table as it lies in the checkpoint; of blocks, as F16.
Buffer GpuKernels::raw(const mr_tensor* tensor) {
  if (tensor == nullptr) return {};
  if (tensor->dtype >= MR_BLOCKS) {
    const int64_t width = tensor->dims[1];
    std::vector<uint16_t> halves(elements(*tensor));
    parallel(tensor->dims[0], [&](int64_t row) {
      std::vector<float> values(width);
      millrace::read_row(*tensor, row, values.data());
      std::transform(values.begin(), values.end(), &halves[row * width], cpu::f16_from_float);
    });
    return stream_->upload(halves);
  }
  return stream_->upload(tensor->data, elements(*tensor) * dtype_bytes(tensor->dtype));
}

// What fails from here on leaves it running.
void GpuKernels::begin_call() {
  if (running_) fail(MR_DEVICE, "the device failed in an earlier step; load the program again");
  running_ = true;
}

void GpuKernels::begin(const Batch& batch) {
  begin_call();
  stream_->forget_launches();
  begin_group(batch);
}

void GpuKernels::begin_group(const Batch& batch) {
  StepTables& tables = tables_[batch.group];
  tables.set(*stream_, batch, *static_cast<const DevicePool*>(batch.pool));
  if (!tables.in_place()) recordings_.forget();
}

bool GpuKernels::replay(const Batch& batch) {
  const bool decode =
      std::all_of(batch.sequences.begin(), batch.sequences.end(),
                  [](const Sequence& s) { return s.rows == 1 && s.beams == nullptr; });
  if (!decode || ranks_ || batch.logits != batch.rows || fault_planned()) return false;
  Recordings::Shape shape{static_cast<size_t>(batch.rows)};
  for (const StepTables& tables : tables_) tables.add_places(shape);
  return recordings_.replay(*stream_, std::move(shape));
}

void GpuKernels::read(void* to, const void* from, size_t bytes) {
  stream_->copy(to, from, bytes);
  stream_->wait();
}

void GpuKernels::launch_best(int outputs) {
  stream_->launch(kernels_->best, outputs, kDrawItems, static_cast<const void*>(logits_.data()),
                  best_.data(), program_.classes);
}

void GpuKernels::finish(const mr_step& step) {
  recordings_.end(*stream_);
  const int outputs = step.outputs - step.hidden_outputs;
  if (outputs > 0 && step.best != nullptr) {
    launch_best(outputs);
    stream_->copy(step.best, best_.data(), size_t(outputs) * sizeof(int32_t));
  } else if (outputs > 0 && step.logits != nullptr) {
    stream_->copy(step.logits, logits_.data(), size_t(outputs) * program_.classes * sizeof(float));
  }
  stream_->wait();
  running_ = false;
}

// The draws lie still until the stream has done them. Their masks, if they have any, are in masks_.
void GpuKernels::launch_draws(std::span<const mr_draw> draws) {
  static_assert(sizeof(DrawEntry) == sizeof(mr_draw) &&
                offsetof(DrawEntry, random) == offsetof(mr_draw, random));
  if (draws_.size() == 0) {
    draws_ = stream_->allocate(size_t(program_.max_outputs) * sizeof(DrawEntry));
  }
  stream_->copy(draws_.data(), draws.data(), draws.size_bytes());
  stream_->launch_local(kernels_->draw, draws.size(), kDrawItems, kDrawLocalWords,
                        DrawShape{program_.classes}, static_cast<const void*>(logits_.data()),
                        static_cast<const void*>(draws_.data()),
                        static_cast<const void*>(masks_.data()), best_.data());
}

void GpuKernels::draw(std::span<const mr_draw> draws, std::span<const uint32_t> masks,
                      int32_t* tokens) {
  begin_call();
  if (!masks.empty()) {
    if (masks_.size() < masks.size_bytes()) masks_ = stream_->allocate(masks.size_bytes());
    stream_->copy(masks_.data(), masks.data(), masks.size_bytes());
  }
  launch_draws(draws);
  stream_->copy(tokens, best_.data(), draws.size() * sizeof(int32_t));
  stream_->wait();
  running_ = false;
}

void GpuKernels::start_draws(int outputs, std::span<const mr_draw> draws) {
  recordings_.end(*stream_);
  Started& s = started_[next_start_];
  next_start_ ^= 1;
  if (!s.tokens) s.tokens.emplace(*stream_, size_t(program_.max_outputs) * sizeof(int32_t));
  if (!draws.empty()) {
    s.draws.assign(draws.begin(), draws.end());
    launch_draws(s.draws);
  } else if (outputs > 0) {
    launch_best(outputs);
  }
  s.tokens->begin(*stream_, best_.data(), size_t(outputs) * sizeof(int32_t));
  running_ = false;
}

void GpuKernels::end_draws(std::span<int32_t> tokens) {
  begin_call();
  Started& s = started_[next_end_];
  next_end_ ^= 1;
  s.tokens->end(*stream_, tokens.data(), tokens.size_bytes());
  running_ = false;
}

void GpuKernels::embed(const Op& op, const Run& run) {
  const Batch& batch = run.batch;
  const Slot out = run.slot(op.out);
  const Constants& c = constants_[op.index];
  const bool tied = c.table.data != nullptr;
  const mr_tensor* types = program_.tensor(op.embed.types);
  const EmbedShape shape{
      out.width,
      tied ? c.table.columns : 0,
      tied ? c.table.steps : 0,
      tied ? c.table.deep : 1,
      type_of(program_.tensor(op.embed.table)),
      type_of(program_.tensor(op.embed.positions)),
      type_of(types),
      types != nullptr && types->dims[0] > 1 && !batch.types.empty(),
      op.embed.position_offset,
      op.embed.scale,
      out.type == MR_SLOT_F32,
      op.embed.accumulate ? static_cast<int32_t>(program_.tensor(op.embed.table)->dims[0]) : 0};
  stream_->launch(kernels_->embed, batch.rows, kRowItems, tables_.front().tokens(),
                  static_cast<const int32_t*>(best_.data()), tables_.front().positions(),
                  tables_.front().types(),
                  tied ? c.table.data : static_cast<const void*>(c.weight.data()), c.bias.data(),
                  c.types.data(), out.data, shape);
}

void GpuKernels::norm(const Op& op, const Run& run) {
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const Constants& c = constants_[op.index];
  const int width = norm_width(op, in.width), groups = op.norm.width > 0 ? op.norm.groups : 1;
  // All groups share weights, or each has its own.
  const auto step = [&](int tensor) {
    return tensor >= 0 && program_.tensor(tensor)->dims[0] > width ? width : 0;
  };
  const NormShape shape{width,
                        in.width,
                        op.norm.width > 0 ? op.norm.offset : 0,
                        groups,
                        step(op.norm.weight),
                        step(op.norm.bias),
                        op.norm.kind == MR_NORM_LAYER,
                        op.norm.bias >= 0,
                        out.type == MR_SLOT_F32,
                        op.norm.accumulate,
                        op.norm.eps,
                        op.norm.kind == MR_NORM_NONE,
                        op.norm.scale,
                        c.codes.width};
  stream_->launch(kernels_->norm, size_t(run.rows) * groups, kNormItems, in.data, c.weight.data(),
                  c.bias.data(), out.data, c.codes.codes, c.codes.scales, shape);
}

void GpuKernels::linear(const Op& op, const Run& run) {
  if (op.linear.routed != MR_ROUTED_NONE) return experts_->run(op, run);
  const Slot in = run.slot(op.in);
  const void* operands = in.data;
  if (in.type == MR_SLOT_F32) {
    const int64_t n = int64_t{run.rows} * in.width;
    stream_->launch(kernels_->round, (n + kRowItems - 1) / kRowItems, kRowItems, in.data,
                    rounded_.data(), n);
    operands = rounded_.data();
  }
  constants_[op.index].linear->run(*stream_, run.rows, operands, run.slot(op.out).data);
}

void GpuKernels::route(const Op& op, const Run& run) { experts_->route(op, run); }

void GpuKernels::conv(const Op& op, const Run& run) { states_->conv(op, run, tables_.front()); }

void GpuKernels::recur(const Op& op, const Run& run) { states_->recur(op, run, tables_.front()); }

void GpuKernels::gate(const Op& op, const Run& run) { states_->gate(op, run); }

void GpuKernels::altup(const Op& op, const Run& run) {
  const mr_altup& a = op.altup;
  const Slot coefs = run.slot_if(a.step != MR_ALTUP_MATCH, a.coefs);
  const Slot x = run.slot_if(a.step == MR_ALTUP_CORRECT, a.x);
  AltUpShape shape{{}, a.step, a.streams, a.active, run.slot(op.in).width};
  for (int i = 0; i < a.streams; ++i) {
    shape.streams[i] = reinterpret_cast<uint64_t>(run.slot(op.in + i).data);
  }
  stream_->launch(kernels_->altup, run.rows, kNormItems, static_cast<const void*>(coefs.data),
                  static_cast<const void*>(x.data), shape);
}

KvShape GpuKernels::kv_shape(const Op& op) const {
  return {static_cast<int64_t>(layout_.block(op.place, 0, 0)),
          static_cast<int64_t>(layout_.block(op.place, 1, 0)), op.attention.kv_heads,
          op.attention.head_dim, kv_bits(layout_.type)};
}

void GpuKernels::rope_store(const Op& op, const Run& run) {
  const Slot in = run.slot(op.in);
  const Slot sink_q = run.slot_if(op.attention.sinks > 0, op.attention.sink_q);
  const Constants& c = constants_[op.index];
  const mr_attention& a = op.attention;
  const RopeShape shape{kv_shape(op),
                        a.value_dim,
                        in.width,
                        a.stored,
                        a.latent,
                        run.batch.rows,
                        op.attention.heads,
                        op.attention.q_norm >= 0,
                        op.attention.k_norm >= 0,
                        op.attention.rotary_dim,
                        op.attention.rotary_offset,
                        op.attention.rotary_interleaved,
                        op.attention.sinks,
                        op.attention.window,
                        op.attention.norm_last,
                        op.attention.q_scales == nullptr ? 0 : op.attention.n_q_scales,
                        op.attention.q_scale_offset,
                        op.attention.q_scale_tokens,
                        op.attention.rotary_scale,
                        op.attention.eps};
  const StepTables& tables = tables_[op.attention.kv_group];
  const int kept = a.stored ? 0 : a.latent ? a.kv_heads : 2 * a.kv_heads;
  const size_t heads = size_t(run.batch.rows) * (a.heads + kept);
  stream_->launch(kernels_->rope_store, (heads + kHeadsPerGroup - 1) / kHeadsPerGroup,
                  size_t(kHeadsPerGroup) * target_.lanes, in.data, tables.positions(),
                  tables.row_sequence(), tables.sequences(), tables.slabs(), tables.beams(),
                  c.q_norm.data(), c.k_norm.data(), c.inv_freq.data(), c.q_scales.data(),
                  sink_q.data, shape);
}

void GpuKernels::attention(const Op& op, const Run& run) {
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const Slot sink_q = run.slot_if(op.attention.sinks > 0, op.attention.sink_q);
  const Constants& c = constants_[op.index];
  AttentionShape shape{kv_shape(op),
                       in.width,
                       op.attention.heads,
                       op.attention.window,
                       op.attention.sinks,
                       op.attention.alibi_slopes != nullptr,
                       out.type == MR_SLOT_F32,
                       op.attention.chunked,
                       op.null_values != nullptr,
                       op.attention.both_ways,
                       kAllKeys,
                       op.attention.scale,
                       op.attention.softcap};
  const StepTables& tables = tables_[op.attention.kv_group];
  const auto& kernels = attention_[c.attention].kernels;
  const int copies = op.attention.kv_heads * value_parts(op.attention.value_dim);
  for (const AttentionTasks& tasks : tables.tasks(c.tasks, copies)) {
    shape.keys = tasks.keys;
    const auto kernel = std::ranges::find_if(kernels, [&](const AttentionKernel& k) {
      return k.kind == tasks.kind && k.queries == tasks.queries;
    });
    stream_->launch_local(kernel->kernel, size_t(tasks.count) * copies, kernel->items,
                          kernel->floats, shape, in.data, sink_q.data, tables.sequences(),
                          tasks.tasks, tables.slabs(), tables.beams(), c.slopes.data(),
                          c.null_scores.data(), out.data, attention_states_.data());
  }
}

void GpuKernels::all_reduce(const Op& op, const Run& run) {
  const Slot out = run.slot(op.out);
  RankSums shape{};
  shape.n = int64_t{run.rows} * out.width;
  shape.ranks = static_cast<int32_t>(run.ranks.size());
  shape.accumulate = op.all_reduce.accumulate;
  for (size_t r = 0; r < run.ranks.size(); ++r) {
    shape.in[r] = reinterpret_cast<uint64_t>(run.ranks[r][op.in].data);
  }
  const size_t groups = (size_t(shape.n) + kRowItems - 1) / kRowItems;
  stream_->launch(kernels_->sum_ranks, groups, kRowItems, out.data, shape);
}

void GpuKernels::select_rows(const Op& op, const Run& run) {
  const Batch& batch = run.batch;
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  const int32_t words = in.width * in.element_bytes / 2;
  const StepTables& tables = tables_.front();
  if (op.select.pooling != MR_POOL_ROW) {
    const int32_t mean = op.select.pooling == MR_POOL_MEAN;
    stream_->launch(kernels_->pool_rows, batch.outputs, kRowItems, in.data, tables.output_rows(),
                    tables.row_sequence(), tables.sequences(), out.data, words, mean);
    return;
  }
  stream_->launch(kernels_->select_rows, batch.outputs, kRowItems, in.data, tables.output_rows(),
                  out.data, words);
}

uint64_t GpuKernels::weight_bytes() const {
  uint64_t bytes = (experts_ ? experts_->bytes() : 0) + (states_ ? states_->bytes() : 0);
  for (const Constants& c : constants_) {
    for (const Buffer* b : {&c.weight, &c.bias, &c.types, &c.q_norm, &c.k_norm, &c.inv_freq,
                            &c.q_scales, &c.slopes, &c.null_scores}) {
      bytes += b->size();
    }
    if (c.linear) bytes += c.linear->bytes();
  }
  return bytes;
}

uint64_t GpuKernels::scratch_bytes() const {
  uint64_t tables = 0;
  for (const StepTables& t : tables_) tables += t.bytes();
  return linears_.scratch_bytes() + (experts_ ? experts_->scratch_bytes() : 0) +
         (quantized_ ? quantized_->scratch_bytes() : 0) + rounded_.size() + logits_.size() +
         best_.size() + draws_.size() + masks_.size() + attention_states_.size() + tables;
}

std::string GpuKernels::linear_name() const {
  const std::string onednn = linears_.onednn_name();
  return std::string(kPlatform) + " " + target_.name() + " " + dtype_name(type_) +
         (onednn.empty() ? "" : ", " + onednn) + (quantized_ ? ", " + quantized_->name() : "") +
         (dequantized_ ? ", " + dequantized_->name() : "") +
         (experts_ ? ", " + experts_->name() : "");
}

// A driver compiles the kernels, and a sum is cut up for the device's units.
std::string GpuKernels::numerics() const {
  const DeviceHandle device = stream_->device();
  const std::string choices = linears_.numerics();
  return std::string(kPlatform) + " " + std::to_string(kNumericsVersion) + " " +
         device_name(device) + ", driver " + driver_version(device) + ", " +
         std::to_string(compute_units(device)) + " units, " + target_.name() + " " +
         std::to_string(target_.lanes) + ", " + dtype_name(type_) +
         (choices.empty() ? "" : ", " + choices);
}

}  // namespace millrace::gpu
