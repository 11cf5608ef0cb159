#include "cpu/ops/ops.hpp"

#include <algorithm>

namespace millrace::cpu {

std::vector<float> floats(const mr_tensor* vector) {
  std::vector<float> values(vector == nullptr ? 0 : vector->dims[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    if (vector->dtype == MR_F32) {
      values[i] = static_cast<const float*>(vector->data)[i];
    } else {
      const uint16_t bits = static_cast<const uint16_t*>(vector->data)[i];
      values[i] = vector->dtype == MR_BF16 ? to_float(bits) : f16_to_float(bits);
    }
  }
  return values;
}

int row_tasks(int rows, int width, int threads) {
  constexpr int kElements = 16 << 10;
  const int step = std::max(1, kElements / width);
  const int tasks = (rows + step - 1) / step;
  return tasks <= 1 ? tasks : std::min(rows, (tasks + threads - 1) / threads * threads);
}

CpuOps::CpuOps(const Program& program, const KvLayout& kv, const OpKernels& kernels,
               ThreadPool& pool)
    : context_{program, kv, kernels, attention_kernels(kernels, kv.type), pool},
      mode_(FloatMode::plain(kernels.flush)),
      kept_(program.ops.size()) {
  const FloatScope mode(FloatMode::plain(false));  // constants are the same for every class
  for (const Op& op : program.ops) keep(op);
}

void CpuOps::keep(const Op& op) {
  Kept& kept = kept_[op.index];
  const Context& c = context_;
  if (op.kind == MR_OP_ROUTE) {
    kept.router = std::make_unique<Router>(op.route, c.program.tensor(op.route.bias),
                                           c.program.tensor(op.route.factors));
  } else if (op.kind == MR_OP_NORM) {
    kept.norm = std::make_unique<Norm>(c, op);
  } else if (op.kind == MR_OP_ROPE_STORE) {
    kept.rope_store = std::make_unique<RopeStore>(
        RopeStore{floats(c.program.tensor(op.attention.q_norm)),
                  floats(c.program.tensor(op.attention.k_norm)), angles_of(op)});
  } else if (op.kind == MR_OP_CONV) {
    kept.conv = std::make_unique<Conv>(c, op);
  } else if (op.kind == MR_OP_RECUR) {
    kept.recur = std::make_unique<Recur>(c, op);
  } else if (op.kind == MR_OP_GATE) {
    kept.gate = std::make_unique<Gate>(c, op);
  }
}

void CpuOps::begin(const Batch& batch) {
  const FloatScope mode(mode_);
  for (Angles& angles : angles_) angles.compute(batch, context_.pool);
}

uint64_t CpuOps::weight_bytes() const {
  size_t floats = 0;
  for (const Kept& kept : kept_) {
    if (kept.norm) floats += kept.norm->weight.size() + kept.norm->bias.size();
    if (kept.rope_store) floats += kept.rope_store->q_norm.size() + kept.rope_store->k_norm.size();
    if (kept.conv) floats += kept.conv->weights.size() + kept.conv->bias.size();
  }
  return floats * sizeof(float);
}

uint64_t CpuOps::scratch_bytes() const {
  uint64_t bytes = 0;
  for (const Angles& angles : angles_) bytes += angles.bytes();
  return bytes;
}

}  // namespace millrace::cpu
