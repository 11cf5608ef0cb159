// Runs the ops of a loaded program in order.
#ifndef MILLRACE_EXEC_EXECUTOR_HPP
#define MILLRACE_EXEC_EXECUTOR_HPP

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/backend.hpp"
#include "exec/buffer.hpp"
#include "exec/kv.hpp"
#include "exec/program.hpp"
#include "exec/ranks.hpp"
#include "exec/step.hpp"

namespace millrace {

// What the program of a rank is among those of all ranks.
struct RankShare {
  int rank = 0;
  size_t slab_from = 0, slab_bytes = 0;  // its part of a slab, and all of it
  int first_class = 0, classes = 0;      // its logits of an output, and all of them
};

class Executor {
 public:
  // Checks the program.
  Executor(Device& device, const mr_program_desc& desc);

  const Program& program() const { return program_; }
  const KvLayout& layout() const { return layout_; }

  // Takes memory and packs the weights, once.
  void load(const RankShare& share, Exchange& exchange);
  // Checks a step, which run then runs.
  void begin(const mr_step& step);
  void run(const mr_step& step);
  void read_logits(int row, float* out);
  // As mr_backend's program_draw.
  void draw(std::span<const mr_draw> draws, const uint32_t* masks, int n_masks, int32_t* tokens);
  // As mr_backend's program_start and program_drawn.
  void start(const mr_step& step, const mr_draw* draws);
  void drawn(std::span<int32_t> tokens);
  void info(mr_program_info& out) const;
  mr_span packed(int index) const { return kernels_->packed(index); }
  const char* numerics() const { return numerics_.c_str(); }

  void reserve(int slabs, const PoolFile& file);                          // once
  void share_pool(const std::shared_ptr<KvPool>& pool) { pool_ = pool; }  // that of another rank
  const std::shared_ptr<KvPool>& pool() const;

 private:
  void check(const mr_step& step, int drawn);
  void begin_kernels();
  void run_ops();
  void run_op(const Op& op);
  void run_timed(const mr_step& step);
  int rows(const Op& op) const {
    if (op.index < program_.select) return batch_.rows;
    return op.out == program_.logits_slot ? batch_.logits : batch_.outputs;
  }
  void read_hidden(float* out);
  void write_logits(float* out) const;

  Device& device_;
  Program program_;
  KvLayout layout_;
  int operand_bytes_ = 0;
  RankShare share_;
  Exchange* exchange_ = nullptr;
  std::unique_ptr<Kernels> kernels_;
  std::string numerics_;
  std::vector<Buffer> memory_;  // [slots] [slot_rows, width]; empty for the logits
  std::vector<Slot> slots_;     // in memory_, but for a step's logits
  Buffer logits_;               // of a rank that has some of the classes only
  std::shared_ptr<KvPool> pool_;
  Batch batch_;
  std::vector<uint16_t> hidden_;  // operands on their way to read_hidden's floats
  int kept_logits_ = 0;           // rows of the last step
  std::deque<int> started_;       // outputs of the steps that are not drawn
  int drawn_ = 0;                 // outputs of the last step, if it was started
  uint64_t steps_ = 0;
};

}  // namespace millrace

#endif
