#include "platform/virtual_memory.hpp"

#include <map>

#include "exec/error.hpp"

namespace millrace::gpu {
namespace {

constexpr int kOnDevice = 1;  // CU_MEM_LOCATION_TYPE_DEVICE

CUdeviceptr address(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

class DeviceVirtualMemory : public VirtualMemory {
 public:
  explicit DeviceVirtualMemory(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

  size_t granularity() const override {
    constexpr int kRecommended = 1;
    const CUmemAllocationProp properties = this->properties();
    size_t bytes = 0;
    call(cuda().virtual_granularity, 0, &bytes, &properties, kRecommended);
    return bytes;
  }

  std::byte* reserve(size_t bytes) override {
    CUdeviceptr data = 0;
    call(cuda().virtual_reserve, bytes, &data, bytes, size_t{0}, CUdeviceptr{0}, uint64_t{0});
    return reinterpret_cast<std::byte*>(data);
  }

  void map(std::byte* data, size_t bytes) override {
    constexpr int kReadWrite = 3;
    const CUmemAllocationProp properties = this->properties();
    const CUmemAccessDesc access{properties.location, kReadWrite};
    CUmemGenericAllocationHandle memory = 0;
    call(cuda().virtual_create, bytes, &memory, bytes, &properties, uint64_t{0});
    try {
      call(cuda().virtual_map, bytes, address(data), bytes, size_t{0}, memory, uint64_t{0});
      pieces_[data] = bytes;
      call(cuda().virtual_set_access, bytes, address(data), bytes, &access, size_t{1});
      call(cuda().fill, bytes, address(data), static_cast<unsigned char>(0), bytes, queue_->stream);
      call(cuda().stream_synchronize, bytes, queue_->stream);
    } catch (...) {
      unmap(data);
      cuda().virtual_release.address(memory);
      throw;
    }
    cuda().virtual_release.address(memory);  // the mapping keeps it
  }

  // What fails here has failed before: the context is lost, and its memory with it.
  void unmap(std::byte* data) noexcept override {
    const auto piece = pieces_.find(data);
    if (piece == pieces_.end()) return;
    queue_->drain();  // a failed step may have left kernels running
    cuda().virtual_unmap.address(address(data), piece->second);
    pieces_.erase(piece);
  }

  void release(std::byte* data, size_t bytes) noexcept override {
    cuda().virtual_free.address(address(data), bytes);
  }

 private:
  CUmemAllocationProp properties() const {
    constexpr int kPinned = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
    CUmemAllocationProp properties{};
    properties.type = kPinned;
    properties.location = {kOnDevice, queue_->context->device().ordinal};
    return properties;
  }

  template <class Call, class... Arguments>
  void call(const Call& f, size_t bytes, Arguments... arguments) const {
    queue_->context->make_current();
    if (const int result = f.address(arguments...); result != 0) {
      fail(MR_NO_MEMORY, "%zu bytes: %s", bytes, cuda_error(f.name, result).c_str());
    }
  }

  std::shared_ptr<Queue> queue_;
  std::map<std::byte*, size_t> pieces_;  // bytes, by where they are mapped
};

}  // namespace

std::unique_ptr<VirtualMemory> open_virtual_memory(const Stream& stream) {
  if (!stream.device().virtual_memory) return nullptr;
  return std::make_unique<DeviceVirtualMemory>(stream.queue());
}

}  // namespace millrace::gpu
