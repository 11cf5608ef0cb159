#include "gpu/experts.hpp"

#include <algorithm>

#include "gpu/weights.hpp"

namespace millrace::gpu {
namespace {

bool routed(const Op& op) { return op.kind == MR_OP_LINEAR && op.linear.routed != MR_ROUTED_NONE; }

// The most tiles that some pairs are cut into, whatever their experts are.
int most_tiles(int pairs, int experts, int tile_rows) {
  return std::min(pairs, pairs / tile_rows + std::min(experts, pairs));
}

}  // namespace

bool has_experts(const Program& program) {
  return std::any_of(program.ops.begin(), program.ops.end(),
                     [](const Op& op) { return op.kind == MR_OP_ROUTE || routed(op); });
}

Experts::Experts(Stream& stream, Target target, mr_dtype type, const ExpertBundles& bundles,
                 const Kernel& copy_rows, const Program& program)
    : stream_(stream),
      target_(target),
      type_(type),
      program_(program),
      copy_rows_(copy_rows),
      route_(bundles.linear.kernel("mr_route")),
      sort_(bundles.linear.kernel("mr_sort_experts")),
      gather_(bundles.linear.kernel("mr_gather_rows")),
      sum_(bundles.linear.kernel("mr_sum_experts")),
      gather_heads_(bundles.linear.kernel("mr_gather_heads")),
      place_heads_(bundles.linear.kernel("mr_place_heads")),
      kernels_{target.lanes, row_kernels(bundles.linear, target), {}, {}, {}, {}} {
  if (bundles.quantized) {
    quantized_ = std::make_unique<QuantizedLinears>(stream, target, *bundles.quantized);
  }
  if (bundles.dequantize) {
    dequantized_ = std::make_unique<DequantizedLinears>(stream, target, *bundles.dequantize);
  }
}

void Experts::load(const Op& op) {
  if (op.kind == MR_OP_ROUTE) {
    routes_[op.index] = {upload_floats(stream_, program_.tensor(op.route.bias)),
                         upload_floats(stream_, program_.tensor(op.route.factors))};
    return;
  }
  const LinearKind kind = linear_kind(program_, op, type_);
  linears_[op.index] = make(kind, op);
  reach(op, kind);
}

std::unique_ptr<Linear> Experts::make(const LinearKind& kind, const Op& op) {
  if (op.linear.weights == MR_WEIGHTS_16BIT) {
    return std::make_unique<KernelLinear>(stream_, target_, kernels_.tiles, kind, program_, op);
  }
  if (quantizes_rows(op.linear.weights)) return quantized_->make(kind, program_, op);
  return dequantized_->make(kind, program_, op);
}

// Makes room for the op's pairs.
void Experts::reach(const Op& op, const LinearKind& kind) {
  const size_t pairs = kind.most_rows;
  grow(stream_, order_, pairs * sizeof(int32_t));
  grow(stream_, places_, pairs * sizeof(int32_t));
  grow(stream_, tiles_,
       size_t(most_tiles(kind.most_rows, op.linear.experts, 1)) * sizeof(ExpertTile));
  grow(stream_, gathered_, pairs * kind.depth * sizeof(uint16_t));
  grow(stream_, results_, pairs * kind.width * (kind.out_f32 ? sizeof(float) : sizeof(uint16_t)));
}

void Experts::route(const Op& op, const Run& run) {
  const mr_route& r = op.route;
  const RouteShape shape{r.experts,      r.top_k,     r.scores, r.bias >= 0,
                         r.factors >= 0, r.normalize, r.groups, r.top_groups,
                         r.group_scores, r.scale,     r.jitter};
  const Route& own = routes_.at(op.index);
  stream_.launch_local(route_, run.rows, target_.lanes, size_t(2) * (r.experts + r.groups), shape,
                       run.slot(op.in).data, own.bias.data(), own.factors.data(),
                       run.slot(op.out).data);
}

// Every row meets all experts, each with a part of it.
void Experts::run_heads(const Op& op, int rows, Slot in, Slot out) {
  const mr_linear& l = op.linear;
  Linear& linear = *linears_.at(op.index);
  const int depth = op.part_width(in.width), width = out.width / l.experts - l.tail;
  const int pairs = rows * l.experts, tile_rows = linear.tile_rows(rows);
  const int tiles = l.experts * ((rows + tile_rows - 1) / tile_rows);
  const HeadShape gathered{rows, l.experts, depth, l.tail, tile_rows, in.type == MR_SLOT_F32};
  stream_.launch(gather_heads_, pairs, kRowItems, static_cast<const void*>(in.data),
                 gathered_.data(), tiles_.data(), gathered);
  linear.run_tiles(stream_, {pairs, tiles, tile_rows, tiles_.data()}, gathered_.data(),
                   results_.data());
  const HeadShape placed{rows, l.experts, width, l.tail, tile_rows, out.type == MR_SLOT_F32};
  stream_.launch(place_heads_, pairs, kRowItems, static_cast<const void*>(results_.data()),
                 static_cast<const void*>(in.data), out.data, depth, placed);
}

void Experts::run(const Op& op, const Run& run) {
  const int rows = run.rows;
  const mr_linear& l = op.linear;
  const Slot in = run.slot(op.in), out = run.slot(op.out);
  if (l.routed == MR_ROUTED_HEADS) return run_heads(op, rows, in, out);
  const Slot chosen = run.slot(l.route);
  Linear& linear = *linears_.at(op.index);
  const bool sums = l.routed == MR_ROUTED_SUM;
  const int pairs = rows * l.top_k;
  const int tile_rows = linear.tile_rows((pairs + l.experts - 1) / l.experts);
  const int tiles = most_tiles(pairs, l.experts, tile_rows);
  const int width = sums ? out.width : out.width / l.top_k;
  const int depth = sums ? in.width / l.top_k : in.width;
  stream_.launch_local(sort_, 1, kSortItems, l.experts,
                       SortShape{pairs, l.experts, tile_rows, tiles}, chosen.data, order_.data(),
                       places_.data(), tiles_.data());
  const GatherShape gathered{depth, sums ? 1 : l.top_k, in.type == MR_SLOT_F32,
                             !sums && l.weighs_in};
  stream_.launch(gather_, pairs, kRowItems, in.data, chosen.data, order_.data(), gathered_.data(),
                 gathered);
  linear.run_tiles(stream_, {pairs, tiles, tile_rows, tiles_.data()}, gathered_.data(),
                   results_.data());
  if (sums) {
    const SumShape shape{width, l.top_k, l.accumulate, !l.weighs_in, out.type == MR_SLOT_F32};
    stream_.launch(sum_, rows, kRowItems, results_.data(), chosen.data, places_.data(), out.data,
                   shape);
  } else {
    const int32_t words = width * out.element_bytes / static_cast<int>(sizeof(uint16_t));
    stream_.launch(copy_rows_, pairs, kRowItems, results_.data(), places_.data(), out.data, words);
  }
}

uint64_t Experts::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [op, r] : routes_) bytes += r.bias.size() + r.factors.size();
  for (const auto& [op, linear] : linears_) bytes += linear->bytes();
  return bytes;
}

uint64_t Experts::scratch_bytes() const {
  uint64_t bytes = quantized_ ? quantized_->scratch_bytes() : 0;
  for (const Buffer* b : {&order_, &places_, &tiles_, &gathered_, &results_}) bytes += b->size();
  return bytes;
}

std::string Experts::name() const {
  std::string name = "experts";
  if (quantized_) name += " " + quantized_->name();
  if (dequantized_) name += " " + dequantized_->name();
  return name;
}

}  // namespace millrace::gpu
