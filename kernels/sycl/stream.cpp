#include "sycl/stream.hpp"

#include "exec/error.hpp"

namespace millrace::sycl_backend {
namespace {

// The handler runs inside wait_and_throw, on the thread that waits.
auto keep_first(std::string& failure) {
  return [&failure](const sycl::exception_list& exceptions) {
    for (const std::exception_ptr& exception : exceptions) {
      if (!failure.empty()) return;
      try {
        std::rethrow_exception(exception);
      } catch (const std::exception& e) {
        failure = e.what();
      }
    }
  };
}

}  // namespace

Stream::Stream(const sycl::device& device)
    : queue_(device, keep_first(failure_), {sycl::property::queue::in_order()}) {}

Buffer Stream::allocate(size_t bytes) {
  if (bytes == 0) return {};
  void* data = sycl::malloc_device(bytes, queue_);
  if (data == nullptr) fail(MR_NO_MEMORY, "%zu bytes of device memory", bytes);
  Buffer buffer(data, bytes, [context = queue_.get_context()](void* p) { sycl::free(p, context); });
  queue_.memset(data, 0, bytes);
  wait();
  return buffer;
}

void Stream::wait() {
  try {
    queue_.wait_and_throw();
  } catch (const sycl::exception& e) {
    failure_ = e.what();
  }
  if (failure_.empty()) return;
  const std::string message = std::exchange(failure_, "");
  fail(MR_DEVICE, "SYCL: %s", message.c_str());
}

}  // namespace millrace::sycl_backend
