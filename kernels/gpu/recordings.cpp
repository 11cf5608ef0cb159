#include "gpu/recordings.hpp"

#include <algorithm>
#include <utility>

namespace millrace::gpu {

bool Recordings::replay(Stream& stream, int rows) {
  const bool seen = recorded_.contains(rows);
  Recorded& r = recorded_[rows];
  r.used = ++steps_;
  if (r.recording != nullptr) {
    stream.replay(*r.recording);
    return true;
  }
  // Recording costs as much as some steps: it is not for one alone.
  if (seen && stream.begin_recording()) recording_ = rows;
  if (recorded_.size() > kMost) {
    recorded_.erase(std::min_element(
        recorded_.begin(), recorded_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
  return false;
}

void Recordings::end(Stream& stream) {
  if (recording_ == 0) return;
  Recorded& r = recorded_[std::exchange(recording_, 0)];
  r.recording = stream.end_recording();
  stream.replay(*r.recording);
}

}  // namespace millrace::gpu
