// The threads that run the ops of a step.
#ifndef MILLRACE_CPU_MACHINE_THREAD_POOL_HPP
#define MILLRACE_CPU_MACHINE_THREAD_POOL_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "cpu/machine/float_mode.hpp"
#include "cpu/machine/pages.hpp"

namespace millrace::cpu {

// The caller and size() - 1 workers. One thread at a time drives a pool, and
// not from inside a task.
//
// Tasks are dealt out in contiguous ranges, one per thread: thread t begins
// with the tasks [n*t/size, n*(t+1)/size) and then takes what is left of the
// others'. So the same loop over the same data meets the same thread each time
// (its caches, its NUMA node's memory, if it also touched it first), and a slow
// thread holds up no more than the one task it is in.
//
// Workers that find no work look out for a millisecond, more than the gap between
// the steps of an answer, and leave the core to others who want it meanwhile;
// then they sleep in the kernel.
class ThreadPool {
 public:
  // threads >= 1; throws std::system_error if the system grants no thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // fn(task, thread) for every task in [0, n), thread in [0, size()); returns
  // when all are done. fn must not throw. Workers take over the caller's float mode.
  template <class F>
  void parallel_for(int n, F&& fn) {
    using Fn = std::remove_reference_t<F>;
    run(
        n, [](void* f, int task, int thread) { (*static_cast<Fn*>(f))(task, thread); },
        const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
  }

  // Scratch memory for what the threads share during one op; the next call may
  // move or overwrite it. 64-byte aligned, contents undefined.
  void* scratch(size_t bytes);

 private:
  using Task = void (*)(void* fn, int task, int thread);

  // What is left of a range, in one word so that it is claimed by one addition:
  // the end in the upper half, the next task in the lower one.
  struct alignas(64) Range {
    std::atomic<uint64_t> left{0};
  };

  void run(int n, Task task, void* fn);
  void work(int thread);
  void drain(int thread);
  void stop();

  const int threads_;
  // The job. Written by the driver while all ranges are empty; read by a thread
  // that has claimed a task, and so keeps the job from ending.
  Task task_ = nullptr;
  void* fn_ = nullptr;
  FloatMode mode_ = FloatMode::of_thread();
  std::unique_ptr<Range[]> ranges_;
  alignas(64) std::atomic<int32_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> jobs_{0};  // counts jobs, so that workers see a new one
  std::atomic<bool> stop_{false};
  Pages scratch_;
  std::vector<std::thread> workers_;
};

}  // namespace millrace::cpu

#endif
