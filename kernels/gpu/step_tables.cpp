#include "gpu/step_tables.hpp"

#include <algorithm>
#include <cstring>
#include <span>

namespace millrace::gpu {

namespace {

// As on the CPU: the states of a query, and a second launch, cost as much as this number of tokens of a shared prefix for each
// query head of a KV head saves.
constexpr int kSharedTokensPerHead = 128;
static_assert(kSharedBlock % kPieceKeys == 0 && kSharedBlock % kSlabTokens == 0);

int most_queries(const TaskSizes& sizes) {
  return sizes.written_out > 0 ? sizes.written_out : kProductQueries;
}

// What a task of kernels that are written out takes, if there are `longest` queries.
int fitting_queries(int longest, int most) {
  int queries = 1;
  while (queries < longest && queries < most) queries *= 2;
  return queries;
}

TaskKind mma_kind(const Sequence& s, int group) {
  if (s.beams != nullptr) return TaskKind::beams;
  return s.rows == 1 || s.rows * group <= kMostDecodeQueries ? TaskKind::decode : TaskKind::prompt;
}

}  // namespace

int most_shared_rows(const TaskSizes& sizes) {
  return sizes.groups ? most_queries(sizes) / sizes.group / 2 : 0;
}

StepTables::StepTables(std::set<TaskSizes> sizes, int state_rows, int units)
    : sizes_(std::move(sizes)), state_rows_(state_rows), units_(units) {
  for (const TaskSizes& s : sizes_) {
    const int rows = most_shared_rows(s);
    if (rows == 0) continue;
    most_shared_rows_ = most_shared_rows_ == 0 ? rows : std::min(most_shared_rows_, rows);
    least_shared_tokens_ = std::max(least_shared_tokens_, kSharedTokensPerHead * s.group);
  }
}

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
  entries_.clear();
  rows_.clear();
  has_beams_ = false;
  for (const Sequence& s : batch.sequences) {
    SequenceEntry& entry = entries_.emplace_back(
        SequenceEntry{s.first_row, s.rows, s.position, 0, kNoPrompt, 0, 0, 0, 0, 0});
    if (s.beams == nullptr) {
      // Before them those of the sequence's state.
      const int head = pool.layout().head_slabs;
      entry.slabs =
          add_slabs(pool, s.slabs - head, head * kSlabTokens + s.position + s.rows) + head;
    } else {
      has_beams_ = true;
      entry.slabs = add_slabs(pool, s.slabs, s.beams->prompt);
      add_beams(*s.beams, pool, entry);
    }
  }
  add_groups(batch);
  constexpr size_t kEntryWords = sizeof(SequenceEntry) / sizeof(int32_t);
  sequences_ = end();
  words_.resize(end() + entries_.size() * kEntryWords);
  std::memcpy(words_.data() + sequences_, entries_.data(), entries_.size() * sizeof(SequenceEntry));
  beams_ = end();
  words_.insert(words_.end(), rows_.begin(), rows_.end());
}

void StepTables::add_beams(const Beams& beams, const DevicePool& pool, SequenceEntry& entry) {
  entry.prompt = beams.prompt;
  entry.steps = beams.steps;
  entry.responses = static_cast<int32_t>(rows_.size());
  for (const int32_t* slabs : beams.slabs) rows_.push_back(add_slabs(pool, slabs, beams.steps));
  entry.index = static_cast<int32_t>(rows_.size());
  rows_.insert(rows_.end(), beams.index.begin(), beams.index.end());
}

