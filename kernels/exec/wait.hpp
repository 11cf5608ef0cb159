// How a thread waits for another one.
#ifndef MILLRACE_EXEC_WAIT_HPP
#define MILLRACE_EXEC_WAIT_HPP

#include <atomic>
#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace {

inline void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Longer than the gaps between the ops of a step.
inline constexpr std::chrono::microseconds kSpin{20};

// Waits until word no longer holds `old`: polls for a millisecond, after `spin` only when nobody
// else wants the core, and then sleeps. A millisecond is longer than the gaps between the steps of an answer, and
// nothing to an idle server. A sleeping thread lets the core halt. Waking it takes as long as a small op, and much
// longer in a virtual machine.
template <class T>
T wait_while(const std::atomic<T>& word, T old, std::chrono::microseconds spin = kSpin) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kLookOut{1000};
  const Clock::time_point start = Clock::now();
  for (Clock::duration waited{}; waited < kLookOut; waited = Clock::now() - start) {
    if (waited > spin) std::this_thread::yield();
    for (int i = 0; i < 16; ++i) {
      const T now = word.load(std::memory_order_acquire);
      if (now != old) return now;
      pause_core();
    }
  }
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

}  // namespace millrace

#endif
