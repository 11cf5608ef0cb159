// Which sequences of a step share a prefix: their regions map the same physical slabs at the same
// places. Attention reads these tokens once for all of them (docs/decisions/cascade.md).
#ifndef MILLRACE_EXEC_CASCADE_HPP
#define MILLRACE_EXEC_CASCADE_HPP

#include <vector>

#include "exec/step.hpp"
#include "exec/step_row.hpp"

namespace millrace {

// A prefix ends at a multiple of this many tokens: attention computes whole blocks of each backend.
inline constexpr int kSharedBlock = 64;

class Cascade {
 public:
  struct Member {
    int sequence;     // of the batch
    int first, rows;  // step_rows [first, first + rows)
  };
  struct Group {
    int begin, end;     // members
    int tokens;         // of the prefix: whole blocks, before the position of each row
    int most_rows;      // of a member
    int last_position;  // of a row
  };

  // Finds the groups of a step, once for all of its ops. Sequences with beams or with more rows
  // than most_rows are in none, and each group shares at least `least` tokens.
  void find(const Batch&, int most_rows, int least);

  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<Member>& members() const { return members_; }
  const std::vector<StepRow>& step_rows() const { return step_rows_; }

 private:
  void divide(int least);
  void add_group(int begin, int end);

  std::vector<Group> groups_;
  std::vector<Member> members_;     // ordered, so that those of a group are neighbors
  std::vector<StepRow> step_rows_;  // of all members
  std::vector<int> common_;         // [members - 1] tokens in common with the next member
  std::vector<int64_t> saved_;  // [members + 1] tokens that the best groups of the first read less
  std::vector<int> last_;       // [members + 1] where the last of these groups begins
};

}  // namespace millrace

#endif
