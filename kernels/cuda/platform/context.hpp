// The driver's context of a device, which holds its memory and its code.
#ifndef MILLRACE_CUDA_CONTEXT_HPP
#define MILLRACE_CUDA_CONTEXT_HPP

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver.hpp"
#include "platform/runtime.hpp"

namespace millrace::gpu {

class Context {
 public:
  // The context that the streams of a device share. Not the driver's primary one, which would live on after an error:
  // what a failed context holds goes with it. After some errors the driver gives this process no other one.
  static std::shared_ptr<Context> of(const DeviceHandle& device);
  // After a failure: the next caller of of() gets a new one.
  static void forget(const Context* context);

  explicit Context(const DeviceHandle& device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const DeviceHandle& device() const { return device_; }
  // Makes it the calling thread's: every use of the driver begins with it, as callers change threads.
  void make_current() const;

  // The code of `files`, compiled with `options` beside the caller: once, for all callers.
  std::shared_future<CUmodule> code(const std::vector<std::string>& files,
                                    const std::vector<std::string>& options);

 private:
  struct Code {
    std::vector<std::string> files, options;
    std::shared_future<CUmodule> loaded;
  };

  DeviceHandle device_;
  CUcontext handle_ = nullptr;
  std::mutex mutex_;
  std::vector<Code> code_;
};

}  // namespace millrace::gpu

#endif
