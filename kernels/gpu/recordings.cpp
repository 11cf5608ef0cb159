#include "gpu/recordings.hpp"

#include <algorithm>
#include <utility>

namespace millrace::gpu {

bool Recordings::replay(Stream& stream, Shape shape) {
  const bool seen = recorded_.contains(shape);
  Recorded& r = recorded_[shape];
  r.used = ++steps_;
  if (r.recording != nullptr) {
    stream.replay(*r.recording);
    return true;
  }
  // Recording costs as much as some steps: it is not for one alone.
  recording_ = seen && r.recordable && stream.begin_recording();
  shape_ = std::move(shape);
  if (recorded_.size() > kMost) {
    recorded_.erase(std::min_element(
        recorded_.begin(), recorded_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
  return false;
}

void Recordings::end(Stream& stream) {
  const auto found = recorded_.find(std::exchange(shape_, {}));
  if (found == recorded_.end()) return;
  if (!std::exchange(recording_, false)) {
    found->second.recordable = stream.recordable();
    return;
  }
  found->second.recording = stream.end_recording();
  stream.replay(*found->second.recording);
}

}  // namespace millrace::gpu
