// The KV pool of the CPU: one memory file whose pages are mapped into regions. It is anonymous, or a part
// of a file that the caller names and that may outlive the process. A slab takes memory from its first use on.
#ifndef MILLRACE_EXEC_MAPPED_POOL_HPP
#define MILLRACE_EXEC_MAPPED_POOL_HPP

#include <atomic>
#include <vector>

#include "exec/kv.hpp"

namespace millrace {

class MappedPool : public KvPool {
 public:
  // The most slabs a pool may have on this system, for every one of them may
  // need a memory mapping of its own.
  static int32_t max_slabs();

  // Allocates nothing yet. A slab of the anonymous file gets its memory when it is mapped or written
  // first, so what is missing shows there and not when a token is stored. The owner of a named file
  // allocates slabs before their first use, and may take the memory of those back that no region has.
  // Throws Error: MR_NO_MEMORY where the system has less now than all slabs take, MR_UNSUPPORTED where
  // mapping the pool slab by slab could exceed vm.max_map_count.
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
  void allocate(int slab);  // throws Error(MR_NO_MEMORY)

  int file_ = -1;
  uint64_t offset_ = 0;                       // of the first slab in the file
  std::byte* data_ = nullptr;                 // the whole pool, mapped once
  const bool allocates_;                      // slabs; else their owner does
  std::vector<std::atomic<bool>> allocated_;  // [slabs], by this
};

}  // namespace millrace

#endif
