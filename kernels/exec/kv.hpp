// KV cache memory: a pool of physical slabs and the regions that map them.
//
// The pool is one memory file, all of it allocated at once. A region is a run of
// reserved addresses; mapping a slab puts its pages there, and the same slab may
// be mapped in many regions. So a kernel finds token t of a region at
// base + (t / 16) * slab_bytes, and sharing needs no block table.
#ifndef MILLRACE_EXEC_KV_HPP
#define MILLRACE_EXEC_KV_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace millrace {

// The inside of a slab: [layer][K|V][KV head][16 tokens][head_dim].
struct KvLayout {
  int layers = 0, kv_heads = 0, head_dim = 0, element_bytes = 0;
  size_t slab_bytes = 0;  // rounded up to pages

  KvLayout() = default;
  KvLayout(int layers, int kv_heads, int head_dim, int element_bytes);

  // Bytes of one [16][head_dim] block.
  size_t block_bytes() const;
  // Where the block of a layer's K (value = 0) or V (value = 1) and KV head
  // begins inside a slab.
  size_t block(int layer, int value, int head) const;
};

class KvPool {
 public:
  // Allocates the memory of all slabs now: what is missing shows here and not
  // when a token is stored. Throws Error: MR_NO_MEMORY, MR_UNSUPPORTED where
  // mapping the pool slab by slab could exceed vm.max_map_count.
  KvPool(const KvLayout& layout, int slabs);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  int slabs() const { return slabs_; }
  int file() const { return file_; }
  size_t slab_bytes() const { return layout_.slab_bytes; }
  // Copies the first `tokens` tokens of every block of a slab.
  void copy(int from, int to, int tokens);

 private:
  void release();

  KvLayout layout_;
  int slabs_;
  int file_ = -1;
  std::byte* data_ = nullptr;  // the whole pool, mapped once
};

// The most slabs a pool may have on this system, for every one of them may need
// a memory mapping of its own.
int32_t max_slabs();

class KvRegion {
 public:
  KvRegion(std::shared_ptr<KvPool> pool, int slabs);
  ~KvRegion();
  KvRegion(const KvRegion&) = delete;
  KvRegion& operator=(const KvRegion&) = delete;

  // Maps physical slabs at places [index, index + n), which are free. Either all
  // of them are mapped or, with an Error, none.
  void map(int index, const int32_t* slabs, int n);
  void unmap(int index, int n);

  int slabs() const { return static_cast<int>(slab_.size()); }
  bool mapped(int index) const { return slab_[index] >= 0; }
  std::byte* data() const { return data_; }
  const KvPool* pool() const { return pool_.get(); }

  uint64_t step = 0;  // the last step that used this region

 private:
  void check(int index, int n, bool mapped) const;
  void reserve(int index, int n);

  std::shared_ptr<KvPool> pool_;
  std::vector<int32_t> slab_;  // physical slab at each place, -1: none
  std::byte* data_;
};

}  // namespace millrace

#endif
