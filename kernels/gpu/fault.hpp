// Failures on purpose, to test what the process makes of them.
#ifndef MILLRACE_GPU_FAULT_HPP
#define MILLRACE_GPU_FAULT_HPP

#include <string>

namespace millrace::gpu {

enum class FaultKind {
  none,
  async,      // an error that the queue's handler receives later
  submit,     // a submission throws
  resources,  // the same, with the runtime's error of a device without memory
  lost,       // this and every later use of the queue throws
  hang,       // a command that does not end
};

// Reads kFaultVariable: "step:N:KIND" fails the Nth step of the process in
// its middle (steps count from 1, warm-up steps too), "step:N+:KIND" each one
// from there on. Unset or empty: none. Throws Error(MR_INVALID).
void read_fault(const char* text);

bool fault_planned();
void fault_step();                       // a step begins
FaultKind fault_launch();                // what to do instead of the launch that comes
std::string fault_text(FaultKind kind);  // the error's

}  // namespace millrace::gpu

#endif
