#include "cpu/machine/thread_pool.hpp"

#include "exec/wait.hpp"

namespace millrace::cpu {
namespace {

constexpr uint64_t range(int64_t begin, int64_t end) {
  return static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(begin);
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads), ranges_(new Range[threads]) {
  workers_.reserve(threads - 1);
  try {
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::run(int n, Task task, void* fn) {
  if (n <= 0) return;
  if (n == 1 || threads_ == 1) {
    for (int i = 0; i < n; ++i) task(fn, i, 0);
    return;
  }
  task_ = task;
  fn_ = fn;
  mode_ = FloatMode::of_thread();
  unfinished_.store(n, std::memory_order_relaxed);
  for (int64_t t = 0; t < threads_; ++t) {
    // Release: who claims a task from here sees the job.
    ranges_[t].left.store(range(n * t / threads_, n * (t + 1) / threads_),
                          std::memory_order_release);
  }
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  drain(0);
  for (int32_t left; (left = unfinished_.load(std::memory_order_acquire)) != 0;) {
    wait_while(unfinished_, left);
  }
}

// Runs tasks until none is left to claim, its own range first.
//
// A thread may come late, when the job it was woken for is over and another one
// is being set up: all it touches before a claim are the ranges, and a claim
// that succeeds is one of the present job. The job cannot end before that task, nor before
// the thread says so, once for all of its tasks: that word goes from core to core.
void ThreadPool::drain(int thread) {
  int32_t done = 0;
  for (int i = 0; i < threads_; ++i) {
    std::atomic<uint64_t>& left = ranges_[(thread + i) % threads_].left;
    for (;;) {
      // An empty range is not counted up: late threads could make it overflow.
      const uint64_t seen = left.load(std::memory_order_relaxed);
      if (static_cast<uint32_t>(seen) >= seen >> 32) break;
      const uint64_t claimed = left.fetch_add(1, std::memory_order_acquire);
      const auto next = static_cast<uint32_t>(claimed);
      if (next >= claimed >> 32) break;
      if (done == 0) mode_.set();
      task_(fn_, static_cast<int>(next), thread);
      ++done;
    }
  }
  if (done > 0 && unfinished_.fetch_sub(done, std::memory_order_acq_rel) == done) {
    unfinished_.notify_one();
  }
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    seen = wait_while(jobs_, seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    drain(thread);
  }
}

void* ThreadPool::scratch(size_t bytes) {
  if (bytes > scratch_.size()) {
    scratch_ = Pages();  // not both at once
    scratch_ = Pages(bytes + bytes / 4);
  }
  return scratch_.data();
}

}  // namespace millrace::cpu
