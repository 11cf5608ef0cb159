#include "exec/step.hpp"

#include <algorithm>

#include "exec/error.hpp"

namespace millrace {
namespace {

void check_counts(const Program& p, const mr_step& s) {
  if (s.rows < 1 || s.rows > p.max_rows) {
    fail(MR_INVALID, "step has %d rows, expected 1 to %d", s.rows, p.max_rows);
  }
  if (s.n_sequences < 1 || s.n_sequences > s.rows) {
    fail(MR_INVALID, "step has %d sequences for %d rows, expected 1 to %d", s.n_sequences, s.rows,
         s.rows);
  }
  if (s.hidden_outputs < 0 || s.hidden_outputs > std::min(p.max_hidden, s.rows)) {
    fail(MR_INVALID, "step has %d outputs of hidden states, expected 0 to %d", s.hidden_outputs,
         std::min(p.max_hidden, s.rows));
  }
  const int most = std::min(p.max_outputs, s.rows - s.hidden_outputs);
  if (s.outputs < s.hidden_outputs || s.outputs - s.hidden_outputs > most) {
    fail(MR_INVALID, "step has %d outputs beside %d of hidden states, expected 0 to %d",
         s.outputs - s.hidden_outputs, s.hidden_outputs, most);
  }
  if (s.tokens == nullptr || s.sequences == nullptr ||
      (s.outputs > 0 && s.output_rows == nullptr) ||
      (s.hidden_outputs > 0 && s.hidden == nullptr)) {
    fail(MR_INVALID, "step: tokens, sequences, output_rows or hidden is a null pointer");
  }
}

void check_rows(const Program& p, const mr_step& s, int drawn) {
  for (int r = 0; r < s.rows; ++r) {
    if (s.tokens[r] < -drawn || s.tokens[r] >= p.vocab) {
      fail(MR_INVALID, "row %d: token %d, expected %d to %d", r, s.tokens[r], -drawn, p.vocab - 1);
    }
  }
  for (int i = 0; i < s.outputs; ++i) {
    const int least = i == 0 ? 0 : s.output_rows[i - 1] + 1;
    if (s.output_rows[i] < least || s.output_rows[i] >= s.rows) {
      fail(MR_INVALID, "output %d is row %d, expected %d to %d, ascending", i, s.output_rows[i],
           least, s.rows - 1);
    }
  }
}

// The tokens that rows [first, last] of a region write, and those that they read, are mapped. The
// first `sinks` tokens of the region are among these.
void check_mapped(const Program& p, const mr_region& region, int sequence, int first, int last,
                  int sinks) {
  const int head = region.pool()->layout().head_slabs;
  last = p.places(last + 1) - 1;
  if (last / MR_SLAB_TOKENS >= region.slabs() - head) {
    fail(MR_INVALID, "sequence %d reaches token %d of a region of %d slabs, which ends at %lld",
         sequence, last, region.slabs(),
         (static_cast<long long>(region.slabs()) - head) * MR_SLAB_TOKENS - 1);
  }
  const auto check = [&](int group, int from, int to) {  // places
    for (int i = from; i <= to; ++i) {
      if (region.mapped(group, i)) continue;
      fail(MR_INVALID, "sequence %d reaches token %d of a region, its place %d is not mapped",
           sequence, last, group * region.slabs() + i);
    }
  };
  const auto check_tokens = [&](int group, int from, int to) {
    if (to >= 0)
      check(group, head + std::max(0, from) / MR_SLAB_TOKENS, head + to / MR_SLAB_TOKENS);
  };
  for (int group = 0; group < p.kv_groups; ++group) {
    check(group, 0, head - 1);
    check_tokens(group, 0, std::min(sinks - 1, last));
    check_tokens(group, first - p.lookback[group], last);
  }
}

void check_sequence(const Program& p, const KvPool* pool, const mr_sequence& s, int index,
                    int next_row, int step_rows) {
  if (s.first_row != next_row || s.rows < 1 || s.rows > step_rows - next_row) {
    fail(MR_INVALID, "sequence %d has %d rows from row %d, expected 1 to %d rows from row %d",
         index, s.rows, s.first_row, step_rows - next_row, next_row);
  }
  if (s.region == nullptr || s.region->pool() != pool || pool == nullptr) {
    fail(MR_INVALID, "sequence %d: its region is not one of this program", index);
  }
  if (p.both_ways && (s.position != 0 || s.beams != nullptr)) {
    fail(MR_INVALID,
         "sequence %d: rows from position %d%s, expected all rows of a text in one step", index,
         s.position, s.beams != nullptr ? " of beams" : "");
  }
  if (s.second < 0 || s.second > (p.both_ways ? s.rows : 0)) {
    fail(MR_INVALID, "sequence %d: second is %d, expected 0 to %d", index, s.second,
         p.both_ways ? s.rows : 0);
  }
  const int rows = s.beams == nullptr ? s.rows : 1;  // beams are at one position
  if (s.position < 0 || s.position > p.max_positions - rows) {
    fail(MR_INVALID, "sequence %d has positions %d to %lld, expected 0 to %d", index, s.position,
         s.position + static_cast<long long>(rows) - 1, p.max_positions - 1);
  }
  if (s.beams == nullptr) {
    check_mapped(p, *s.region, index, s.position, s.position + s.rows - 1, p.sinks);
  }
}

// Two writers of one region would make the result depend on the batch.
void use_region(mr_region& region, int index, uint64_t step_id) {
  if (step_id == 0) return;
  if (region.step == step_id) fail(MR_INVALID, "sequence %d: its region is used twice", index);
  region.step = step_id;
}

void read_index(const mr_sequence& s, int sequence, Beams& out) {
  const int past = out.steps - 1;
  if (past > 0 && s.beams->index == nullptr) {
    fail(MR_INVALID, "sequence %d: the beams' index is a null pointer", sequence);
  }
  out.index.resize(size_t(s.rows) * out.steps);
  out.common = past;
  for (int r = 0; r < s.rows; ++r) {
    const int32_t* from = s.beams->index + size_t(r) * past;
    int32_t* to = out.index.data() + size_t(r) * out.steps;
    for (int i = 0; i < past; ++i) {
      if (from[i] < 0 || from[i] >= s.rows) {
        fail(MR_INVALID, "sequence %d: step %d of beam %d is of beam %d, expected 0 to %d",
             sequence, i, r, from[i], s.rows - 1);
      }
      to[i] = from[i];
    }
    to[past] = r;
    const auto differs = std::mismatch(to, to + out.common, out.index.data()).first;
    out.common = static_cast<int>(differs - to);
  }
}

void read_beams(const Program& p, const mr_sequence& s, int sequence, uint64_t step_id,
                Beams& out) {
  const mr_beams& b = *s.beams;
  if (p.kv_type == MR_KV_KIVI) fail(MR_UNSUPPORTED, "a KV cache of kivi has no beam search");
  if (p.kept() > 0) fail(MR_UNSUPPORTED, "a KV cache of heavy tokens has no beam search");
  if (b.prompt_tokens < 1 || b.prompt_tokens > s.position) {
    fail(MR_INVALID,
         "sequence %d: beams at position %d after a prompt of %d tokens, expected 1 to %d",
         sequence, s.position, b.prompt_tokens, s.position);
  }
  if (b.responses == nullptr) {
    fail(MR_INVALID, "sequence %d: the beams' regions are a null pointer", sequence);
  }
  out.prompt = b.prompt_tokens;
  out.steps = s.position - b.prompt_tokens + 1;
  check_mapped(p, *s.region, sequence, s.position, b.prompt_tokens - 1, p.sinks);
  out.kv.clear();
  out.slabs.clear();
  out.regions.clear();
  for (int r = 0; r < s.rows; ++r) {
    mr_region* region = b.responses[r];
    if (region == nullptr || region->pool() != s.region->pool()) {
      fail(MR_INVALID, "sequence %d: the region of beam %d is not one of this program", sequence,
           r);
    }
    use_region(*region, sequence, step_id);
    check_mapped(p, *region, sequence, out.steps - 1, out.steps - 1, p.sinks - out.prompt);
    out.kv.push_back(region->data(0));
    out.slabs.push_back(region->table(0));
    out.regions.push_back(region);
  }
  read_index(s, sequence, out);
}

}  // namespace

void Sequence::select(int group) {
  const KvLayout& layout = region->pool()->layout();
  head = region->data(group);
  kv = head == nullptr ? nullptr : head + layout.slab_bytes * layout.head_slabs;
  slabs = region->table(group) + layout.head_slabs;
}

// Makes the sequences and beams point to the slabs of a group.
void Batch::select(int to) {
  if (group == to) return;
  group = to;
  for (Sequence& s : sequences) s.select(to);
  const auto used = std::count_if(sequences.begin(), sequences.end(),
                                  [](const Sequence& s) { return s.beams != nullptr; });
  for (Beams* b = beams.data(); b < beams.data() + used; ++b) {
    for (size_t i = 0; i < b->regions.size(); ++i) {
      b->kv[i] = b->regions[i]->data(to);
      b->slabs[i] = b->regions[i]->table(to);
    }
  }
}

void read_step(const Program& p, const KvPool* pool, const mr_step& s, uint64_t step_id, int drawn,
               Batch& batch) {
  check_counts(p, s);
  check_rows(p, s, drawn);
  batch.sequences.clear();
  batch.positions.resize(s.rows);
  if (p.both_ways) batch.types.assign(s.rows, 0);
  // Grown before they are pointed to, and kept: their memory is reused.
  const auto beams = std::count_if(s.sequences, s.sequences + s.n_sequences,
                                   [](const mr_sequence& q) { return q.beams != nullptr; });
  batch.beams.resize(std::max(batch.beams.size(), static_cast<size_t>(beams)));
  Beams* next_beams = batch.beams.data();
  int row = 0;
  for (int i = 0; i < s.n_sequences; ++i) {
    const mr_sequence& q = s.sequences[i];
    check_sequence(p, pool, q, i, row, s.rows);
    use_region(*q.region, i, step_id);
    Sequence sequence{nullptr, q.first_row, q.rows, q.position, nullptr};
    sequence.region = q.region;
    sequence.select(0);
    if (q.beams != nullptr) {
      read_beams(p, q, i, step_id, *next_beams);
      sequence.beams = next_beams++;
    }
    for (int r = 0; r < q.rows; ++r) batch.positions[row + r] = sequence.row_position(r);
    if (q.second > 0) {
      std::fill_n(batch.types.begin() + row + q.second, q.rows - q.second, uint8_t{1});
    }
    batch.sequences.push_back(sequence);
    row += q.rows;
  }
  if (row != s.rows) {
    fail(MR_INVALID, "the sequences end at row %d, expected %d rows", row, s.rows);
  }
  batch.pool = pool;
  batch.group = 0;
  batch.rows = s.rows;
  batch.outputs = s.outputs;
  batch.logits = s.outputs - s.hidden_outputs;
  batch.tokens = {s.tokens, static_cast<size_t>(s.rows)};
  batch.output_rows = {s.output_rows, static_cast<size_t>(s.outputs)};
}

}  // namespace millrace