// The groups of sequences that share a prefix. Those for whose states there is no memory are left out, and so are all in a
// step with beams, whose kernels have no registers for states.
void StepTables::add_groups(const Batch& batch) {
  members_ = 0;
  if (most_shared_rows_ == 0 || state_rows_ == 0 || has_beams_) return;
  cascade_.find(batch, most_shared_rows_, least_shared_tokens_);
  int states = 0;
  for (const Cascade::Group& g : cascade_.groups()) {
    const Cascade::Member *first = &cascade_.members()[g.begin],
                          *last = &cascade_.members()[g.end - 1];
    const int rows = last->first + last->rows - first->first;
    if (states + rows > state_rows_) continue;
    entries_.push_back({states, rows, g.tokens, entries_[first->sequence].slabs, kNoPrompt, 0, 0,
                        static_cast<int32_t>(rows_.size()), g.tokens, 0});
    for (const Cascade::Member* m = first; m <= last; ++m) {
      entries_[m->sequence].shared = g.tokens;
      entries_[m->sequence].states = states + m->first - first->first;
      for (int r = 0; r < m->rows; ++r) {
        const StepRow& row = cascade_.step_rows()[m->first + r];
        rows_.insert(rows_.end(), {row.row, row.position});
      }
    }
    states += rows;
    members_ += g.end - g.begin;
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
  int queries = fitting_queries(longest, sizes.written_out);
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

// The tasks of groups: rows of several sequences over the keys that they share.
StepTables::Tasks StepTables::shared_tasks(const TaskSizes& sizes, size_t sequences) {
  const bool mma = sizes.prompt > 0;
  Tasks tasks{mma ? TaskKind::decode : TaskKind::written_out, kProductQueries, 0, end()};
  if (most_shared_rows(sizes) == 0) return tasks;
  const auto of_groups = std::span(entries_).subspan(sequences);
  int longest = 1;
  for (const SequenceEntry& g : of_groups) longest = std::max(longest, g.rows * sizes.group);
  if (!mma) tasks.queries = fitting_queries(longest, sizes.written_out);
  for (size_t i = 0; i < of_groups.size(); ++i) {
    const int all = of_groups[i].rows * sizes.group;
    for (int first = 0; first < all; first += tasks.queries, ++tasks.count) {
      words_.insert(words_.end(), {static_cast<int32_t>(sequences + i), first});
    }
  }
  return tasks;
}

void StepTables::add_tasks(const Batch& batch, const TaskSizes& sizes) {
  AllTasks& all = tasks_[sizes];
  all.usual.clear();
  all.shared = shared_tasks(sizes, batch.sequences.size());
  if (sizes.prompt == 0) {
    all.usual.push_back(written_out_tasks(batch, sizes));
    return;
  }
  for (const TaskKind kind : {TaskKind::prompt, TaskKind::decode, TaskKind::beams}) {
    const Tasks tasks = mma_tasks(kind, batch, sizes);
    if (tasks.count > 0) all.usual.push_back(tasks);
  }
}

// Groups are worth it where their tasks occupy the device for fewer rounds than those of their members, which are one of each:
// where all of these run side by side, fewer of them take as long.
std::vector<AttentionTasks> StepTables::tasks(const TaskSizes& sizes, int copies) const {
  const AllTasks& of = tasks_.at(sizes);
  const auto rounds = [&](int count) { return (int64_t{count} * copies + units_ - 1) / units_; };
  const bool groups = of.shared.count > 0 && rounds(of.shared.count) < rounds(members_);
  std::vector<AttentionTasks> all;
  const auto add = [&](const Tasks& t, int keys) {
    all.push_back({t.kind, t.queries, t.count, keys, at<AttentionTask>(t.begin)});
  };
  if (groups) add(of.shared, kSharedKeys);
  for (const Tasks& t : of.usual) add(t, groups ? kOwnKeys : kAllKeys);
  return all;
}

void StepTables::add_places(std::vector<size_t>& places) const {
  places.insert(places.end(), {tokens_, positions_, types_, output_rows_, row_sequence_, sequences_,
                               beams_, slabs_at(), static_cast<size_t>(members_)});
  const auto add = [&](const Tasks& t) {
    places.insert(places.end(),
                  {t.begin, static_cast<size_t>(t.queries), static_cast<size_t>(t.count)});
  };
  for (const auto& [sizes, of] : tasks_) {
    add(of.shared);
    for (const Tasks& t : of.usual) add(t);
  }
}

}  // namespace millrace::gpu
