#include "platform/virtual_memory.hpp"

#include <map>

#include "exec/error.hpp"

namespace millrace::gpu {
namespace {

namespace ex = sycl::ext::oneapi::experimental;

uintptr_t address(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }

// What the device refuses as an Error.
template <class F>
auto call(const char* what, size_t bytes, F&& f) {
  try {
    return f();
  } catch (const sycl::exception& e) {
    fail(MR_NO_MEMORY, "%s of %zu bytes: %s", what, bytes, e.what());
  }
}

class DeviceVirtualMemory : public VirtualMemory {
 public:
  explicit DeviceVirtualMemory(const sycl::queue& queue) : queue_(queue) {}

  size_t granularity() const override {
    return call("granularity", 0, [&] {
      return ex::get_mem_granularity(queue_.get_device(), queue_.get_context(),
                                     ex::granularity_mode::recommended);
    });
  }

  std::byte* reserve(size_t bytes) override {
    return call("reservation", bytes, [&] {
      return reinterpret_cast<std::byte*>(ex::reserve_virtual_mem(bytes, queue_.get_context()));
    });
  }

  void map(std::byte* data, size_t bytes) override {
    try {
      call("mapping", bytes, [&] {
        const ex::physical_mem memory(queue_, bytes);
        memory.map(address(data), bytes, ex::address_access_mode::read_write);
        pieces_.emplace(data, memory);
        queue_.memset(data, 0, bytes).wait_and_throw();
      });
    } catch (...) {
      unmap(data);
      throw;
    }
  }

  void unmap(std::byte* data) noexcept override {
    const auto piece = pieces_.find(data);
    if (piece == pieces_.end()) return;
    quietly([&] {
      queue_.wait();  // a failed step may have left kernels running
      ex::unmap(data, piece->second.size(), queue_.get_context());
    });
    pieces_.erase(piece);
  }

  void release(std::byte* data, size_t bytes) noexcept override {
    quietly([&] { ex::free_virtual_mem(address(data), bytes, queue_.get_context()); });
  }

 private:
  template <class F>
  void quietly(F&& f) noexcept {
    try {
      f();
    } catch (const sycl::exception&) {
      // The device is lost, and its memory with it.
    }
  }

  sycl::queue queue_;
  std::map<std::byte*, ex::physical_mem> pieces_;  // by where they are mapped
};

}  // namespace

std::unique_ptr<VirtualMemory> open_virtual_memory(const Stream& stream) {
  if (!stream.device().has(sycl::aspect::ext_oneapi_virtual_mem)) return nullptr;
  return std::make_unique<DeviceVirtualMemory>(stream.queue());
}

}  // namespace millrace::gpu
