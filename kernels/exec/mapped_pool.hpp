// The KV pool of the CPU: one memory file, all of it allocated at the start, whose
// pages are mapped into regions. It is anonymous, or a part of a file that the caller names and
// that may outlive the process.
#ifndef MILLRACE_EXEC_MAPPED_POOL_HPP
#define MILLRACE_EXEC_MAPPED_POOL_HPP

#include <atomic>
#include <thread>

#include "exec/kv.hpp"

namespace millrace {

class MappedPool : public KvPool {
 public:
  // The most slabs a pool may have on this system, for every one of them may
  // need a memory mapping of its own.
  static int32_t max_slabs();

  // Allocates the memory of the first slabs now and of the others beside what follows, for
  // gigabytes take seconds; a slab that is mapped earlier is allocated then. What is
  // missing shows there and not when a token is stored. Throws Error: MR_NO_MEMORY,
  // MR_UNSUPPORTED where mapping the pool slab by slab could exceed vm.max_map_count.
  MappedPool(const KvLayout& layout, int slabs, const PoolFile& file);
  ~MappedPool() override;

  std::byte* reserve(int slabs) override;
  void release(std::byte* data, int slabs) override;
  void map(std::byte* data, const int32_t* slabs, int n) override;
  void unmap(std::byte* data, int n) override;

 protected:
  void copy_slab(int from, int to, int tokens) override;
  void read_slab(int slab, void* to) override;
  void write_slab(int slab, const void* from) override;

 private:
  void open_file(int from);
  void close_file();
  void allocate(uint64_t begin, uint64_t end);  // throws Error(MR_NO_MEMORY)
  void allocate_rest();
  void allocate_slab(int slab);

  int file_ = -1;
  uint64_t offset_ = 0;                 // of the first slab in the file
  std::byte* data_ = nullptr;           // the whole pool, mapped once
  std::atomic<uint64_t> allocated_{0};  // bytes from the beginning
  std::atomic<bool> closing_{false};
  std::thread rest_;
};

}  // namespace millrace

#endif
