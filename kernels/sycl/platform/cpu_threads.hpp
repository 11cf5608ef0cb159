// How many threads the CPU device and oneDNN on it may use.
#ifndef MILLRACE_SYCL_CPU_THREADS_HPP
#define MILLRACE_SYCL_CPU_THREADS_HPP

#include <cstddef>
#include <cstdint>

namespace millrace::gpu {

// Both run on oneTBB, which has one bound for the process: the lowest of those that are held.
// Where the runtime comes without a oneTBB it bounds nothing.
class CpuThreads {
 public:
  explicit CpuThreads(int threads);  // 0: no bound
  ~CpuThreads();
  CpuThreads(const CpuThreads&) = delete;
  CpuThreads& operator=(const CpuThreads&) = delete;

 private:
  // tbb::global_control as its binary interface has it (oneapi/tbb/global_control.h); the header is in none of the
  // packages that bring the library.
  struct Control {
    size_t value;
    intptr_t reserved;
    int parameter;
  };
  using Call = void (*)(Control&);

  Control control_;
  Call destroy_ = nullptr;
};

}  // namespace millrace::gpu

#endif
