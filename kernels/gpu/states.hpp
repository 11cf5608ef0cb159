// The ops with a state of one program, and gates: device/states.cpp.
#ifndef MILLRACE_GPU_STATES_HPP
#define MILLRACE_GPU_STATES_HPP

#include <map>

#include "exec/backend.hpp"
#include "gpu/step_tables.hpp"
#include "platform/bundle.hpp"
#include "platform/stream.hpp"

namespace millrace::gpu {

// Whether the program has such ops.
bool has_states(const Program& program);

class StateOps {
 public:
  // All arguments but the bundle outlive it. target: that the bundle is built for. Throws
  // Error(MR_UNSUPPORTED) for a head whose state does not fit into local memory.
  StateOps(Stream& stream, Target target, const Bundle& bundle, const Program& program,
           const KvLayout& layout);

  void conv(const Op& op, const Run& run, const StepTables& tables);
  void recur(const Op& op, const Run& run, const StepTables& tables);
  void gate(const Op& op, const Run& run);
  uint64_t bytes() const;

 private:
  // What an op keeps on the device, as floats.
  struct Constants {
    Buffer weight, bias;      // CONV: [kernel][channels], [channels]; GATE: weight
    Buffer a, dt_bias, skip;  // RECUR: as mr_recur has them, a as decays() says
  };

  Constants load(const Op& op) const;
  Buffer decays(const mr_recur& recur) const;
  Buffer floats(int tensor) const;
  StateShape state_shape(const Op& op) const;

  Stream& stream_;
  Target target_;
  Kernel conv_, recur_, gate_;
  const Program& program_;
  const KvLayout& layout_;
  std::map<int, Constants> constants_;  // by the op's index
};

}  // namespace millrace::gpu

#endif
