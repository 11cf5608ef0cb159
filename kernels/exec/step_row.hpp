// A row of a step by itself.
#ifndef MILLRACE_EXEC_STEP_ROW_HPP
#define MILLRACE_EXEC_STEP_ROW_HPP

namespace millrace {

// A row of the step, of any sequence.
struct StepRow {
  int row, position;
};

}  // namespace millrace

#endif
