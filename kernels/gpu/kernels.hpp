// The ops of a loaded program on a device: one launch per op.
#ifndef MILLRACE_GPU_KERNELS_HPP
#define MILLRACE_GPU_KERNELS_HPP

#include <memory>
#include <optional>
#include <vector>

#include "exec/backend.hpp"
#include "gpu/dequantized_linear.hpp"
#include "gpu/experts.hpp"
#include "gpu/linear_choice.hpp"
#include "gpu/quantized_linear.hpp"
#include "gpu/recipes.hpp"
#include "gpu/recordings.hpp"
#include "gpu/states.hpp"
#include "gpu/step_tables.hpp"
#include "platform/bundle.hpp"
#include "platform/runtime.hpp"
#include "platform/stream.hpp"

namespace millrace::gpu {

// The type of a program's operands, and of keys and values that are not codes: `wanted`, or,
// if that is 0, bf16 where its linear weights are, else f16.
mr_dtype operand_type(const Program& program, int32_t wanted);

// Bits of an element of a KV cache (mr_kv_type).
int kv_bits(int32_t type);

// What is compiled for some of its attention ops.
struct AttentionBundle {
  AttentionKind kind;
  Bundle bundle;
};

// What is compiled for a program beside the common kernels.
struct ProgramBundles {
  // kv_type: mr_kv_type of the KV cache.
  ProgramBundles(const Stream& stream, Target target, const Program& program, mr_dtype type,
                 int32_t kv_type);

  std::vector<AttentionBundle> attention;       // for each size of heads, and the KV cache
  std::optional<Bundle> quantized, dequantize;  // where an op has such weights
  std::optional<ExpertBundles> experts;         // where it has experts
  std::optional<Bundle> states;                 // and states or gates
};

// Kernels that do not depend on the size of a head.
struct CommonKernels {
  CommonKernels(const Stream& stream, Target target, mr_dtype type);

  Kernel altup, embed, norm, rope_store, select_rows, pool_rows, round, copy_slab, sum_ranks, best,
      draw;
  LinearKernels linear;

 private:
  CommonKernels(const Bundle& bundle, Target target, int units);
};

// choices: the device's, which outlives the kernels.
class GpuKernels : public Kernels {
 public:
  GpuKernels(std::shared_ptr<Stream> stream, Target target, mr_dtype type,
             std::shared_ptr<const CommonKernels> common, const ProgramBundles& bundles,
             LinearChoices& choices, const Program& program, const KvLayout& layout);

  void begin(const Batch& batch) override;
  void begin_group(const Batch& batch) override;
  bool replay(const Batch& batch) override;
  void embed(const Op&, const Run&) override;
  void norm(const Op&, const Run&) override;
  void linear(const Op&, const Run&) override;
  void rope_store(const Op&, const Run&) override;
  void attention(const Op&, const Run&) override;
  void select_rows(const Op&, const Run&) override;
  void route(const Op&, const Run&) override;
  void conv(const Op&, const Run&) override;
  void recur(const Op&, const Run&) override;
  void gate(const Op&, const Run&) override;
  void altup(const Op&, const Run&) override;
  void all_reduce(const Op&, const Run&) override;

  bool takes_beams() const override { return true; }
  float* logits(float*) override { return static_cast<float*>(logits_.data()); }
  bool keeps_logits() const override { return true; }
  void wait() override { stream_->wait(); }
  mr_op_time op_time() override { return stream_->take_launches(); }
  void read(void* to, const void* from, size_t bytes) override;
  void finish(const mr_step& step) override;
  void draw(std::span<const mr_draw> draws, std::span<const uint32_t> masks,
            int32_t* tokens) override;
  void start_draws(int outputs, std::span<const mr_draw> draws) override;
  void end_draws(std::span<int32_t> tokens) override;

  uint64_t weight_bytes() const override;
  uint64_t scratch_bytes() const override;
  std::string linear_name() const override;
  std::string numerics() const override;

 private:
  // What an op keeps on the device.
  struct Constants {
    Buffer weight, bias, types;                 // EMBED: the tables; NORM: floats
    RowCodes codes{};                           // NORM: for the op that follows
    WeightBlocks table{};                       // EMBED: instead of weight
    Buffer q_norm, k_norm, inv_freq, q_scales;  // ROPE_STORE
    Buffer slopes, null_scores;                 // ATTENTION
    size_t attention = 0;                       // whose kernels are those of attention_
    TaskSizes tasks{};
    std::unique_ptr<Linear> linear;
  };

  // Draws that were started.
  struct Started {
    std::vector<mr_draw> draws;  // until the device has them
    std::optional<Readback> tokens;
  };

  void begin_call();
  void launch_best(int outputs);
  void launch_draws(std::span<const mr_draw> draws);
  void load(const Op& op);
  void load(const Op& op, Constants& c);
  void leave_codes();
  static void refuse_blocks(const Op& op);
  std::unique_ptr<Linear> make_linear(const Op& op);
  WeightBlocks shared_table(const Op& embed) const;
  Buffer raw(const mr_tensor* tensor);
  KvShape kv_shape(const Op& op) const;

  std::shared_ptr<Stream> stream_;
  Target target_;
  mr_dtype type_;
  std::shared_ptr<const CommonKernels> kernels_;
  // A kernel of attention, and a launch of it.
  struct AttentionKernel {
    TaskKind kind;
    int queries;  // of a task
    size_t items, floats;
    Kernel kernel;
  };
  // Those of some ops.
  struct AttentionKernels {
    AttentionKind kind;
    int state_floats;  // of a query
    std::vector<AttentionKernel> kernels;
  };
  AttentionKernels load_attention(const AttentionBundle& of) const;
  void load_tasks(const Op& op, Constants& c) const;
  int allocate_states();

  std::vector<AttentionKernels> attention_;
  const Program& program_;
  const KvLayout& layout_;
  LinearMaker linears_;
  const bool ranks_;  // meet in the middle of a step
  std::unique_ptr<QuantizedLinears> quantized_;
  std::unique_ptr<DequantizedLinears> dequantized_;
  std::unique_ptr<Experts> experts_;
  std::unique_ptr<StateOps> states_;
  std::vector<StepTables> tables_;    // [kv_groups]
  std::vector<Constants> constants_;  // [ops]
  Buffer rounded_;                    // operands of an F32 slot
  Buffer logits_;                     // [max_outputs, classes] floats
  Buffer best_;                       // [max_outputs] tokens
  Buffer draws_, masks_;              // of a call of draw: made when one needs them
  Buffer attention_states_;           // of attention over shared keys
  Recordings recordings_;
  Started started_[2];  // in turn
  int next_start_ = 0, next_end_ = 0;
  bool running_ = false;  // a step has begun and not ended: it failed
};

}  // namespace millrace::gpu

#endif
