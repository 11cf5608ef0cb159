// What the kernels of a step read beside the slots: one copy to the device.
#ifndef MILLRACE_GPU_STEP_TABLES_HPP
#define MILLRACE_GPU_STEP_TABLES_HPP

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "exec/step.hpp"
#include "gpu/pool.hpp"
#include "gpu/shapes.hpp"
#include "platform/stream.hpp"

namespace millrace::gpu {

// Which kernel takes a task. By mma, it is the sequence that decides, and written out the whole step.
enum class TaskKind {
  written_out,
  prompt,  // of many queries; by mma
  decode,  // of few queries; by mma
  beams,
};

// What attention ops whose tasks are the same have.
struct TaskSizes {
  int group;        // query heads per KV head
  int written_out;  // most queries of a task; by mma 0
  int prompt;       // likewise by mma, where others have kProductQueries; else 0

  auto operator<=>(const TaskSizes&) const = default;
};

// Queries of an attention op: tasks of at most `queries` pairs of row and head.
struct AttentionTasks {
  TaskKind kind;
  int queries, count;
  const AttentionTask* tasks;  // on the device
};

class StepTables {
 public:
  // sizes: of the attention ops of the tables' group of layers.
  explicit StepTables(std::set<TaskSizes> sizes);

  // pool: the batch's.
  void set(Stream& stream, const Batch& batch, const DevicePool& pool);

  // Whether the step's tables lie where those of the step before lay: all that its kernels' arguments and grids say is
  // the same, if it has as many rows and outputs, one row for each sequence.
  bool in_place() const { return in_place_; }

  // On the device.
  const int32_t* tokens() const { return at<int32_t>(tokens_); }
  const int32_t* positions() const { return at<int32_t>(positions_); }
  const int32_t* types() const { return at<int32_t>(types_); }  // of a program with types alone
  const int32_t* output_rows() const { return at<int32_t>(output_rows_); }
  const int32_t* row_sequence() const { return at<int32_t>(row_sequence_); }
  const SequenceEntry* sequences() const { return at<SequenceEntry>(sequences_); }
  const uint64_t* slabs() const {
    return reinterpret_cast<const uint64_t*>(at<int32_t>(slabs_at()));
  }
  const int32_t* beams() const { return at<int32_t>(beams_); }
  // A launch for each.
  std::vector<AttentionTasks> tasks(const TaskSizes& sizes) const;
  uint64_t bytes() const { return device_.size(); }

 private:
  struct Tasks {
    TaskKind kind;
    int queries, count;
    size_t begin;
  };

  template <class T>
  const T* at(size_t word) const {
    return reinterpret_cast<const T*>(static_cast<const int32_t*>(device_.data()) + word);
  }
  size_t end() const { return words_.size(); }
  // The slabs' first word: they come last, so that steps that differ in slabs alone find all else where it was.
  size_t slabs_at() const { return (words_.size() + 1) / 2 * 2; }
  void add_sequences(const Batch& batch, const DevicePool& pool);
  int32_t add_slabs(const DevicePool& pool, const int32_t* slabs, int tokens);
  Tasks written_out_tasks(const Batch& batch, const TaskSizes& sizes);
  Tasks mma_tasks(TaskKind kind, const Batch& batch, const TaskSizes& sizes);
  void add_tasks(const Batch& batch, const TaskSizes& sizes);

  bool has_beams_ = false, in_place_ = false;
  std::set<TaskSizes> sizes_;
  std::vector<uint64_t> slabs_;  // addresses; on the device they lie after the words
  std::vector<int32_t> words_;
  std::vector<std::byte> copy_;       // both, until the device has them
  std::vector<std::byte> last_copy_;  // of the step before, which the device may run
  size_t tokens_ = 0, positions_ = 0, types_ = 0, output_rows_ = 0, row_sequence_ = 0,
         sequences_ = 0, beams_ = 0;
  std::map<TaskSizes, std::vector<Tasks>> tasks_;
  Buffer device_;
};

}  // namespace millrace::gpu

#endif
