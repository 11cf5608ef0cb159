#include "sycl/step_tables.hpp"

#include <algorithm>

namespace millrace::sycl_backend {

StepTables::StepTables(std::vector<int> groups, int most_queries)
    : groups_(std::move(groups)), most_queries_(most_queries) {}

void StepTables::set(Stream& stream, const Batch& batch) {
  words_.clear();
  tokens_ = end();
  words_.insert(words_.end(), batch.tokens.begin(), batch.tokens.end());
  positions_ = end();
  words_.insert(words_.end(), batch.positions.begin(), batch.positions.end());
  output_rows_ = end();
  words_.insert(words_.end(), batch.output_rows.begin(), batch.output_rows.end());
  add_sequences(batch);
  for (const int group : groups_) add_tasks(batch, group);

  const size_t bytes = words_.size() * sizeof(int32_t);
  if (bytes > device_.size()) device_ = stream.allocate(bytes * 2);
  stream.copy(device_.data(), words_.data(), bytes);
}

void StepTables::add_sequences(const Batch& batch) {
  row_sequence_ = end();
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    words_.insert(words_.end(), batch.sequences[i].rows, static_cast<int32_t>(i));
  }
  sequences_ = end();
  int32_t slabs = 0;
  for (const Sequence& s : batch.sequences) {
    words_.insert(words_.end(), {s.first_row, s.rows, s.position, slabs});
    slabs += (s.position + s.rows - 1) / kSlabTokens + 1;
  }
  slabs_ = end();
  for (const Sequence& s : batch.sequences) {
    const int n = (s.position + s.rows - 1) / kSlabTokens + 1;
    words_.insert(words_.end(), s.slabs, s.slabs + n);
  }
}

// A task takes as many queries as the longest sequence can fill: a decode step
// of one head per KV head reads its keys for one query only.
void StepTables::add_tasks(const Batch& batch, int group) {
  int longest = 1;
  for (const Sequence& s : batch.sequences) longest = std::max(longest, s.rows * group);
  int queries = 1;
  while (queries < longest && queries < most_queries_) queries *= 2;
  Tasks tasks{queries, 0, end()};
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const int all = batch.sequences[i].rows * group;
    for (int first = 0; first < all; first += queries, ++tasks.count) {
      words_.insert(words_.end(), {static_cast<int32_t>(i), first});
    }
  }
  tasks_[group] = tasks;
}

AttentionTasks StepTables::tasks(int group) const {
  const Tasks& t = tasks_.at(group);
  return {t.queries, t.count, at<AttentionTask>(t.begin)};
}

}  // namespace millrace::sycl_backend
