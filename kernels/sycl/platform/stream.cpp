#include "platform/stream.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>

#include "exec/error.hpp"
#include "gpu/fault.hpp"
#include "platform/runtime.hpp"

namespace millrace::gpu {
namespace {

// What a CPU device allocates is this process's memory, and weights are read faster in large pages: a
// page of 4 KiB ends what the processor fetches ahead. Advice: ordinary pages do as well.
void advise_huge_pages(void* data, size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE);
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (address + page - 1) / page * page, end = (address + bytes) / page * page;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

// The handler runs inside wait_and_throw, on the thread that waits.
auto keep_first(const std::shared_ptr<std::string>& failure) {
  return [failure](const sycl::exception_list& exceptions) {
    for (const std::exception_ptr& exception : exceptions) {
      if (!failure->empty()) return;
      try {
        std::rethrow_exception(exception);
      } catch (const std::exception& e) {
        *failure = e.what();
      }
    }
  };
}

// The context that the queues of a device share, and with it what is compiled.
// After a failure the next queue gets a new one.
class Contexts {
 public:
  sycl::context of(const sycl::device& device) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(contexts_.begin(), contexts_.end(), [&](const auto& context) {
      const std::vector<sycl::device> devices = context.get_devices();
      return std::find(devices.begin(), devices.end(), device) != devices.end();
    });
    return found == contexts_.end() ? contexts_.emplace_back(devices_with(device)) : *found;
  }
  void forget(const sycl::context& context) {
    const std::lock_guard lock(mutex_);
    std::erase(contexts_, context);
  }

 private:
  std::mutex mutex_;
  std::vector<sycl::context> contexts_;
};

// Never freed: at the process's end the runtime may be gone before it.
Contexts& contexts() {
  static auto& all = *new Contexts;
  return all;
}

sycl::property_list properties(bool profile) {
  if (!profile) return {sycl::property::queue::in_order()};
  return {sycl::property::queue::in_order(), sycl::property::queue::enable_profiling()};
}

}  // namespace

Stream::Stream(const DeviceHandle& device, bool profile)
    : queue_(contexts().of(device), device, keep_first(failure_), properties(profile)),
      profile_(profile),
      largest_(device_memory(device).largest) {}

std::unique_ptr<Stream> Stream::beside() const { return std::make_unique<Stream>(device(), false); }

Buffer Stream::allocate(size_t bytes) {
  if (bytes == 0) return {};
  if (bytes > largest_) {
    fail(MR_NO_MEMORY,
         "%zu bytes in one piece, the device's largest allocation is %llu bytes; with "
         "UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 a GPU allocates more, and is slower",
         bytes, static_cast<unsigned long long>(largest_));
  }
  void* data = nullptr;
  guarded([&] { data = sycl::malloc_device(bytes, queue_); });
  if (data == nullptr) fail(MR_NO_MEMORY, "%zu bytes of device memory", bytes);
  if (on_cpu(device())) advise_huge_pages(data, bytes);
  Buffer buffer(data, bytes, freeing());
  guarded([&] { queue_.memset(data, 0, bytes); });
  wait();
  return buffer;
}

Buffer::Free Stream::freeing() const {
  return [queue = queue_](void* p) mutable {
    try {
      queue.wait();  // a failed step may have left kernels running
      sycl::free(p, queue);
    } catch (const sycl::exception&) {
      // The device is lost, and its memory with it.
    }
  };
}

Buffer Stream::upload(const void* data, size_t bytes) {
  Buffer buffer = allocate(bytes);
  if (bytes > 0) copy(buffer.data(), data, bytes);
  wait();
  return buffer;
}

void Stream::copy(void* to, const void* from, size_t bytes) {
  guarded([&] { queue_.memcpy(to, from, bytes); });
}

void Stream::wait() {
  guarded([&] { queue_.wait_and_throw(); });
  throw_failure();
}

void Stream::wait(sycl::event& command) {
  guarded([&] { command.wait_and_throw(); });
  throw_failure();
}

void Stream::throw_failure() {
  if (!failure_->empty()) failed(std::exchange(*failure_, ""));
}

Readback::Readback(Stream& stream, size_t most_bytes) {
  void* data = nullptr;
  stream.guarded([&] { data = sycl::malloc_host(most_bytes, stream.queue_); });
  if (data == nullptr)
    fail(MR_NO_MEMORY, "%zu bytes of memory for copies from the device", most_bytes);
  host_ = Buffer(data, most_bytes, stream.freeing());
}

void Readback::begin(Stream& stream, const void* from, size_t bytes) {
  stream.guarded([&] { copied_ = stream.queue_.memcpy(host_.data(), from, bytes); });
}

void Readback::end(Stream& stream, void* to, size_t bytes) {
  stream.wait(copied_);
  std::memcpy(to, host_.data(), bytes);
}

void Stream::forget_launches() {
  fault_step();
  launches_ = 0;
  by_library_ = false;
  events_.clear();
}

bool Stream::begin_recording() {
  const sycl::device device = queue_.get_device();
  // The events of a profile are not for a graph.
  if (profile_ || !device.has(sycl::aspect::ext_oneapi_limited_graph)) return false;
  guarded([&] {
    recorded_.emplace(queue_.get_context(), device);
    recorded_->begin_recording(queue_);
  });
  return true;
}

std::shared_ptr<Recording> Stream::end_recording() {
  std::shared_ptr<Recording> recording;
  guarded([&] {
    recorded_->end_recording();
    recording = std::make_shared<Recording>(recorded_->finalize(), std::exchange(launches_, 0));
  });
  recorded_.reset();
  return recording;
}

void Stream::replay(const Recording& recording) {
  guarded([&] { queue_.ext_oneapi_graph(recording.graph()); });
  launches_ += recording.launches();
}

mr_op_time Stream::take_launches() {
  namespace profiling = sycl::info::event_profiling;
  mr_op_time time{0, std::exchange(launches_, 0), 0};
  guarded([&] {
    for (const sycl::event& event : events_) {
      time.nanoseconds += event.get_profiling_info<profiling::command_end>() -
                          event.get_profiling_info<profiling::command_start>();
    }
  });
  events_.clear();
  return time;
}

void Stream::failed(const std::string& what) {
  contexts().forget(queue_.get_context());
  fail(MR_DEVICE, "SYCL: %s", what.c_str());
}

void Stream::inject() {
  const FaultKind kind = fault_launch();
  switch (kind) {
    case FaultKind::none:
      return;
    case FaultKind::async:
      queue_.submit([&](sycl::handler& handler) {
        handler.host_task([kind] { throw std::runtime_error(fault_text(kind)); });
      });
      return;
    case FaultKind::hang:
      queue_.submit([&](sycl::handler& handler) {
        handler.host_task([] {
          for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        });
      });
      return;
    case FaultKind::lost:
      lost_ = true;
      *failure_ = fault_text(kind);
      [[fallthrough]];
    default:
      throw sycl::exception(sycl::make_error_code(sycl::errc::runtime), fault_text(kind));
  }
}

}  // namespace millrace::gpu
