// Streams, events and graphs of the emulated driver.
//
// An operation runs in the caller's thread where its stream has nothing to do, and in a thread of
// the stream where it has, or with MILLRACE_CUDA_EMULATOR_ASYNC=1.
#ifndef MILLRACE_CUDA_EMULATOR_STREAM_HPP
#define MILLRACE_CUDA_EMULATOR_STREAM_HPP

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda.hpp"

namespace mr_emulator {

struct Operation {
  std::function<void()> run;
  bool waits = false;  // may take long for other reasons than work
};

struct Graph {
  std::vector<Operation> operations;
};

class Stream;

struct Context {
  int device = 0;
  bool primary = false;
  int retained = 0;
  bool destroyed = false;
  std::atomic<CUresult> error{CUDA_SUCCESS};  // of a kernel; all later calls return it
  std::shared_ptr<Stream> legacy;
};

// A capture in progress. Streams join it by waiting for an event of it.
struct Capture {
  struct Part {
    size_t operations = 0, joined = 0;
  };
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  const Stream* origin = nullptr;
  int mode = 0;  // 0: global, 1: of the thread, 2: relaxed
  std::thread::id thread;
  bool invalid = false;
  std::map<const Stream*, Part> parts;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<Context> context, unsigned flags, bool async)
      : context(std::move(context)), flags(flags), async_(async) {}

  const std::shared_ptr<Context> context;
  const unsigned flags;              // 1: does not synchronize with the legacy stream
  std::shared_ptr<Capture> capture;  // guarded by the driver's mutex

  void submit(Operation operation) {
    std::unique_lock lock(mutex_);
    if (!async_ && !operation.waits && queue_.empty() && !busy_) {
      busy_ = true;
      lock.unlock();
      operation.run();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
      return;
    }
    queue_.push_back(std::move(operation));
    if (!started_) {
      started_ = true;
      std::thread([self = shared_from_this()] { self->work(); }).detach();
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
  }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return queue_.empty() && !busy_;
  }
  // Submitted work still runs.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !busy_ && (closed_ || !queue_.empty()); });
      if (queue_.empty()) return;
      Operation operation = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      operation.run();
      operation = {};
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  const bool async_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  bool busy_ = false, started_ = false, closed_ = false;
};

// One record of an event.
class Record {
 public:
  void finish() {
    const std::lock_guard lock(mutex_);
    time_ = std::chrono::steady_clock::now();
    done_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }
  bool done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  std::chrono::steady_clock::time_point time() {
    const std::lock_guard lock(mutex_);
    return time_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::chrono::steady_clock::time_point time_;
};

struct Event {
  std::shared_ptr<Context> context;
  unsigned flags = 0;              // 2: without time
  std::shared_ptr<Record> record;  // the last one
  std::shared_ptr<Capture> capture;
  const Stream* stream = nullptr;  // of the capture
  size_t operations = 0;           // of the stream before it
};

}  // namespace mr_emulator

#endif
