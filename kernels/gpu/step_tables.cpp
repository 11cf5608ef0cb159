#include "gpu/step_tables.hpp"

#include <algorithm>
#include <cstring>

namespace millrace::gpu {

namespace {

TaskKind mma_kind(const Sequence& s, int group) {
  if (s.beams != nullptr) return TaskKind::beams;
  return s.rows == 1 || s.rows * group <= kMostDecodeQueries ? TaskKind::decode : TaskKind::prompt;
}

}  // namespace

StepTables::StepTables(std::set<TaskSizes> sizes) : sizes_(std::move(sizes)) {}

void StepTables::set(Stream& stream, const Batch& batch, const DevicePool& pool) {
  words_.clear();
  slabs_.clear();
  tokens_ = end();
  words_.insert(words_.end(), batch.tokens.begin(), batch.tokens.end());
  positions_ = end();
  words_.insert(words_.end(), batch.positions.begin(), batch.positions.end());
  types_ = end();
  words_.insert(words_.end(), batch.types.begin(), batch.types.end());
  output_rows_ = end();
  words_.insert(words_.end(), batch.output_rows.begin(), batch.output_rows.end());
  add_sequences(batch, pool);
  for (const TaskSizes& sizes : sizes_) add_tasks(batch, sizes);

  const size_t slabs = slabs_.size() * sizeof(uint64_t), words = slabs_at() * sizeof(int32_t);
  in_place_ = words + slabs <= device_.size();
  if (!in_place_) device_ = stream.allocate((words + slabs) * 2);
  std::swap(copy_, last_copy_);
  copy_.resize(words + slabs);
  std::memcpy(copy_.data(), words_.data(), words_.size() * sizeof(int32_t));
  std::memcpy(copy_.data() + words, slabs_.data(), slabs);
  stream.copy(device_.data(), copy_.data(), copy_.size());
}

void StepTables::add_sequences(const Batch& batch, const DevicePool& pool) {
  row_sequence_ = end();
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    words_.insert(words_.end(), batch.sequences[i].rows, static_cast<int32_t>(i));
  }
  // First the entries, then what they point to.
  sequences_ = end();
  constexpr size_t kEntryWords = sizeof(SequenceEntry) / sizeof(int32_t);
  words_.resize(end() + batch.sequences.size() * kEntryWords);
  beams_ = end();
  has_beams_ = false;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const Sequence& s = batch.sequences[i];
    SequenceEntry entry{s.first_row, s.rows, s.position, 0, kNoPrompt, 0, 0, 0};
    if (s.beams == nullptr) {
      // Before them those of the sequence's state.
      const int head = pool.layout().head_slabs;
      entry.slabs =
          add_slabs(pool, s.slabs - head, head * kSlabTokens + s.position + s.rows) + head;
    } else {
      const Beams& beams = *s.beams;
      has_beams_ = true;
      entry.slabs = add_slabs(pool, s.slabs, beams.prompt);
      entry.prompt = beams.prompt;
      entry.steps = beams.steps;
      std::vector<int32_t> responses;
      for (const int32_t* slabs : beams.slabs) {
        responses.push_back(add_slabs(pool, slabs, beams.steps));
      }
      entry.responses = static_cast<int32_t>(end() - beams_);
      words_.insert(words_.end(), responses.begin(), responses.end());
      entry.index = static_cast<int32_t>(end() - beams_);
      words_.insert(words_.end(), beams.index.begin(), beams.index.end());
    }
    std::memcpy(words_.data() + sequences_ + i * kEntryWords, &entry, sizeof entry);
  }
}

// Adds the slabs of a region's first tokens; returns their place in the table.
int32_t StepTables::add_slabs(const DevicePool& pool, const int32_t* slabs, int tokens) {
  const auto place = static_cast<int32_t>(slabs_.size());
  const int n = (tokens + kSlabTokens - 1) / kSlabTokens;
  for (const int32_t* slab = slabs; slab < slabs + n; ++slab) {
    // Slabs before a window need not be mapped.
    slabs_.push_back(*slab < 0 ? 0 : reinterpret_cast<uint64_t>(pool.slab(*slab)));
  }
  return place;
}

// A task takes as many queries as the longest sequence can fill: a decode step
// of one head per KV head reads its keys for one query only.
StepTables::Tasks StepTables::written_out_tasks(const Batch& batch, const TaskSizes& sizes) {
  int longest = 1;
  for (const Sequence& s : batch.sequences) longest = std::max(longest, s.rows * sizes.group);
  int queries = 1;
  while (queries < longest && queries < sizes.written_out) queries *= 2;
  if (has_beams_) queries = beam_queries(sizes.written_out);  // that kernel has one size
  Tasks tasks{has_beams_ ? TaskKind::beams : TaskKind::written_out, queries, 0, end()};
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const int all = batch.sequences[i].rows * sizes.group;
    for (int first = 0; first < all; first += queries, ++tasks.count) {
      words_.insert(words_.end(), {static_cast<int32_t>(i), first});
    }
  }
  return tasks;
}

// The tasks of sequences of a kind. Those that see most keys come first: they take longest.
StepTables::Tasks StepTables::mma_tasks(TaskKind kind, const Batch& batch, const TaskSizes& sizes) {
  const int group = sizes.group;
  const int queries = kind == TaskKind::prompt ? sizes.prompt : kProductQueries;
  Tasks tasks{kind, queries, 0, end()};
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const Sequence& s = batch.sequences[i];
    if (mma_kind(s, group) != kind) continue;
    // Beams see tokens of their own: a task is of one row.
    const int rows = kind == TaskKind::beams ? 1 : s.rows;
    for (int row = s.rows - rows; row >= 0; row -= rows) {
      for (int first = (rows * group - 1) / queries * queries; first >= 0; first -= queries) {
        words_.insert(words_.end(), {static_cast<int32_t>(i), row * group + first});
        ++tasks.count;
      }
    }
  }
  return tasks;
}

void StepTables::add_tasks(const Batch& batch, const TaskSizes& sizes) {
  std::vector<Tasks>& all = tasks_[sizes];
  all.clear();
  if (sizes.prompt == 0) {
    all.push_back(written_out_tasks(batch, sizes));
    return;
  }
  for (const TaskKind kind : {TaskKind::prompt, TaskKind::decode, TaskKind::beams}) {
    const Tasks tasks = mma_tasks(kind, batch, sizes);
    if (tasks.count > 0) all.push_back(tasks);
  }
}

std::vector<AttentionTasks> StepTables::tasks(const TaskSizes& sizes) const {
  std::vector<AttentionTasks> all;
  for (const Tasks& t : tasks_.at(sizes)) {
    all.push_back({t.kind, t.queries, t.count, at<AttentionTask>(t.begin)});
  }
  return all;
}

}  // namespace millrace::gpu
