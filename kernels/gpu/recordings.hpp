// Launches of decode steps, recorded once for each shape of a step and run again.
#ifndef MILLRACE_GPU_RECORDINGS_HPP
#define MILLRACE_GPU_RECORDINGS_HPP

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "platform/stream.hpp"

namespace millrace::gpu {

// Steps of a shape launch the same kernels with the same arguments: what differs is in the tables. Where the platform
// records nothing, every step is launched anew.
class Recordings {
 public:
  // All that grids and arguments depend on. Empty: of a step that is not recorded.
  using Shape = std::vector<size_t>;

  // Before a step's launches. True: they have been made from a recording.
  bool replay(Stream& stream, Shape shape);
  // After them: makes those that were only recorded.
  void end(Stream& stream);
  // The tables lie elsewhere now.
  void forget() { recorded_.clear(); }

 private:
  static constexpr size_t kMost = 64;  // some 200 launches each

  struct Recorded {
    std::shared_ptr<Recording> recording;  // null: a step was seen, and not recorded
    uint64_t used = 0;
    bool recordable = true;
  };
  std::map<Shape, Recorded> recorded_;
  uint64_t steps_ = 0;
  Shape shape_;  // of the step, if it may be recorded
  bool recording_ = false;
};

}  // namespace millrace::gpu

#endif
