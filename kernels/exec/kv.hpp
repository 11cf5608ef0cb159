// KV cache memory: a pool of physical slabs and the regions that map them.
//
// A region is a table of physical slabs, and the same slab may be in many
// regions. Where the pool can map memory, a region is also a run of addresses
// with its slabs put there, so that a kernel finds token t of a region at
// base + (t / 16) * slab_bytes; elsewhere kernels read the table. Layers of different
// windows are in groups: a region has such a run, and such a table, for each.
#ifndef MILLRACE_EXEC_KV_HPP
#define MILLRACE_EXEC_KV_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace millrace {

// The keys and values of a layer.
struct LayerShape {
  int heads = 0;           // with keys and values; 0: there are none
  int key = 0, value = 0;  // elements of one
  bool latent = false;     // a value is the beginning of its key, and not kept apart

  bool operator==(const LayerShape&) const = default;
  // The elements of what is kept of a token's key (v = 0) or value.
  int width(int v) const { return v == 0 || latent ? key : value; }
};

// The inside of a slab: [layer][K|V][KV head] blocks of 16 tokens, in an order that is the backend's.
// Layers of one shape have equal blocks. All slabs are as large as the largest group's.
struct KvLayout {
  struct Layer : LayerShape {
    size_t begin = 0;      // of its blocks in a slab
    size_t bytes[2] = {};  // of a block of keys, and of values
  };
  std::vector<Layer> layers;  // [groups][layers of a slab], see Op::place
  int groups = 1;             // slabs of 16 tokens, one for each group of layers
  int32_t type = 0;           // mr_kv_type, not MR_KV_AUTO
  size_t slab_bytes = 0;      // rounded up to pages
  int head_slabs = 0;         // of a region, before those of its tokens
  int most_slabs = 0;         // of a region; 0: any number

  KvLayout() = default;
  // block_bytes: of 16 tokens of some elements each.
  KvLayout(const std::vector<LayerShape>& shapes, int groups, int32_t type,
           const std::function<size_t(int width)>& block_bytes);

  // Makes it a part of larger slabs, from a byte on.
  void place(size_t from, size_t bytes);

  // Makes slabs of some bytes, rounded up to pages, if they are smaller.
  void at_least(size_t bytes);

  // Where the block of a layer's K (value = 0) or V (value = 1) and KV head
  // begins inside a slab.
  size_t block(int place, int value, int head) const;
};

// Where the slabs of a pool lie in an open file.
struct PoolFile {
  int file = -1;  // the caller's; -1: in memory of the pool's own
  uint64_t offset = 0;
};

class KvPool {
 public:
  KvPool(const KvLayout& layout, int slabs);
  virtual ~KvPool() = default;
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  int slabs() const { return slabs_; }
  int groups() const { return layout_.groups; }
  const KvLayout& layout() const { return layout_; }
  size_t slab_bytes() const { return layout_.slab_bytes; }
  uint64_t bytes() const { return uint64_t{layout_.slab_bytes} * slabs_; }
  // Copies the first `tokens` tokens of every block of a slab; what follows them in the
  // target is nobody's.
  void copy(int from, int to, int tokens);
  // The bytes of a slab to and from memory of the host, beside a step that does not touch their tokens.
  void read(int slab, void* to);
  void write(int slab, const void* from);

  // Addresses for a region's slabs; null where the pool maps nothing.
  virtual std::byte* reserve(int slabs) = 0;
  virtual void release(std::byte* data, int slabs) = 0;
  // Puts slabs at data; all of them or, with an Error, none.
  virtual void map(std::byte* data, const int32_t* slabs, int n) = 0;
  virtual void unmap(std::byte* data, int n) = 0;

 protected:
  virtual void copy_slab(int from, int to, int tokens) = 0;  // checked, as the next
  virtual void read_slab(int slab, void* to) = 0;
  virtual void write_slab(int slab, const void* from) = 0;

  const KvLayout layout_;

 private:
  void check(int slab) const;

  int slabs_;
};

class KvRegion {
 public:
  KvRegion(std::shared_ptr<KvPool> pool, int slabs);
  ~KvRegion();
  KvRegion(const KvRegion&) = delete;
  KvRegion& operator=(const KvRegion&) = delete;

  // Maps physical slabs at places [index, index + n), which are free: place g * slabs() + i is
  // for slab i of group g. Either all of them are mapped or, with an Error, none.
  void map(int index, const int32_t* slabs, int n);
  void unmap(int index, int n);

  int slabs() const { return slabs_; }  // of each group
  bool mapped(int group, int index) const { return slab_[place(group) + index] >= 0; }
  const int32_t* table(int group) const { return &slab_[place(group)]; }  // [slabs], -1: none
  std::byte* data(int group) const { return at(place(group)); }  // null where the pool maps nothing
  const KvPool* pool() const { return pool_.get(); }

  uint64_t step = 0;  // the last step that used this region

 private:
  void check(int index, int n, bool mapped) const;
  size_t place(int group) const { return size_t(group) * slabs_; }
  std::byte* at(size_t index) const;

  std::shared_ptr<KvPool> pool_;
  int slabs_;
  std::vector<int32_t> slab_;  // physical slab at each place, -1: none
  std::byte* data_;
};

}  // namespace millrace

#endif
