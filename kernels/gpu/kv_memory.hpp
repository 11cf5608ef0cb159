// Where the slabs of a KV pool lie on a device. Kernels find a slab by its address alone, so
// that the memory may be in one piece or in many.
#ifndef MILLRACE_GPU_KV_MEMORY_HPP
#define MILLRACE_GPU_KV_MEMORY_HPP

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "exec/buffer.hpp"

namespace millrace::gpu {

class KvMemory {
 public:
  virtual ~KvMemory() = default;
  virtual std::byte* slab(int index) const = 0;
};

struct KvSize {
  size_t slab_bytes;
  int slabs;
  size_t largest;  // bytes of one allocation at most
};

// Plain allocations of as many whole slabs as fit into one.
class AllocatedKvMemory : public KvMemory {
 public:
  using Allocate = std::function<Buffer(size_t bytes)>;

  // Throws Error: MR_NO_MEMORY if not even one slab fits, or what allocate throws.
  AllocatedKvMemory(const KvSize& size, const Allocate& allocate);
  std::byte* slab(int index) const override;

 private:
  size_t slab_bytes_;
  int slabs_at_once_;
  std::vector<Buffer> parts_;
};

// Addresses of a device, and memory to be put there.
class VirtualMemory {
 public:
  virtual ~VirtualMemory() = default;
  virtual size_t granularity() const = 0;  // of sizes and addresses
  // All of them throw Error for what the device refuses, but for unmap and release.
  virtual std::byte* reserve(size_t bytes) = 0;
  virtual void map(std::byte* data, size_t bytes) = 0;  // memory of its own, zeroed
  virtual void unmap(std::byte* data) noexcept = 0;     // what one call has mapped
  virtual void release(std::byte* data, size_t bytes) noexcept = 0;
};

// One range of addresses, all of it mapped to memory in pieces that the device can
// allocate; a slab may lie across two.
class MappedKvMemory : public KvMemory {
 public:
  // Throws what the device refuses, and leaves nothing mapped or reserved then.
  MappedKvMemory(const KvSize& size, std::unique_ptr<VirtualMemory> memory);
  ~MappedKvMemory() override;
  std::byte* slab(int index) const override { return data_ + slab_bytes_ * index; }

 private:
  void free() noexcept;

  std::unique_ptr<VirtualMemory> memory_;
  size_t slab_bytes_, bytes_;
  std::byte* data_;
  std::vector<std::byte*> pieces_;  // that are mapped, ascending
};

// Mapped memory where there is virtual memory (else null) and it does not refuse, which is
// said on stderr; else allocations.
std::unique_ptr<KvMemory> open_kv_memory(const KvSize& size, std::unique_ptr<VirtualMemory> memory,
                                         const AllocatedKvMemory::Allocate& allocate);

}  // namespace millrace::gpu

#endif
