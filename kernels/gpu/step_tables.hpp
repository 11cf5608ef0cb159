// What the kernels of a step read beside the slots: one copy to the device.
#ifndef MILLRACE_GPU_STEP_TABLES_HPP
#define MILLRACE_GPU_STEP_TABLES_HPP

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "exec/cascade.hpp"
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
  bool groups;      // sequences that share a prefix read it together

  auto operator<=>(const TaskSizes&) const = default;
};

// The most rows of a sequence that shares a prefix: half a task's queries, as more of its own read the keys once for many
// rows anyway. 0: none does.
int most_shared_rows(const TaskSizes& sizes);

// Queries of an attention op: tasks of at most `queries` pairs of row and head, over some of the keys (kAllKeys, ...).
struct AttentionTasks {
  TaskKind kind;
  int queries, count, keys;
  const AttentionTask* tasks;  // on the device
};

class StepTables {
 public:
  // sizes: of the attention ops of the tables' group of layers. state_rows: for whose states there is memory. units: work-groups
  // that the device runs side by side.
  StepTables(std::set<TaskSizes> sizes, int state_rows, int units);

  // pool: the batch's.
  void set(Stream& stream, const Batch& batch, const DevicePool& pool);

  // Whether the step's tables are in the same memory as those of the step before.
  bool in_place() const { return in_place_; }
  // Adds where each table is in that memory, and all that says how many tasks there are. Decode steps for which this is the
  // same have the same grids and arguments of kernels, if in_place().
  void add_places(std::vector<size_t>& places) const;

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
  // A launch for each, in this order. copies: work-groups of a task.
  std::vector<AttentionTasks> tasks(const TaskSizes& sizes, int copies) const;
  uint64_t bytes() const { return device_.size(); }

 private:
  struct Tasks {
    TaskKind kind;
    int queries, count;
    size_t begin;
  };
  struct AllTasks {
    std::vector<Tasks> usual;  // of sequences
    Tasks shared;              // of groups
  };

  template <class T>
  const T* at(size_t word) const {
    return reinterpret_cast<const T*>(static_cast<const int32_t*>(device_.data()) + word);
  }
  size_t end() const { return words_.size(); }
  // The slabs' first word: they come last, so that steps that differ in slabs alone find all else where it was.
  size_t slabs_at() const { return (words_.size() + 1) / 2 * 2; }
  void add_sequences(const Batch& batch, const DevicePool& pool);
  void add_beams(const Beams& beams, const DevicePool& pool, SequenceEntry& entry);
  void add_groups(const Batch& batch);
  int32_t add_slabs(const DevicePool& pool, const int32_t* slabs, int tokens);
  Tasks written_out_tasks(const Batch& batch, const TaskSizes& sizes);
  Tasks mma_tasks(TaskKind kind, const Batch& batch, const TaskSizes& sizes);
  Tasks shared_tasks(const TaskSizes& sizes, size_t sequences);
  void add_tasks(const Batch& batch, const TaskSizes& sizes);

  bool has_beams_ = false, in_place_ = false;
  std::set<TaskSizes> sizes_;
  const int state_rows_, units_;
  int most_shared_rows_ = 0, least_shared_tokens_ = 0;
  Cascade cascade_;
  std::vector<SequenceEntry> entries_;  // of sequences, then of groups
  std::vector<int32_t> rows_;           // the table of the beams, with the rows of groups
  int members_ = 0;                     // of all groups
  std::vector<uint64_t> slabs_;         // addresses; on the device they lie after the words
  std::vector<int32_t> words_;
  std::vector<std::byte> copy_;       // both, until the device has them
  std::vector<std::byte> last_copy_;  // of the step before, which the device may run
  size_t tokens_ = 0, positions_ = 0, types_ = 0, output_rows_ = 0, row_sequence_ = 0,
         sequences_ = 0, beams_ = 0;
  std::map<TaskSizes, AllTasks> tasks_;
  Buffer device_;
};

}  // namespace millrace::gpu

#endif
