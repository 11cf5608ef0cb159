// The in-order queue of a device: memory, copies, launches, and what failed.
#ifndef MILLRACE_CUDA_STREAM_HPP
#define MILLRACE_CUDA_STREAM_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exec/buffer.hpp"
#include "millrace_kernels.h"
#include "platform/context.hpp"
#include "platform/runtime.hpp"

namespace millrace::gpu {

class Kernel {
 public:
  // The context is current.
  Kernel(std::shared_ptr<Context> context, CUfunction function);

  CUfunction function() const { return state_->function; }
  // Whether it waits for the kernel before it by itself, device/ptx.hpp.
  bool waits() const { return state_->waits; }
  // The next launch may have this much dynamic shared memory.
  void allow_shared(size_t bytes) const;

 private:
  struct State {
    State(std::shared_ptr<Context> c, CUfunction f) : context(std::move(c)), function(f) {}

    std::shared_ptr<Context> context;  // keeps the code
    CUfunction function;
    bool waits = false;
    // Bytes that it may have; these in any case, beside static ones, as a block has 48 KiB.
    std::atomic<size_t> shared{16 << 10};
  };
  std::shared_ptr<State> state_;
};

// Launches that a stream makes again: a graph of the driver.
class Recording {
 public:
  Recording(std::shared_ptr<Context> context, CUgraphExec graph, int32_t launches)
      : context_(std::move(context)), graph_(graph), launches_(launches) {}
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  CUgraphExec graph() const { return graph_; }
  int32_t launches() const { return launches_; }

 private:
  std::shared_ptr<Context> context_;
  CUgraphExec graph_;
  int32_t launches_;
};

// The driver's stream; memory keeps it alive.
struct Queue {
  explicit Queue(std::shared_ptr<Context> context);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Waits for all that runs, whether it fails or not.
  void drain() const noexcept;

  std::shared_ptr<Context> context;
  CUstream stream = nullptr;
};

// Copies between the host's memory and the device's: stream.cpp.
class Staging;

// Whatever fails throws Error(MR_DEVICE), and streams that are made later do not share this one's context: it may be of
// no use any more. Each function may be called by any thread, one at a time.
class Stream {
 public:
  // profile: reads from the device's clock how long each launch took.
  Stream(const DeviceHandle& device, bool profile);
  ~Stream();
  // Another queue with the same memory.
  std::unique_ptr<Stream> beside() const;

  const DeviceHandle& device() const { return queue_->context->device(); }
  const std::shared_ptr<Context>& context() const { return queue_->context; }
  const std::shared_ptr<Queue>& queue() const { return queue_; }

  // Zeroed device memory. Throws Error(MR_NO_MEMORY).
  Buffer allocate(size_t bytes);
  // The same with these bytes in it, which it has when this returns.
  Buffer upload(const void* data, size_t bytes);
  template <class T>
  Buffer upload(const std::vector<T>& values) {
    return upload(values.data(), values.size() * sizeof(T));
  }
  // Either side may be the host's memory.
  void copy(void* to, const void* from, size_t bytes);
  // Waits, and throws for whatever failed since the last call.
  void wait();

  // Runs a kernel over groups x items work-items.
  template <class... Arguments>
  void launch(const Kernel& kernel, size_t groups, size_t items, Arguments... arguments) {
    void* all[] = {&arguments...};
    run(kernel, groups, items, 0, all);
  }
  // The same with `floats` floats of shared memory, for which the kernel has an empty argument before the shape.
  template <class Shape, class... Pointers>
  void launch_local(const Kernel& kernel, size_t groups, size_t items, size_t floats, Shape shape,
                    Pointers... pointers) {
    char local = 0;
    void* all[] = {&pointers..., &local, &shape};
    run(kernel, groups, items, floats * sizeof(float), all);
  }

  // From here on launches are recorded, not made. False: this stream does not record.
  bool begin_recording();
  std::shared_ptr<Recording> end_recording();
  void replay(const Recording& recording);
  bool recordable() const { return true; }

  void forget_launches();  // a step begins
  // The launches since then or the last call, which are done.
  mr_op_time take_launches();

 private:
  // What host functions of the stream say.
  struct Failure;

  Stream(std::shared_ptr<Context> context, bool profile);
  void run(const Kernel& kernel, size_t groups, size_t items, size_t shared_bytes,
           void** arguments);
  template <class F>
  void guarded(F&& call);
  void throw_failure() const;
  void inject();
  CUevent timed();  // an event of the profile, in the stream

  std::shared_ptr<Queue> queue_;
  std::shared_ptr<Failure> failure_;
  std::unique_ptr<Staging> staging_;
  bool profile_;
  int32_t launches_ = 0;
  std::vector<CUevent> events_;  // with profile: before and after each launch
  size_t used_ = 0;              // events of the launches since the last call
  std::string lost_;             // the error of a fault on purpose that lasts

  friend class Readback;
};

// Bytes on their way to the host while the stream continues.
class Readback {
 public:
  Readback(Stream& stream, size_t most_bytes);
  ~Readback();
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;

  // After all that the stream has been given.
  void begin(Stream& stream, const void* from, size_t bytes);
  // Waits for them. Throws as Stream::wait.
  void end(Stream& stream, void* to, size_t bytes);

 private:
  std::shared_ptr<Queue> queue_;
  void* host_ = nullptr;
  CUevent copied_ = nullptr;
};

}  // namespace millrace::gpu

#endif
