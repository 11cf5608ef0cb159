// The in-order queue of a device: memory, copies, launches, and what failed.
#ifndef MILLRACE_SYCL_STREAM_HPP
#define MILLRACE_SYCL_STREAM_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <sycl/sycl.hpp>
#include <utility>
#include <vector>

#include "exec/buffer.hpp"
#include "millrace_kernels.h"
#include "platform/runtime.hpp"

namespace millrace::gpu {

using Kernel = sycl::kernel;

// Launches that a queue makes again. The call that does is not const.
class Recording {
 public:
  using Graph = sycl::ext::oneapi::experimental::command_graph<
      sycl::ext::oneapi::experimental::graph_state::executable>;

  Recording(Graph graph, int32_t launches) : graph_(std::move(graph)), launches_(launches) {}

  const Graph& graph() const { return graph_; }
  int32_t launches() const { return launches_; }

 private:
  Graph graph_;
  int32_t launches_;
};

// Whatever fails throws Error(MR_DEVICE), and streams that are made later do not
// share this one's context: it may be of no use any more.
class Stream {
 public:
  // profile: reads from the device's clock how long each launch took.
  Stream(const DeviceHandle& device, bool profile);
  // Another queue with the same memory.
  std::unique_ptr<Stream> beside() const;

  const sycl::queue& queue() const { return queue_; }
  DeviceHandle device() const { return queue_.get_device(); }

  // Zeroed device memory. Throws Error(MR_NO_MEMORY), also for more than the device allocates
  // in one piece.
  Buffer allocate(size_t bytes);
  // The same with these bytes in it, which it has when this returns.
  Buffer upload(const void* data, size_t bytes);
  template <class T>
  Buffer upload(const std::vector<T>& values) {
    return upload(values.data(), values.size() * sizeof(T));
  }
  void copy(void* to, const void* from, size_t bytes);
  // Waits, and throws for whatever failed since the last call.
  void wait();
  // The same, for one command alone and those before it.
  void wait(sycl::event& command);

  // Runs a kernel over groups x items work-items.
  template <class... Arguments>
  void launch(const Kernel& kernel, size_t groups, size_t items, Arguments... arguments) {
    submit([&](sycl::handler& handler) {
      handler.set_args(arguments...);
      handler.parallel_for(sycl::nd_range<1>(groups * items, items), kernel);
    });
  }
  // The same with `floats` floats of local memory, the argument before the shape.
  template <class Shape, class... Pointers>
  void launch_local(const Kernel& kernel, size_t groups, size_t items, size_t floats,
                    const Shape& shape, Pointers... pointers) {
    submit([&](sycl::handler& handler) {
      const sycl::local_accessor<float, 1> local(sycl::range<1>(floats), handler);
      handler.set_args(pointers..., local, shape);
      handler.parallel_for(sycl::nd_range<1>(groups * items, items), kernel);
    });
  }

  // Counts what a library submits to the queue: call() returns its event.
  template <class F>
  void submit_by(F&& call) {
    by_library_ = true;
    counted(call);
  }

  // From here on launches are recorded, not made. False: this stream does not record.
  bool begin_recording();
  std::shared_ptr<Recording> end_recording();
  void replay(const Recording& recording);
  // Whether launches like those since forget_launches can be recorded: a library's may be no kernels.
  bool recordable() const { return !by_library_; }

  void forget_launches();  // a step begins
  // The launches since then or the last call, which are done.
  mr_op_time take_launches();

 private:
  using Recorded = sycl::ext::oneapi::experimental::command_graph<
      sycl::ext::oneapi::experimental::graph_state::modifiable>;

  template <class CommandGroup>
  void submit(CommandGroup&& group) {
    counted([&] { return queue_.submit(group); });
  }
  template <class F>
  void counted(F&& call) {
    guarded([&] {
      inject();
      sycl::event event = call();
      if (profile_) events_.push_back(std::move(event));
    });
    ++launches_;
  }
  template <class F>
  void guarded(F&& call) {
    try {
      if (lost_) throw sycl::exception(sycl::make_error_code(sycl::errc::runtime), *failure_);
      call();
    } catch (const sycl::exception& e) {
      failed(e.what());
    }
  }
  Buffer::Free freeing() const;  // of memory that its kernels use
  void inject();
  void throw_failure();
  [[noreturn]] void failed(const std::string& what);

  friend class Readback;

  // The error that the queue's handler received; buffers keep the queue, and so this, alive.
  std::shared_ptr<std::string> failure_ = std::make_shared<std::string>();
  sycl::queue queue_;
  bool profile_;
  uint64_t largest_;  // bytes of an allocation
  int32_t launches_ = 0;
  std::vector<sycl::event> events_;   // of the launches, with profile
  std::optional<Recorded> recorded_;  // while launches are recorded
  bool by_library_ = false;           // some of the launches
  bool lost_ = false;                 // on purpose
};

// Bytes on their way to the host while the stream continues.
class Readback {
 public:
  Readback(Stream& stream, size_t most_bytes);

  // After all that the stream has been given.
  void begin(Stream& stream, const void* from, size_t bytes);
  // Waits for them. Throws as Stream::wait.
  void end(Stream& stream, void* to, size_t bytes);

 private:
  Buffer host_;
  sycl::event copied_;
};

}  // namespace millrace::gpu

#endif
