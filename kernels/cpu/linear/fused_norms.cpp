#include "cpu/linear/fused_norms.hpp"

#include <algorithm>

namespace millrace::cpu {
namespace {

// The ops that read what a norm has left in its slot; none if one of them follows
// another norm.
std::vector<int> readers_of(const Program& program, const Op& norm) {
  std::vector<int> readers;
  bool next = false;
  for (size_t i = norm.index + 1; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.in == norm.out) {
      if (next) return {};
      readers.push_back(op.index);
    }
    if (op.out == norm.out) break;
    next = next || op.kind == MR_OP_NORM;
  }
  return readers;
}

// One of the readers where all take the same operand, else null.
const Linear* common_reader(const std::vector<int>& readers,
                            const std::vector<const Linear*>& linears) {
  const Linear* first = readers.empty() ? nullptr : linears[readers[0]];
  if (first == nullptr || !first->takes_codes()) return nullptr;
  const bool alike = std::all_of(readers.begin(), readers.end(), [&](int reader) {
    return linears[reader] != nullptr && linears[reader]->reads_like(*first);
  });
  return alike ? first : nullptr;
}

}  // namespace

FusedNorms::FusedNorms(const Context& context, const std::vector<const Linear*>& linears)
    : context_(context), norms_(linears.size()), reads_(linears.size()) {
  size_t room = 0, normed = 0;
  for (const Op& op : context.program.ops) {
    if (op.kind != MR_OP_NORM || context.program.slots[op.out].type != MR_SLOT_OPERAND) continue;
    // The hidden states are read from the slot.
    if (context.program.max_hidden > 0 && op.out == context.program.ops.back().in) continue;
    const std::vector<int> readers = readers_of(context.program, op);
    const Linear* reader = common_reader(readers, linears);
    if (reader == nullptr) continue;
    norms_[op.index] = reader;
    for (const int r : readers) reads_[r] = true;
    room = std::max(room, reader->operand_room(context.program.slot_rows[op.out]));
    normed = std::max(normed, sizeof(bf16) * Linear::kPackRows * reader->in_width());
  }
  room_ = Pages(room);
  normed_ = Buffer(normed * context.pool.size());
}

void FusedNorms::run(int index, const Norm& norm, int rows, Slot in) {
  operand_ = norms_[index]->pack_rows(rows, room_.data(), context_.pool,
                                      [&](int first, int count, int thread) {
                                        return normed_rows(norm, in, first, count, thread);
                                      });
}

const bf16* FusedNorms::normed_rows(const Norm& norm, Slot in, int first, int count,
                                    int thread) const {
  bf16* const rows =
      static_cast<bf16*>(normed_.data()) + int64_t{thread} * Linear::kPackRows * in.width;
  for (int r = 0; r < count; ++r) {
    context_.kernels.norm(norm.row, in.f32() + int64_t{first + r} * in.width,
                          rows + int64_t{r} * in.width);
  }
  return rows;
}

}  // namespace millrace::cpu
