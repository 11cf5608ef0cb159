// The in-order queue of a device: memory, copies, launches, and what failed.
#ifndef MILLRACE_SYCL_STREAM_HPP
#define MILLRACE_SYCL_STREAM_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <sycl/sycl.hpp>

#include "exec/buffer.hpp"

namespace millrace::sycl_backend {

class Stream {
 public:
  explicit Stream(const sycl::device& device);

  const sycl::queue& queue() const { return queue_; }
  sycl::device device() const { return queue_.get_device(); }

  // Zeroed device memory. Throws Error(MR_NO_MEMORY).
  Buffer allocate(size_t bytes);
  void copy(void* to, const void* from, size_t bytes) { queue_.memcpy(to, from, bytes); }
  // Waits, and throws Error(MR_DEVICE) for whatever failed since the last call.
  void wait();

  // Runs a kernel over groups x items work-items.
  template <class... Arguments>
  void launch(const sycl::kernel& kernel, size_t groups, size_t items, Arguments... arguments) {
    ++launches_;
    queue_.submit([&](sycl::handler& handler) {
      handler.set_args(arguments...);
      handler.parallel_for(sycl::nd_range<1>(groups * items, items), kernel);
    });
  }
  // The same with `floats` floats of local memory, the argument before the shape.
  template <class Shape, class... Pointers>
  void launch_local(const sycl::kernel& kernel, size_t groups, size_t items, size_t floats,
                    const Shape& shape, Pointers... pointers) {
    ++launches_;
    queue_.submit([&](sycl::handler& handler) {
      const sycl::local_accessor<float, 1> local(sycl::range<1>(floats), handler);
      handler.set_args(pointers..., local, shape);
      handler.parallel_for(sycl::nd_range<1>(groups * items, items), kernel);
    });
  }

  uint64_t launches() const { return launches_; }

 private:
  std::string failure_;  // before queue_, whose handler writes it
  sycl::queue queue_;
  uint64_t launches_ = 0;
};

}  // namespace millrace::sycl_backend

#endif
