// The KV pool in device memory. Regions have no addresses of their own: kernels read the slab
// table.
#ifndef MILLRACE_GPU_POOL_HPP
#define MILLRACE_GPU_POOL_HPP

#include <memory>

#include "exec/kv.hpp"
#include "gpu/kv_memory.hpp"
#include "platform/stream.hpp"

namespace millrace::gpu {

class DevicePool : public KvPool {
 public:
  DevicePool(std::shared_ptr<Stream> stream, Kernel copy, const KvLayout& layout, int slabs);

  std::byte* slab(int index) const { return memory_->slab(index); }

  std::byte* reserve(int) override { return nullptr; }
  void release(std::byte*, int) override {}
  void map(std::byte*, const int32_t*, int) override {}
  void unmap(std::byte*, int) override {}

 protected:
  void copy_slab(int from, int to, int tokens) override;
  void read_slab(int slab, void* to) override;
  void write_slab(int slab, const void* from) override;

 private:
  void transfer(void* to, const void* from);

  std::shared_ptr<Stream> stream_;
  std::unique_ptr<Stream> transfers_;  // beside the steps
  Kernel copy_;
  std::unique_ptr<KvMemory> memory_;
};

}  // namespace millrace::gpu

#endif
